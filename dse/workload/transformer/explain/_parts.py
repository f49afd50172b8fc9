"""The cost of each kind of task, divided by purpose and resource."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dse.explanation import Resource
from dse.graph import TaskKind
from dse.machine import (
    UNLIMITED_RATE,
    unlimited_host_link,
    unlimited_link,
    unlimited_network,
)
from dse.workload.transformer._types import Recompute, RecomputeModule
from dse.workload.transformer.explain._kernels import ELEMENTWISE, NO_KERNELS, StepKernels
from dse.workload.transformer.memory._recompute import chosen_share, repeats
from dse.workload.transformer.step._cost import Cost, total_cost
from dse.workload.transformer.step._costs import StepCosts
from dse.workload.transformer.step._layer_costs import LAYER_PASSES
from dse.workload.transformer.step._structure import Role
from dse.workload.transformer.step._transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer.explain._kernels import KernelSides
    from dse.workload.transformer.step._structure import Kind

TENSOR = "tensor-parallel collectives"
CONTEXT = "context-parallel exchange"
EXPERTS = "expert-parallel exchange"
PIPELINE = "pipeline transfers"
OFFLOAD = "copies from and to the host"
REDUCTION = "gradient reduction"
GATHERING = "parameter gathering"
ACCUMULATION = "gradient accumulation"
OPTIMIZER = "optimizer"
LAUNCHES = "kernel launches"

_PURPOSE = {
    Role.SEND: PIPELINE,
    Role.RECEIVE: PIPELINE,
    Role.REDUCE_LAYER: REDUCTION,
    Role.REDUCE_ENDS: REDUCTION,
    Role.REDUCE_ALL: REDUCTION,
    Role.REDUCE_EMBEDDING: REDUCTION,
    Role.GATHER_UPDATED: GATHERING,
    Role.GATHER_ROOT: GATHERING,
    Role.GATHER_LAYER: GATHERING,
}

#: Tasks of the head alone, with the pass that they are a part of.
_HEADS = {
    Role.HEAD: Role.FORWARD,
    Role.HEAD_BACKWARD: Role.BACKWARD,
    Role.HEAD_INPUT_GRADIENTS: Role.INPUT_GRADIENTS,
    Role.HEAD_WEIGHT_GRADIENTS: Role.WEIGHT_GRADIENTS,
}

#: Tasks in which attention and experts have no turn.
_WITHOUT_LAYERS = {
    *_HEADS,
    Role.EMBEDDING_FORWARD,
    Role.EMBEDDING_BACKWARD,
    Role.WEIGHT_GRADIENTS,
    Role.LAYER_WEIGHT_GRADIENTS,
}

#: Tasks that sum gradients over micro-batches.
_SUMMING = {
    Role.BACKWARD,
    Role.LAYER_BACKWARD,
    Role.LAYER_BACKWARD_UNREDUCED,
    Role.WEIGHT_GRADIENTS,
    Role.LAYER_WEIGHT_GRADIENTS,
}

#: What is left of a sum by rounding, as a fraction.
_ROUNDING = 1e-9


class Part(NamedTuple):
    """What one task spends on one purpose.

    Attributes:
        group: The purpose.
        kind: What the stream is occupied with.
        seconds: By resource, one after the other.
    """

    group: str
    kind: TaskKind
    seconds: tuple[tuple[Resource, float], ...]

    @property
    def total_s(self) -> float:
        """Sum over the resources."""
        return sum(seconds for _, seconds in self.seconds)


class StepParts:
    """Costs of one problem's tasks with their reasons.

    Args:
        problem: What is trained, where and how.
    """

    def __init__(self, problem: TransformerJob) -> None:
        self._problem = problem
        self._kernels = StepKernels(problem)
        self._costs = StepCosts(problem)
        self._latencies = StepCosts(_unlimited(problem))
        software = replace(problem.software, overlap_pipeline=True)
        self._without_sends = StepCosts(replace(problem, software=software))
        self._transfers = Transfers(problem)

    def cost(self, kind: Kind) -> Cost:
        """Returns the cost of a kind of task."""
        return self._costs.of(kind)

    def of(self, kind: Kind) -> list[Part]:
        """Returns the parts of a kind of task on the device; they add up to its cost there."""
        cost, latency = self._costs.of(kind), self._latencies.of(kind)
        if kind.role.is_transfer:
            return [_transfer(_PURPOSE[kind.role], cost, latency, cost)]
        parts = self._computed(kind, cost, latency)
        if cost.transfer_s:
            parts += self._exposed(kind, cost, latency)
        return parts or [Part(kind.role.value, TaskKind.COMPUTE, ())]

    # --- kernels --------------------------------------------------------------------------------

    def _computed(self, kind: Kind, cost: Cost, latency: Cost) -> list[Part]:
        if kind.role is Role.OPTIMIZER:
            floor_s = min(latency.elementwise_s, cost.elementwise_s)
            moving_s = cost.elementwise_s - floor_s
            if not cost.compute_s:
                return []
            divided = ((Resource.MEMORY, moving_s), (Resource.KERNEL_LATENCY, floor_s))
            return [Part(OPTIMIZER, TaskKind.COMPUTE, divided)]
        own = self._own_kernels(kind)
        found: dict[str, dict[Resource, float]] = {}
        for sides, whole_s in zip(own.parts(), self._stretched(kind, cost, own), strict=True):
            own_s = sum(sides.values())
            for side, seconds in sides.items():
                resources = found.setdefault(side.group, {})
                value = seconds * whole_s / own_s if own_s else 0.0
                resources[side.resource] = resources.get(side.resource, 0.0) + value
        known_s = sum(sum(resources.values()) for resources in found.values())
        rest_s = cost.compute_s - known_s
        if rest_s > _ROUNDING * cost.compute_s:
            group = ACCUMULATION if self._accumulates(kind) else ELEMENTWISE
            resources = found.setdefault(group, {})
            resources[Resource.MEMORY] = resources.get(Resource.MEMORY, 0.0) + rest_s
        return [
            Part(group, TaskKind.COMPUTE, tuple(resources.items()))
            for group, resources in found.items()
        ]

    def _stretched(self, kind: Kind, cost: Cost, own: KernelSides) -> tuple[float, ...]:
        """Time of each model's kernels as they are in the step, overlapping with transfers."""
        product_s, _, elementwise_s = (sum(sides.values()) for sides in own.parts())
        if not self._accumulates(kind) or not product_s:
            return cost[:3]
        # What the layer's own kernels leave is the sum of gradients over micro-batches.
        slowed = cost.product_s / product_s
        return cost.product_s, cost.attention_s, min(cost.elementwise_s, elementwise_s * slowed)

    def _accumulates(self, kind: Kind) -> bool:
        summing = kind.role in _SUMMING
        return summing and self._problem.micro_batches > 1

    def _own_kernels(self, kind: Kind) -> KernelSides:
        kernels, role = self._kernels, kind.role
        first, last = self._ends(kind)
        if role in (Role.EMBEDDING_FORWARD, Role.EMBEDDING_BACKWARD):
            return kernels.embedding[role is Role.EMBEDDING_BACKWARD]
        if role in _HEADS:
            return self._head(_HEADS[role])
        layers = self._chunk(kind)
        if role in LAYER_PASSES:
            return layers
        head = self._head(role) if last else NO_KERNELS
        forward = role is Role.FORWARD
        embedded = first and role is not Role.INPUT_GRADIENTS
        embedding = kernels.embedding[not forward] if embedded else NO_KERNELS
        return embedding + layers + head if forward else head + layers + embedding

    def _head(self, role: Role) -> KernelSides:
        """Returns the kernels of the head in a pass."""
        kernels = self._kernels
        return {
            Role.FORWARD: kernels.head[0],
            Role.BACKWARD: kernels.head[1],
            Role.INPUT_GRADIENTS: kernels.head[1] - kernels.head_weights,
            Role.WEIGHT_GRADIENTS: kernels.head_weights,
        }[role]

    def _chunk(self, kind: Kind) -> KernelSides:
        """Returns the kernels of a task's layers."""
        found, role = NO_KERNELS, LAYER_PASSES.get(kind.role, kind.role)
        for layer, count in self._layers(kind):
            sides = self._kernels.layers[layer]
            own = {
                Role.FORWARD: sides.forward,
                Role.BACKWARD: sides.backward,
                Role.INPUT_GRADIENTS: sides.backward - sides.weights,
                Role.WEIGHT_GRADIENTS: sides.weights,
            }[role]
            found += own.times(count)
        return found

    def _layers(self, kind: Kind) -> list[tuple[int, int]]:
        """Returns the kinds of layers of a task, and how many of each."""
        if kind.role in LAYER_PASSES:
            return [(kind.layer, 1)]
        kinds = self._problem.chunk_kinds(kind.stage, kind.chunk)
        return [(layer, kinds.count(layer)) for layer in dict.fromkeys(kinds)]

    def _ends(self, kind: Kind) -> tuple[bool, bool]:
        """Whether a pass holds the first layer, and the last."""
        parallelism = self._problem.parallelism
        last = (parallelism.pipeline - 1, parallelism.interleave - 1)
        return kind[1:3] == (0, 0), kind[1:3] == last

    # --- transfers that nothing hides -----------------------------------------------------------

    def _exposed(self, kind: Kind, cost: Cost, latency: Cost) -> list[Part]:
        inner = self._without_sends.of(kind)
        context = _at_most(self._exchange(kind), inner)
        experts = _at_most(self._expert_exchange(kind), _less(inner, context))
        purposes = {
            TENSOR: _less(_less(inner, context), experts),
            CONTEXT: context,
            EXPERTS: experts,
            PIPELINE: _less(cost, inner),
            OFFLOAD: Cost(host_link_s=cost.host_link_s),
        }
        return [
            _transfer(group, part, latency, cost)
            for group, part in purposes.items()
            if part.transfer_s > _ROUNDING * cost.transfer_s
        ]

    def _exchange(self, kind: Kind) -> Cost:
        """What sharing keys and values adds to a pass."""
        parallelism, context = self._problem.parallelism, self._transfers.context
        if parallelism.context == 1 or kind.role in _WITHOUT_LAYERS:
            return Cost()
        whole = Cost()
        for layer, count in self._layers(kind):
            sides = self._kernels.layers[layer]
            forward = context(sides.core_forward_s, backward=False)
            one = forward
            if kind.role not in (Role.FORWARD, Role.LAYER_FORWARD):
                one = context(sides.core_backward_s, backward=True)
                if parallelism.recompute is Recompute.FULL:
                    share = chosen_share(self._problem, parallelism.recompute_layers)
                    one = total_cost(one, forward.scaled(transfers=share))
            whole = total_cost(whole, Cost(*(count * seconds for seconds in one)))
        return whole

    def _expert_exchange(self, kind: Kind) -> Cost:
        """Rows of a pass on their way to their experts and back."""
        if self._problem.parallelism.expert_ranks == 1 or kind.role in _WITHOUT_LAYERS:
            return Cost()
        backward = kind.role not in (Role.FORWARD, Role.LAYER_FORWARD)
        parallelism, again = self._problem.parallelism, 0.0
        if backward and repeats(parallelism, RecomputeModule.EXPERTS):
            again = chosen_share(self._problem, parallelism.recompute_layers)
        whole = Cost()
        for layer, count in self._layers(kind):
            exchange = self._costs.expert_exchange(layer, backward=backward)
            times = count * (1 + again)
            whole = total_cost(whole, Cost(*(times * seconds for seconds in exchange)))
        return whole


