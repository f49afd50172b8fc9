"""Costs of one layer's passes, and of moving its parameters and gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from dse.workload.transformer._types import DataSharding, Recompute, RecomputeModule, Schedule
from dse.workload.transformer.kernels._layer import LayerWork
from dse.workload.transformer.kernels._operators import Elementwise
from dse.workload.transformer.memory._offload import offloaded_layer
from dse.workload.transformer.memory._parameters import layer_expert_parameters, layer_parameters
from dse.workload.transformer.memory._recompute import chosen_share, recomputed_kernels, repeats
from dse.workload.transformer.step._cost import (
    Cost,
    exposed,
    kernels_next_to,
    total_cost,
    transfer_next_to,
)
from dse.workload.transformer.step._structure import Role
from dse.workload.transformer.step._transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer._types import TransformerRuntime
    from dse.workload.transformer.kernels._durations import KernelTime
    from dse.workload.transformer.kernels._operators import Kernel


#: Weights of a layer: four matrices and two norms.
LAYER_TENSORS = 6


#: Passes through a single layer, with the pass through a chunk that they are a part of.
LAYER_PASSES = {
    Role.LAYER_FORWARD: Role.FORWARD,
    Role.LAYER_BACKWARD: Role.BACKWARD,
    Role.LAYER_BACKWARD_UNREDUCED: Role.BACKWARD,
    Role.LAYER_INPUT_GRADIENTS: Role.INPUT_GRADIENTS,
    Role.LAYER_WEIGHT_GRADIENTS: Role.WEIGHT_GRADIENTS,
}

#: Those of them after which gradients leave.
_REDUCED = (Role.LAYER_BACKWARD, Role.LAYER_WEIGHT_GRADIENTS)


class LayerKernels(NamedTuple):
    """Kernels of one layer, or of a multi-token prediction module.

    Attributes:
        forward: Of a forward pass.
        backward: Of a backward pass without recomputation, with the accumulation of gradients.
        recomputed: What is computed again before it.
        core_forward: The core of attention among the forward pass.
        core_backward: The same among the backward pass.
        weights: The gradients of weights among the backward pass, where they are made apart.
    """

    forward: Sequence[Kernel]
    backward: Sequence[Kernel]
    recomputed: Sequence[Kernel]
    core_forward: Sequence[Kernel]
    core_backward: Sequence[Kernel]
    weights: Sequence[Kernel]


def layer_kernels(problem: TransformerJob) -> LayerKernels:
    """Returns the kernels of a layer.

    Args:
        problem: What is trained, where and how; its layers are all alike.
    """
    work = LayerWork(problem)
    split = problem.model.layer_matrix_parameters_of(problem.parallelism.tensor)
    sums = accumulation(problem, split, layer_expert_parameters(problem))
    module = work.prediction_module()
    apart = problem.parallelism.schedule is Schedule.ZERO_BUBBLE
    return LayerKernels(
        [*work.layer_forward(), *module.forward, *_copies(problem)],
        [
            *work.layer_backward(),
            *module.backward,
            *sums,
            *_copies(problem, backward=True),
        ],
        recomputed_kernels(problem, work),
        work.attention.core_forward(),
        work.attention.core_backward(),
        [*work.weight_gradients(), *sums] if apart else [],
    )


def accumulation(problem: TransformerJob, parameters: float, experts: float = 0.0) -> list[Kernel]:
    """Returns the kernels that add gradients to those of earlier passes.

    Gradients that are reduced after every pass are added shard by shard.

    Args:
        problem: What is trained, where and how.
        parameters: Those of a rank that the gradients belong to, without experts.
        experts: Those of the rank's experts.
    """
    parallelism, software = problem.parallelism, problem.software
    if problem.micro_batches == 1:
        return []
    each = shards_gradients(problem) and not parallelism.no_sync
    traffic = problem.gradient_bytes
    if each or not software.fused_accumulation:
        # The new gradient is read, and the sum written once more than it is anyway.
        traffic += problem.gradient_bytes + problem.precision.value_bytes
    if each:
        parameters, experts = parameters / parallelism.shards, experts / parallelism.expert_zero
    return [Elementwise((parameters + experts) * traffic, 4)]


def _copies(problem: TransformerJob, *, backward: bool = False) -> list[Kernel]:
    """Kernels that copy gathered parameters, and gradients, out of and into their buffers."""
    parallelism = problem.parallelism
    sharded = parallelism.replicas > 1 and parallelism.data_sharding is DataSharding.PARAMETERS
    if not (sharded and problem.software.copies_parameters):
        return []
    value = problem.precision.value_bytes
    traffic = 2 * value + (value + problem.gradient_bytes if backward else 0)
    parameters = layer_parameters(problem) + layer_expert_parameters(problem)
    return [Elementwise(parameters * traffic, 2 if backward else 1)]


def shards_gradients(problem: TransformerJob) -> bool:
    """Returns whether replicas keep a part of the gradients each."""
    parallelism = problem.parallelism
    return parallelism.replicas > 1 and parallelism.data_sharding.shards_gradients


def collective_calls_s(software: TransformerRuntime, dispatch_s: float) -> float:
    """Returns the host's time for a collective of tensor parallelism.

    Args:
        software: How the training program is written.
        dispatch_s: Time of the host for one kernel.
    """
    return dispatch_s * software.calls_per_collective / software.framework_calls_per_op


def shard_calls(problem: TransformerJob, dispatch_s: float) -> Cost:
    """Returns the host's time to gather what is sharded of a layer, or to reduce its gradients.

    Args:
        problem: What is trained, where and how.
        dispatch_s: Time of the host for one kernel.
    """
    software = problem.software
    if problem.parallelism.data_sharding is DataSharding.NONE:
        return Cost()
    calls = software.calls_per_shard_transfer / software.framework_calls_per_op
    return Cost(dispatch_s=dispatch_s * calls)


class LayerCosts:
    """Costs of one layer.

    Args:
        problem: What is trained, where and how; its layers are all alike.
        times: Times of each list of :func:`layer_kernels`.
        dispatch_s: Time of the host for one kernel.
        graph_s: Its time to launch a pass as a captured graph; None if there is none.
    """

    def __init__(
        self,
        problem: TransformerJob,
        times: Sequence[KernelTime],
        dispatch_s: float,
        graph_s: float | None,
    ) -> None:
        self._problem = problem
        self._parallelism = problem.parallelism
        self._software = problem.software
        self._transfers = Transfers(problem)
        self._forward, self._backward, recomputed, *self._core, self._weights = times
        #: Of an average layer.
        self._again_share = chosen_share(problem, self._parallelism.recompute_layers)
        self._recomputed = recomputed.scaled(self._again_share)
        self._dispatch_s, self._graph_s = dispatch_s, graph_s
        self._costs: dict[Role, Cost] = {}

    def of(self, role: Role) -> Cost:
        """Returns what the layer adds to a pass, or the cost of a task of its own.

        Args:
            role: A pass through a chunk, a pass through this layer alone, or a transfer of what
                belongs to the layer.
        """
        if role not in self._costs:
            self._costs[role] = self._cost(role)
        return self._costs[role]

    def _cost(self, role: Role) -> Cost:
        if role in LAYER_PASSES:
            return kernels_next_to(self.of(LAYER_PASSES[role]), self._beside(role))
        made = {
            Role.FORWARD: self._pass_forward,
            Role.BACKWARD: self._pass_backward,
            Role.INPUT_GRADIENTS: self._pass_inputs,
            Role.WEIGHT_GRADIENTS: self._pass_weights,
            Role.GATHER_LAYER: self._gather,
            Role.REDUCE_LAYER: self._reduce,
        }
        return made[role]()

    def experts(self, *, backward: bool) -> Cost:
        """Returns what exchanges with experts add to a pass.

        Where they hide, those of a forward pass are next to the backward pass of another
        micro-batch through the same layer, and the other way round. The first passes of a stage,
        and the last, have no other one beside them.
        """
        whole = self._transfers.experts()
        share = self._problem.paired_share
        if not share:
            return whole
        beside = self._forward if backward else self._backward + self._recomputed
        hidden = exposed(whole, beside.total_s).scaled(transfers=share)
        return total_cost(hidden, whole.scaled(transfers=1 - share))

    # --- passes ---------------------------------------------------------------------------------

    def _launched(self, kernels: KernelTime) -> Cost:
        """Returns kernels with the time of the host: for each of them, or for one graph.

        A graph has fixed sizes, so what the experts do is launched kernel by kernel beside it.
        """
        cost = kernels.cost(self._dispatch_s)
        if self._graph_s is None:
            return cost
        return cost._replace(dispatch_s=self._graph_s + kernels.routed_launches * self._dispatch_s)

    def _pass_forward(self) -> Cost:
        cost = total_cost(
            self._launched(self._forward),
            self._transfers.tensor_forward(self._forward.product_s),
            self._collectives(backward=False),
            self._transfers.context(self._core[0].total_s, backward=False),
            self.experts(backward=False),
        )
        return self._with_copies(cost)

    def _pass_backward(self) -> Cost:
        """A whole backward pass, with what is computed again."""
        cost = total_cost(
            self._launched(self._backward + self._recomputed),
            # Half of the products of a backward pass make gradients of weights.
            self._transfers.tensor_backward(0.5 * self._backward.product_s),
            self._beside_inputs(),
        )
        return self._with_copies(cost)

    def _pass_inputs(self) -> Cost:
        """A backward pass without the gradients of weights, with what is computed again."""
        made = self._backward - self._weights
        cost = total_cost(
            self._launched(made + self._recomputed),
            self._transfers.tensor_input_gradients(made.product_s),
            self._beside_inputs(),
        )
        return self._with_copies(cost)

    def _with_copies(self, cost: Cost) -> Cost:
        """Returns a pass together with the copies of offloaded activations."""
        return total_cost(cost, offloaded_layer(self._problem, cost.device_s))

    def _pass_weights(self) -> Cost:
        made = self._weights
        gathered = self._transfers.tensor_weight_gradients(made.product_s)
        return total_cost(self._launched(made), gathered)

    def _beside_inputs(self) -> Cost:
        """Returns the other transfers of a backward pass, and those of what is computed again."""
        cost = total_cost(
            self._collectives(backward=True),
            self._transfers.context(self._core[1].total_s, backward=True),
            self.experts(backward=True),
        )
        again = self._transfers_again()
        return total_cost(cost, Cost(*(self._again_share * seconds for seconds in again)))

    def _transfers_again(self) -> Cost:
        """Returns the transfers of what a layer computes again."""
        transfers, parallelism = self._transfers, self._parallelism
        cost = Cost()
        if repeats(parallelism, RecomputeModule.EXPERTS):
            cost = transfers.experts()
        blocks = transfers.tensor_recomputed(self._forward.product_s)
        if parallelism.recompute is Recompute.FULL:
            context = transfers.context(self._core[0].total_s, backward=False)
            return total_cost(cost, blocks, context)
        if repeats(parallelism, RecomputeModule.FEED_FORWARD):
            # One of the two blocks.
            cost = total_cost(cost, blocks.scaled(transfers=0.5))
        return cost

    def _collectives(self, *, backward: bool) -> Cost:
        """Returns the host's time for a layer's collectives of tensor parallelism.

        Each waits for the slowest rank, so what ranks lose, at times of their own, adds up; so do
        messages of a ring from node to node.
        """
        spread, software = self._parallelism, self._software
        if spread.tensor == 1:
            return Cost()
        count = 2
        if spread.sequence_parallel:
            count = 6 if backward else 4
        domain_size = self._problem.cluster.domain_size
        each_s = collective_calls_s(software, self._dispatch_s)
        if spread.pipeline > 1 and spread.world_size > domain_size:
            each_s += spread.tensor * software.delay_beside_stages_s
        nodes = math.ceil(spread.tensor / domain_size)
        each_s += (nodes - 1) * software.delay_between_nodes_s
        return Cost(dispatch_s=count * each_s)

    def _beside(self, role: Role) -> Cost:
        """Returns what overlaps with the layer in a pass that is taken apart by layer."""
        parallelism, hidden = self._parallelism, Cost()
        if not self._problem.own_engines:
            return hidden
        if role in _REDUCED and parallelism.replicas > 1:
            hidden = self._reduced()
        again = role is Role.LAYER_FORWARD or parallelism.reshard_after_forward
        gathers = again and role is not Role.LAYER_WEIGHT_GRADIENTS
        if gathers and shards_gradients(self._problem) and self._software.prefetch_parameters:
            hidden = total_cost(hidden, self._gathered())
        return hidden

    # --- parameters -----------------------------------------------------------------------------

    def _gather(self) -> Cost:
        """The gathering of the layer's parameters next to the layer before."""
        overlaps = self._software.prefetch_parameters and self._problem.own_engines
        beside_s = self._forward.total_s if overlaps else 0.0
        gather = transfer_next_to(self._gathered(), beside_s)
        return total_cost(gather, shard_calls(self._problem, self._dispatch_s))

    def _reduce(self) -> Cost:
        """The sum of the layer's gradients next to the following layer's pass."""
        apart = self._parallelism.schedule is Schedule.ZERO_BUBBLE
        beside = self._weights if apart else self._backward
        beside_s = beside.total_s if self._problem.own_engines else 0.0
        reduce = transfer_next_to(self._reduced(), beside_s)
        return total_cost(reduce, shard_calls(self._problem, self._dispatch_s))

    @property
    def _parameters(self) -> tuple[float, float]:
        """Parameters of the layer on a rank, and those of its experts."""
        return layer_parameters(self._problem), layer_expert_parameters(self._problem)

    def _gathered(self) -> Cost:
        if self._parallelism.data_sharding is not DataSharding.PARAMETERS:
            return Cost()
        model, tensor = self._problem.model, self._parallelism.tensor
        matrices = model.layer_matrix_parameters_of(tensor)
        return self._transfers.gathered(*self._parameters, matrices=matrices)

    def _reduced(self) -> Cost:
        return self._transfers.reduced(*self._parameters, tensors=LAYER_TENSORS)
