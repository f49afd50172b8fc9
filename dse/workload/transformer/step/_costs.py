"""Durations of each kind of task of a step, by the models behind them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dse.workload._host import HostTimes
from dse.workload.transformer._types import Capture, DataSharding
from dse.workload.transformer.kernels._durations import KernelTimes
from dse.workload.transformer.kernels._layer import LayerWork
from dse.workload.transformer.kernels._operators import Elementwise, OperatorCall
from dse.workload.transformer.memory._offload import host_update
from dse.workload.transformer.memory._parameters import (
    end_parameters,
    optimizer_parameters,
    stage_expert_parameters,
    stage_matrix_parameters,
    stage_parameters,
)
from dse.workload.transformer.step._cost import Cost, total_cost
from dse.workload.transformer.step._layer_costs import (
    LAYER_PASSES,
    LAYER_TENSORS,
    LayerCosts,
    LayerKernels,
    accumulation,
    collective_calls_s,
    layer_kernels,
    shard_calls,
    shards_gradients,
)
from dse.workload.transformer.step._structure import Kind, Role, Structure
from dse.workload.transformer.step._transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import DeviceSpec, Precision
    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer._types import TransformerRuntime
    from dse.workload.transformer.kernels._operators import Kernel


#: Bytes that one pass of a fused Adam reads and writes for each parameter in FP32: the gradient,
#: and the weight and two moments both ways.
_ADAM_BYTES = 28.0


def make_structure(problem: TransformerJob) -> Structure:
    """Returns what the structure of the problem's step depends on."""
    parallelism, software = problem.parallelism, problem.software
    sharding = parallelism.data_sharding
    reduces = parallelism.replicas > 1
    stages = parallelism.pipeline
    return Structure(
        pipeline=stages,
        interleave=parallelism.interleave,
        micro_batches=problem.micro_batches,
        layers=problem.layers_by_chunk,
        kinds=problem.model.layer_kinds,
        reduces=reduces,
        overlaps_reduce=software.overlap_gradients,
        gathers_updated=reduces and sharding in (DataSharding.OPTIMIZER, DataSharding.GRADIENTS),
        ties_ends=stages > 1 and (problem.model.tied_embeddings or problem.model.mtp_modules > 0),
        overlaps_receive=software.overlap_pipeline and stages > 1,
        sharding=sharding if reduces else DataSharding.NONE,
        prefetches=software.prefetch_parameters,
        schedule=parallelism.schedule,
        reshards=parallelism.reshard_after_forward,
        reduces_once=parallelism.no_sync,
        own_engines=problem.own_engines,
    )


@lru_cache(maxsize=32)
def _kernel_times(
    device: DeviceSpec, precision: Precision, software: TransformerRuntime
) -> KernelTimes:
    return KernelTimes(device, precision, software)


def _dispatch_s(problem: TransformerJob) -> float:
    """Returns the time of the host for one kernel: T1 to T5 of each framework call it takes."""
    times, software = HostTimes(problem.cluster.host), problem.software
    if problem.captured is Capture.EVERYTHING:
        return 0.0
    calls = 1.0 if problem.cluster.host.profile is not None else software.framework_calls_per_op
    return calls * times.dispatch("", 1).duration_s


def _graph_s(problem: TransformerJob) -> float | None:
    """Returns the time of the host to launch a pass of a layer as a graph; None without one."""
    if problem.captured is not Capture.LAYERS:
        return None
    return HostTimes(problem.cluster.host).graph_launch().duration_s


#: Passes through a chunk of layers, with what the head and the embedding add to them.
_PASSES: dict[Role, tuple[Role, Role | None]] = {
    Role.FORWARD: (Role.HEAD, Role.EMBEDDING_FORWARD),
    Role.BACKWARD: (Role.HEAD_BACKWARD, Role.EMBEDDING_BACKWARD),
    Role.INPUT_GRADIENTS: (Role.HEAD_INPUT_GRADIENTS, None),
    Role.WEIGHT_GRADIENTS: (Role.HEAD_WEIGHT_GRADIENTS, Role.EMBEDDING_BACKWARD),
}