def _transfer(group: str, part: Cost, latency: Cost, whole: Cost) -> Part:
    """Divides a transfer; of the latency of all transfers of a task it has its share."""
    seconds: dict[Resource, float] = {}
    levels: Iterable[tuple[Resource, float, float, float]] = (
        (Resource.LINK, part.inside_s, latency.inside_s, whole.inside_s),
        (Resource.NETWORK, part.network_s, latency.network_s, whole.network_s),
        (Resource.HOST_LINK, part.host_link_s, latency.host_link_s, whole.host_link_s),
    )
    fixed_s = 0.0
    for resource, level_s, latency_s, whole_s in levels:
        if level_s:
            share_s = level_s * min(1.0, latency_s / whole_s)
            seconds[resource] = level_s - share_s
            fixed_s += share_s
    seconds[Resource.COLLECTIVE_LATENCY] = fixed_s
    return Part(group, TaskKind.COLLECTIVE, tuple(seconds.items()))


def _less(whole: Cost, part: Cost) -> Cost:
    return Cost(
        inside_s=max(0.0, whole.inside_s - part.inside_s),
        network_s=max(0.0, whole.network_s - part.network_s),
    )


def _at_most(part: Cost, whole: Cost) -> Cost:
    return Cost(
        inside_s=min(part.inside_s, whole.inside_s),
        network_s=min(part.network_s, whole.network_s),
    )


def _unlimited(problem: TransformerJob) -> TransformerJob:
    """The same step where moving bytes takes no time, so that latencies remain."""
    cluster = problem.cluster
    return replace(
        problem,
        cluster=replace(
            cluster,
            device=replace(cluster.device, memory_bandwidth_bytes_per_s=UNLIMITED_RATE),
            link=unlimited_link(cluster.link),
            network=unlimited_network(cluster.network),
            host_link=unlimited_host_link(cluster.host_link),
            host_memory_bandwidth_bytes_per_s=None,
        ),
    )
