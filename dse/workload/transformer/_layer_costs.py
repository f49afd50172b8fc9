"""Costs of one layer's passes, and of moving its parameters and gradients."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from dse.workload.transformer._cost import Cost, kernels_next_to, total_cost, transfer_next_to
from dse.workload.transformer._memory import layer_parameters
from dse.workload.transformer._offload import offloaded_layer
from dse.workload.transformer._operators import Elementwise
from dse.workload.transformer._recompute import chosen_share, recomputed_kernels, repeats
from dse.workload.transformer._transfers import Transfers
from dse.workload.transformer._types import DataSharding, Recompute, RecomputeModule
from dse.workload.transformer._work import LayerWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer._kernels import KernelTime
    from dse.workload.transformer._operators import Kernel


#: Weights of a layer: four matrices and two norms.
LAYER_TENSORS = 6


class LayerKernels(NamedTuple):
    """Kernels of one layer, or of a multi-token prediction module.

    Attributes:
        forward: Of a forward pass.
        backward: Of a backward pass without recomputation, with the accumulation of gradients.
        recomputed: What is computed again before it.
        core_forward: The core of attention among the forward pass.
        core_backward: The same among the backward pass.
    """

    forward: Sequence[Kernel]
    backward: Sequence[Kernel]
    recomputed: Sequence[Kernel]
    core_forward: Sequence[Kernel]
    core_backward: Sequence[Kernel]


def layer_kernels(problem: TransformerJob) -> LayerKernels:
    """Returns the kernels of a layer.

    Args:
        problem: What is trained, where and how; its layers are all alike.
    """
    work = LayerWork(problem)
    module = work.prediction_module()
    return LayerKernels(
        [*work.layer_forward(), *module.forward, *_copies(problem)],
        [
            *work.layer_backward(),
            *module.backward,
            *_accumulation(problem),
            *_copies(problem, backward=True),
        ],
        recomputed_kernels(problem, work),
        work.attention.core_forward(),
        work.attention.core_backward(),
    )


def _accumulation(problem: TransformerJob) -> list[Kernel]:
    """Kernels that add a layer's gradients to those of earlier passes."""
    parallelism = problem.parallelism
    if problem.micro_batches == 1 or sums_shards(problem):
        return []
    split = problem.model.layer_matrix_parameters_of(parallelism.tensor)
    split += _expert_parameters(problem)
    traffic = problem.gradient_bytes
    if not problem.software.fused_accumulation:
        # The new gradient is read, and the sum written once more than it is anyway.
        traffic += problem.gradient_bytes + problem.precision.value_bytes
    return [Elementwise(split * traffic, 4)]


def _copies(problem: TransformerJob, *, backward: bool = False) -> list[Kernel]:
    """Kernels that copy gathered parameters, and gradients, out of and into their buffers."""
    parallelism = problem.parallelism
    sharded = parallelism.replicas > 1 and parallelism.data_sharding is DataSharding.PARAMETERS
    if not (sharded and problem.software.copies_parameters):
        return []
    value = problem.precision.value_bytes
    traffic = 2 * value + (value + problem.gradient_bytes if backward else 0)
    parameters = layer_parameters(problem) + _expert_parameters(problem)
    return [Elementwise(parameters * traffic, 2 if backward else 1)]


def sums_shards(problem: TransformerJob) -> bool:
    """Returns whether gradients leave after every micro-batch, so that shards are accumulated."""
    parallelism = problem.parallelism
    return parallelism.replicas > 1 and parallelism.data_sharding.shards_gradients


def _expert_parameters(problem: TransformerJob) -> float:
    """Parameters of a rank's experts in one layer."""
    return problem.model.layer_expert_parameters / problem.parallelism.expert_ranks