class StepCosts:
    """Costs of one problem's tasks."""

    def __init__(self, problem: TransformerJob) -> None:
        self._problem = problem
        self._cluster = problem.cluster
        self._parallelism = problem.parallelism
        self._software = problem.software
        self._transfers = Transfers(problem)
        self._dispatch_s = _dispatch_s(problem)
        self._measure()
        self._stage_output = self._transfers.stage_output()

    def of(self, kind: Kind) -> Cost:
        """Returns the cost of a kind of task."""
        role, stage, chunk, layer = kind
        if role in _PASSES:
            return self._pass(role, stage, chunk)
        if role in LAYER_PASSES or role in (Role.GATHER_LAYER, Role.REDUCE_LAYER):
            return self._layers[layer].of(role)
        if role in (Role.SEND, Role.RECEIVE):
            return self._stage_output
        if role is Role.OPTIMIZER:
            return self._optimizer(stage)
        if role in self._ends:
            return self._end(role)
        return self._data_transfer(kind)

    def expert_exchange(self, layer: int, *, backward: bool) -> Cost:
        """Returns what exchanges with the experts of a layer add to a pass."""
        return self._layers[layer].experts(backward=backward)

    # --- passes ---------------------------------------------------------------------------------

    def _end_sums(self, *, last: bool) -> list[Kernel]:
        """Kernels that add gradients of embedding or head, if no product does."""
        if self._software.fused_accumulation:
            return []
        return accumulation(self._problem, end_parameters(self._problem, last=last))

    def _end(self, role: Role) -> Cost:
        """Returns the cost of what comes before or after the layers."""
        cost = self._ends[role].cost(self._dispatch_s)
        if self._problem.own_engines:
            # Steps of devices have dozens of layers, whose collectives count alone.
            return cost
        sums = self._transfers.end_sums(role)
        each_s = collective_calls_s(self._software, self._dispatch_s)
        return total_cost(cost, *(total_cost(one, Cost(dispatch_s=each_s)) for one in sums))

    def _measure(self) -> None:
        """Takes the time of all lists of kernels at once."""
        jobs, work = self._problem.layer_jobs, LayerWork(self._problem)
        layers = [layer_kernels(job) for job in jobs]
        embedding, head = work.embedding(), work.head()
        ends: list[Sequence[Kernel]] = [
            embedding.forward,
            [*embedding.backward, *self._end_sums(last=False)],
            head.forward,
            [*head.backward, *self._end_sums(last=True)],
            work.head_weight_gradients(),
        ]
        device = self._cluster.device
        times = _kernel_times(device, self._problem.precision, self._software)
        measured = times.measure([*ends, *(kernels for layer in layers for kernels in layer)])
        weights = measured[4]
        self._ends = {
            Role.EMBEDDING_FORWARD: measured[0],
            Role.EMBEDDING_BACKWARD: measured[1],
            Role.HEAD: measured[2],
            Role.HEAD_BACKWARD: measured[3],
            Role.HEAD_INPUT_GRADIENTS: measured[3] - weights,
            Role.HEAD_WEIGHT_GRADIENTS: weights,
        }
        count, graph_s = len(LayerKernels._fields), _graph_s(self._problem)
        self._layers = [
            LayerCosts(job, measured[first : first + count], self._dispatch_s, graph_s)
            for job, first in zip(jobs, range(len(ends), len(measured), count), strict=True)
        ]
        all_products = [kernel for layer in layers for kernel in (*layer.forward, *layer.backward)]
        self.product_spread = times.product_spread([*all_products, *head.forward])
        self.attention_spread = times.attention_spread(
            [kernel for layer in layers for kernel in (*layer.core_forward, *layer.core_backward)]
        )

    def _pass(self, role: Role, stage: int, chunk: int) -> Cost:
        parallelism = self._parallelism
        kinds = self._problem.chunk_kinds(stage, chunk)
        first = stage == 0 and chunk == 0
        last = stage == parallelism.pipeline - 1 and chunk == parallelism.interleave - 1
        cost = Cost()
        for kind in dict.fromkeys(kinds):
            one, count = self._layers[kind].of(role), kinds.count(kind)
            cost = total_cost(cost, Cost(*(count * seconds for seconds in one)))
        head, embedding = _PASSES[role]
        if first and embedding is not None:
            cost = total_cost(cost, self._end(embedding))
        if last:
            cost = total_cost(cost, self._end(head))
        sends = not (last if role is Role.FORWARD else first)
        if sends and role is not Role.WEIGHT_GRADIENTS and not self._software.overlap_pipeline:
            cost = total_cost(cost, self._stage_output)
        return cost

    def _optimizer(self, stage: int) -> Cost:
        traffic = 0.0
        if not self._parallelism.offload.optimizer:
            traffic = optimizer_parameters(self._problem, stage)
            traffic *= self._software.optimizer_traffic_bytes
        precision = self._problem.precision
        if precision.is_low:
            # The new weights are read, and written as they are and, where needed, transposed.
            written = self._problem.operand_copies * precision.operand_bytes
            cast = precision.outside_products.value_bytes + written
            traffic += stage_matrix_parameters(self._problem, stage) * cast
        device = self._cluster.device
        times = _kernel_times(device, self._problem.precision, self._software)
        # One pass of a fused Adam over parameters in FP32, and as much again as there is traffic.
        adam = OperatorCall.of(
            "optimizer_step", parameters=traffic / _ADAM_BYTES, state_values=2.0
        )
        kernels = times.measure([[Elementwise(traffic, 8, calls=(adam,))]])[0]
        update = kernels.cost(self._dispatch_s)
        if self._parallelism.offload.optimizer:
            return total_cost(update, host_update(self._problem, stage))
        return update

    # --- replicas -------------------------------------------------------------------------------

    def _data_transfer(self, kind: Kind) -> Cost:
        role, stage, chunk, _ = kind
        transfers, calls = self._transfers, shard_calls(self._problem, self._dispatch_s)
        if role is Role.GATHER_ROOT:
            return total_cost(transfers.gathered(self._root_parameters(stage > 0)), calls)
        if role is Role.GATHER_UPDATED:
            units = self._problem.stage_layers(stage) + 1
            parameters, experts = self._stage(stage)
            gathered = transfers.gathered(
                parameters,
                experts,
                matrices=stage_matrix_parameters(self._problem, stage) - experts,
                tensors=self._tensors(stage),
            )
            return total_cost(gathered, Cost(dispatch_s=units * calls.dispatch_s))
        if role is Role.REDUCE_ALL:
            return transfers.reduced(*self._stage(stage), tensors=self._tensors(stage))
        if role is Role.REDUCE_EMBEDDING:
            return transfers.ends_reduced()
        if shards_gradients(self._problem):
            return total_cost(transfers.reduced(self._root_parameters(bool(chunk))), calls)
        return transfers.reduced(end_parameters(self._problem, last=bool(chunk)))

    def _stage(self, stage: int) -> tuple[float, float]:
        """Parameters of a rank of a stage, and those of its experts."""
        return stage_parameters(self._problem, stage), stage_expert_parameters(
            self._problem, stage
        )

    def _tensors(self, stage: int) -> int:
        """Weights of a stage: those of its layers, and the embedding or the head."""
        return LAYER_TENSORS * self._problem.stage_layers(stage) + 1

    def _root_parameters(self, last: bool) -> float:
        """Parameters outside the layers, of one end of a pipeline; of both with one stage."""
        ends = (last,) if self._parallelism.pipeline > 1 else (False, True)
        return sum(end_parameters(self._problem, last=end) for end in ends)
