"""Durations of each kind of task of a step, by the models behind them."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from dse.workload._host import HostTimes
from dse.workload._launch import LaunchMode
from dse.workload.transformer._cost import Cost, kernels_next_to, total_cost, transfer_next_to
from dse.workload.transformer._kernels import KernelTime, KernelTimes
from dse.workload.transformer._memory import (
    end_parameters,
    stage_expert_parameters,
    stage_matrix_parameters,
    stage_parameters,
    stage_shard,
)
from dse.workload.transformer._recompute import chosen_share, recomputed_kernels, repeats
from dse.workload.transformer._tasks import Kind, Role, Structure
from dse.workload.transformer._transfers import Transfers
from dse.workload.transformer._types import DataSharding, Recompute, RecomputeModule
from dse.workload.transformer._work import Elementwise, LayerWork

if TYPE_CHECKING:
    from dse.machine import DeviceSpec, Precision
    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer._types import TransformerRuntime
    from dse.workload.transformer._work import Kernel


#: Weights of a layer: four matrices and two norms.
_LAYER_TENSORS = 6


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
        reduces=reduces,
        overlaps_reduce=software.overlap_gradients,
        gathers_updated=reduces and sharding in (DataSharding.OPTIMIZER, DataSharding.GRADIENTS),
        ties_ends=stages > 1 and problem.model.tied_embeddings,
        overlaps_receive=software.overlap_pipeline and stages > 1,
        sharding=sharding if reduces else DataSharding.NONE,
        prefetches=software.prefetch_parameters,
    )


@lru_cache(maxsize=32)
def _kernel_times(
    device: DeviceSpec, precision: Precision, software: TransformerRuntime
) -> KernelTimes:
    return KernelTimes(device, precision, software)


def _dispatch_s(problem: TransformerJob) -> float:
    """Returns the time of the host for one kernel: T1 to T5 of each framework call it takes."""
    software = problem.software
    if software.launch is LaunchMode.CUDA_GRAPHS:
        return 0.0
    times = HostTimes(problem.cluster.host, problem.host_profile)
    calls = 1.0 if problem.host_profile is not None else software.framework_calls_per_op
    return calls * times.dispatch("", 1).duration_s


class StepCosts:
    """Costs of one problem's tasks."""

    def __init__(self, problem: TransformerJob) -> None:
        self._problem = problem
        self._model = problem.model
        self._cluster = problem.cluster
        self._parallelism = problem.parallelism
        self._software = problem.software
        self._work = LayerWork(problem)
        self._transfers = Transfers(problem, self._work.tokens)
        self._dispatch_s = _dispatch_s(problem)
        self._measure()
        self._stage_output = self._transfers.stage_output()

    def of(self, kind: Kind) -> Cost:
        """Returns the cost of a kind of task."""
        role, stage, chunk = kind
        if role in (Role.FORWARD, Role.BACKWARD):
            return self._pass(stage, chunk, backward=role is Role.BACKWARD)
        if role is Role.LAYER_FORWARD:
            prefetched = self._gather_layer() if self._software.prefetch_parameters else Cost()
            return kernels_next_to(self._layer_forward(), prefetched)
        if role is Role.LAYER_BACKWARD:
            return kernels_next_to(self._layer_backward(), self._beside_backward())
        if role is Role.RECEIVE:
            return self._stage_output
        if role is Role.OPTIMIZER:
            return self._optimizer(stage)
        parts = {
            Role.EMBEDDING_FORWARD: self._embedding[0],
            Role.EMBEDDING_BACKWARD: self._embedding[1],
            Role.HEAD_BACKWARD: self._head[1],
            Role.HEAD: self._head[0] + self._head[1],
        }
        if role in parts:
            return self._computed(parts[role])
        return self._data_transfer(kind)

    # --- passes ---------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Takes the time of all lists of kernels at once."""
        work = self._work
        recomputed = recomputed_kernels(self._problem, work)
        accumulate: list[Kernel] = []
        if self._problem.micro_batches > 1 and not self._sharded:
            split = self._model.layer_matrix_parameters / self._parallelism.tensor
            split += self._layer_experts
            traffic = self._problem.gradient_bytes
            if not self._software.fused_accumulation:
                # The new gradient is read, and the sum written once more than it is anyway.
                traffic += self._problem.gradient_bytes + self._problem.precision.value_bytes
            accumulate = [Elementwise(split * traffic, 4)]
        embedding, head = work.embedding(), work.head()
        lists = [
            work.layer_forward(),
            [*work.layer_backward(), *accumulate],
            recomputed,
            embedding.forward,
            embedding.backward,
            head.forward,
            head.backward,
            work.core_forward(),
            work.core_backward(),
        ]
        device = self._cluster.device
        times = _kernel_times(device, self._problem.precision, self._software)
        measured = times.measure(lists)
        self._forward, self._backward = measured[:2]
        #: Of an average layer.
        self._again_share = chosen_share(self._problem, self._parallelism.recompute_layers)
        self._recomputed = measured[2].scaled(self._again_share)
        self._embedding = (measured[3], measured[4])
        self._head = (measured[5], measured[6])
        self._core = (measured[7], measured[8])
        self.product_spread = times.product_spread([*lists[0], *lists[1], *lists[6]])
        self.attention_spread = times.attention_spread([*lists[7], *lists[8]])

    @property
    def _sharded(self) -> bool:
        """Whether gradients leave after every micro-batch, so that shards are accumulated."""
        sharding = self._parallelism.data_sharding
        return self._parallelism.replicas > 1 and sharding.shards_gradients

    def _pass(self, stage: int, chunk: int, *, backward: bool) -> Cost:
        parallelism = self._parallelism
        layers = self._problem.chunk_layers(stage, chunk)
        first = stage == 0 and chunk == 0
        last = stage == parallelism.pipeline - 1 and chunk == parallelism.interleave - 1
        cost = Cost(*(layers * seconds for seconds in self._layer_passes[backward]))
        if first:
            cost = total_cost(cost, self._computed(self._embedding[backward]))
        if last:
            cost = total_cost(cost, self._computed(self._head[backward]))
        sends = not (first if backward else last)
        if sends and not self._software.overlap_pipeline:
            cost = total_cost(cost, self._stage_output)
        return cost

    @cached_property
    def _layer_passes(self) -> tuple[Cost, Cost]:
        """One layer forward and backward, the same in all stages."""
        return self._layer_forward(), self._layer_backward()

    def _layer_forward(self) -> Cost:
        return total_cost(
            self._computed(self._forward),
            self._transfers.tensor_forward(self._forward.product_s),
            self._collectives(backward=False),
            self._transfers.context(1, self._core[0].total_s),
            self._transfers.experts(self._work.expert_rows),
        )

    def _layer_backward(self) -> Cost:
        transfers = self._transfers
        cost = total_cost(
            self._computed(self._backward + self._recomputed),
            # Half of the products of a backward pass make gradients of weights.
            transfers.tensor_backward(0.5 * self._backward.product_s),
            self._collectives(backward=True),
            # Keys and values come around again, and their gradients.
            transfers.context(2, self._core[1].total_s),
            transfers.experts(self._work.expert_rows),
        )
        again = self._transfers_again()
        return total_cost(cost, Cost(*(self._again_share * seconds for seconds in again)))

    def _transfers_again(self) -> Cost:
        """Returns the transfers of what a layer computes again."""
        transfers, parallelism = self._transfers, self._parallelism
        cost = Cost()
        if repeats(parallelism, RecomputeModule.EXPERTS):
            cost = transfers.experts(self._work.expert_rows)
        blocks = transfers.tensor_recomputed(self._forward.product_s)
        if parallelism.recompute is Recompute.FULL:
            return total_cost(cost, blocks, transfers.context(1, self._core[0].total_s))
        if repeats(parallelism, RecomputeModule.FEED_FORWARD):
            # One of the two blocks.
            cost = total_cost(cost, blocks.scaled(transfers=0.5))
        return cost

    def _collectives(self, *, backward: bool) -> Cost:
        """Returns the host's time for a layer's collectives of tensor parallelism.

        Each waits for the slowest rank, so what ranks lose, at times of their own, adds up.
        """
        spread, software = self._parallelism, self._software
        if spread.tensor == 1:
            return Cost()
        count = 2
        if spread.sequence_parallel:
            count = 6 if backward else 4
        each_s = self._dispatch_s * software.calls_per_collective / software.framework_calls_per_op
        if spread.pipeline > 1 and spread.world_size > self._cluster.domain_size:
            each_s += spread.tensor * software.delay_beside_stages_s
        if spread.tensor > self._cluster.domain_size:
            each_s += spread.tensor * software.delay_between_nodes_s
        return Cost(dispatch_s=count * each_s)

    def _computed(self, time: KernelTime) -> Cost:
        """Returns kernels with the time of the host to dispatch them."""
        dispatch_s = time.launches * self._dispatch_s
        return Cost(time.product_s, time.attention_s, time.elementwise_s, dispatch_s)

    def _optimizer(self, stage: int) -> Cost:
        if self._parallelism.data_sharding.shards_optimizer:
            parameters = stage_shard(self._problem, stage)
        else:
            parameters = sum(self._stage(stage))
        traffic = parameters * self._software.optimizer_traffic_bytes
        precision = self._problem.precision
        if precision.is_low:
            # The new weights are read, and written twice: as they are, and transposed.
            cast = precision.outside_products.value_bytes + 2 * precision.operand_bytes
            traffic += stage_matrix_parameters(self._problem, stage) * cast
        device = self._cluster.device
        times = _kernel_times(device, self._problem.precision, self._software)
        return self._computed(times.measure([[Elementwise(traffic, 8)]])[0])

    # --- replicas -------------------------------------------------------------------------------

    def _data_transfer(self, kind: Kind) -> Cost:
        role, stage, chunk = kind
        transfers = self._transfers
        if role is Role.GATHER_LAYER:
            beside_s = self._forward.total_s if self._software.prefetch_parameters else 0.0
            return transfer_next_to(self._gather_layer(), beside_s)
        if role is Role.REDUCE_LAYER:
            return transfer_next_to(self._reduce_layer(), self._backward.total_s)
        if role is Role.GATHER_ROOT:
            return transfers.gathered(self._root_parameters)
        if role is Role.GATHER_UPDATED:
            return transfers.gathered(*self._stage(stage), tensors=self._tensors(stage))
        if role is Role.REDUCE_ALL:
            return transfers.reduced(*self._stage(stage), tensors=self._tensors(stage))
        if role is Role.REDUCE_EMBEDDING:
            return transfers.ends_reduced()
        if self._sharded:
            return transfers.reduced(self._root_parameters)
        return transfers.reduced(end_parameters(self._problem, last=bool(chunk)))

    def _stage(self, stage: int) -> tuple[float, float]:
        """Parameters of a rank of a stage, and those of its experts."""
        return stage_parameters(self._problem, stage), stage_expert_parameters(
            self._problem, stage
        )

    def _tensors(self, stage: int) -> int:
        """Weights of a stage: those of its layers, and the embedding or the head."""
        return _LAYER_TENSORS * self._problem.stage_layers(stage) + 1

    @property
    def _layer(self) -> tuple[float, float]:
        """Parameters of a layer on a rank, and those of its experts."""
        return self._model.layer_parameters / self._parallelism.tensor, self._layer_experts

    @property
    def _layer_experts(self) -> float:
        spread = self._parallelism
        return self._model.layer_expert_parameters / (spread.tensor * spread.expert)

    @property
    def _root_parameters(self) -> float:
        """Parameters outside the layers."""
        return sum(end_parameters(self._problem, last=last) for last in (False, True))

    def _gather_layer(self) -> Cost:
        if self._parallelism.data_sharding is not DataSharding.PARAMETERS:
            return Cost()
        return self._transfers.gathered(*self._layer)

    def _reduce_layer(self) -> Cost:
        return self._transfers.reduced(*self._layer, tensors=_LAYER_TENSORS)

    def _beside_backward(self) -> Cost:
        """What overlaps with a layer's backward pass."""
        hidden = self._reduce_layer() if self._parallelism.replicas > 1 else Cost()
        if self._sharded and self._software.prefetch_parameters:
            hidden = total_cost(hidden, self._gather_layer())
        return hidden