class LayerCosts:
    """Costs of one layer.

    Args:
        problem: What is trained, where and how; its layers are all alike.
        times: Times of each list of :func:`layer_kernels`.
        dispatch_s: Time of the host for one kernel.
    """

    def __init__(
        self,
        problem: TransformerJob,
        times: Sequence[KernelTime],
        dispatch_s: float,
    ) -> None:
        self._problem = problem
        self._parallelism = problem.parallelism
        self._software = problem.software
        self._work = LayerWork(problem)
        self._transfers = Transfers(problem, self._work.tokens)
        self._forward, self._backward, recomputed, *self._core = times
        #: Of an average layer.
        self._again_share = chosen_share(problem, self._parallelism.recompute_layers)
        self._recomputed = recomputed.scaled(self._again_share)
        self._dispatch_s = dispatch_s

    # --- passes ---------------------------------------------------------------------------------

    @cached_property
    def forward(self) -> Cost:
        """A forward pass."""
        cost = total_cost(
            self._forward.cost(self._dispatch_s),
            self._transfers.tensor_forward(self._forward.product_s),
            self._collectives(backward=False),
            self._transfers.context(1, self._core[0].total_s),
            self._transfers.experts(),
        )
        return total_cost(cost, offloaded_layer(self._problem, cost.device_s))

    @cached_property
    def backward(self) -> Cost:
        """A backward pass, with what is computed again."""
        transfers = self._transfers
        cost = total_cost(
            (self._backward + self._recomputed).cost(self._dispatch_s),
            # Half of the products of a backward pass make gradients of weights.
            transfers.tensor_backward(0.5 * self._backward.product_s),
            self._collectives(backward=True),
            # Keys and values come around again, and their gradients.
            transfers.context(2, self._core[1].total_s),
            transfers.experts(),
        )
        again = self._transfers_again()
        cost = total_cost(cost, Cost(*(self._again_share * seconds for seconds in again)))
        return total_cost(cost, offloaded_layer(self._problem, cost.device_s))

    def _transfers_again(self) -> Cost:
        """Returns the transfers of what a layer computes again."""
        transfers, parallelism = self._transfers, self._parallelism
        cost = Cost()
        if repeats(parallelism, RecomputeModule.EXPERTS):
            cost = transfers.experts()
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
        domain_size = self._problem.cluster.domain_size
        each_s = self._dispatch_s * software.calls_per_collective / software.framework_calls_per_op
        if spread.pipeline > 1 and spread.world_size > domain_size:
            each_s += spread.tensor * software.delay_beside_stages_s
        if spread.tensor > domain_size:
            each_s += spread.tensor * software.delay_between_nodes_s
        return Cost(dispatch_s=count * each_s)

    def forward_sharded(self) -> Cost:
        """Returns a forward pass next to which the following layer's parameters are gathered."""
        prefetched = self._gathered() if self._software.prefetch_parameters else Cost()
        return kernels_next_to(self.forward, prefetched)

    def backward_sharded(self) -> Cost:
        """Returns a backward pass next to which gradients leave and parameters arrive."""
        hidden = self._reduced() if self._parallelism.replicas > 1 else Cost()
        if sums_shards(self._problem) and self._software.prefetch_parameters:
            hidden = total_cost(hidden, self._gathered())
        return kernels_next_to(self.backward, hidden)

    # --- parameters -----------------------------------------------------------------------------

    def gather(self) -> Cost:
        """Returns the gathering of the layer's parameters next to the layer before."""
        beside_s = self._forward.total_s if self._software.prefetch_parameters else 0.0
        return transfer_next_to(self._gathered(), beside_s)

    def reduce(self) -> Cost:
        """Returns the sum of the layer's gradients next to the following backward pass."""
        return transfer_next_to(self._reduced(), self._backward.total_s)

    @property
    def _parameters(self) -> tuple[float, float]:
        """Parameters of the layer on a rank, and those of its experts."""
        return layer_parameters(self._problem), _expert_parameters(self._problem)

    def _gathered(self) -> Cost:
        if self._parallelism.data_sharding is not DataSharding.PARAMETERS:
            return Cost()
        return self._transfers.gathered(*self._parameters)

    def _reduced(self) -> Cost:
        return self._transfers.reduced(*self._parameters, tensors=LAYER_TENSORS)
