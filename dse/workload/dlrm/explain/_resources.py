"""Resources and operator group of every task of a predicted iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.explanation import ROW, Resource, TaskResources, resource_names
from dse.graph import TaskKind
from dse.workload._iteration import DurationClass
from dse.workload.dlrm.explain._counterfactuals import (
    KERNEL_SLOTS,
    all_reduce_sides,
    dense_sides,
    exchange_sides,
    slot_sides,
)
from dse.workload.dlrm.iteration._operators import dense_buckets, stack_operators
from dse.workload.dlrm.scoring._slots import Slot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.model import Operator
    from dse.sharding import ShardingPlan
    from dse.workload.dlrm._problem import DlrmProblem
    from dse.workload.dlrm.explain._counterfactuals import CollectiveSides, KernelSides
    from dse.workload.dlrm.scoring._scorer import PlanScorer
    from dse.workload.dlrm.scoring._slots import LayoutGraph

#: Names of tasks that load samples, on the host and from storage.
_LOADING = ("load the next batch", "read samples")


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Parts of all tasks, filled class by class.

    Attributes:
        overlapped_s: As of :class:`TaskResources`.
        sequential_s: As of :class:`TaskResources`.
        duration_s: What they may add up to; shape `(tasks,)`.
    """

    overlapped_s: NDArray[np.float64]
    sequential_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]

    def add_sequential(
        self, resource: Resource, tasks: NDArray[np.int64], seconds: NDArray[np.float64]
    ) -> None:
        self.sequential_s[ROW[resource], tasks] += seconds

    def add_overlapped(
        self, resource: Resource, tasks: NDArray[np.int64], seconds: NDArray[np.float64]
    ) -> None:
        self.overlapped_s[ROW[resource], tasks] += seconds


def plan_resources(scorer: PlanScorer, plan: ShardingPlan, layout: LayoutGraph) -> TaskResources:
    """Returns what the tasks of a plan's graph keep busy.

    Args:
        scorer: The performance model of the problem.
        plan: A plan that has been checked against model and cluster.
        layout: The plan's graph, with its durations.
    """
    problem, graph = scorer.problem, layout.graph
    shape = (len(Resource), graph.task_count)
    parts = _Parts(np.zeros(shape), np.zeros(shape), graph.duration_s)
    _fill_host(layout, parts)
    _fill_copies(problem, layout, parts)
    _fill_dense(problem, layout, parts)
    _fill_all_reduces(problem, layout, parts)
    _fill_slots(scorer, plan, layout, parts)
    names = resource_names(problem.cluster, problem.precision)
    return TaskResources.of(graph.duration_s, parts.overlapped_s, parts.sequential_s, names)


def operators_by_name(problem: DlrmProblem) -> dict[str, Operator]:
    """Returns the dense operators of a rank by the names of their tasks."""
    stack = stack_operators(problem)
    phases = (
        stack.bottom_forward,
        stack.first_bottom_forward,
        stack.forward,
        stack.backward,
        stack.bottom_backward,
        stack.first_bottom_backward,
        stack.optimizer,
        stack.key_search,
    )
    return {operator.name: operator for phase in phases for operator in phase}


def all_reduce_buckets(layout: LayoutGraph) -> NDArray[np.int64]:
    """Returns which bucket each task reduces, or -1; shape `(tasks,)`."""
    graph = layout.graph
    constant = np.ones(graph.task_count, dtype=bool)
    constant[layout.slot_task] = False
    tasks = np.flatnonzero(constant & (graph.kind == TaskKind.COLLECTIVE))
    bucket = np.full(graph.task_count, -1, dtype=np.int64)
    # Collectives are numbered in the order in which they are issued.
    bucket[tasks] = np.unique(graph.collective[tasks], return_inverse=True)[1]
    return bucket


def _fill_host(layout: LayoutGraph, parts: _Parts) -> None:
    graph = layout.graph
    loading = np.array([name in _LOADING for name in graph.names])
    host = graph.kind == TaskKind.HOST
    for resource, chosen in ((Resource.LOADER, loading), (Resource.HOST, host & ~loading)):
        tasks = np.flatnonzero(chosen)
        parts.add_sequential(resource, tasks, parts.duration_s[tasks])


def _fill_copies(problem: DlrmProblem, layout: LayoutGraph, parts: _Parts) -> None:
    tasks = np.flatnonzero(layout.duration_class == DurationClass.COPY)
    latency_s = np.minimum(problem.cluster.host_link.latency_s, parts.duration_s[tasks])
    parts.add_sequential(Resource.KERNEL_LATENCY, tasks, latency_s)
    parts.add_sequential(Resource.HOST_LINK, tasks, parts.duration_s[tasks] - latency_s)


def _fill_dense(problem: DlrmProblem, layout: LayoutGraph, parts: _Parts) -> None:
    operators = operators_by_name(problem)
    tasks = np.flatnonzero(layout.duration_class == DurationClass.DENSE)
    known = [task for task in tasks.tolist() if layout.graph.names[task] in operators]
    order = {name: index for index, name in enumerate(operators)}
    which = np.array([order[layout.graph.names[task]] for task in known], dtype=np.int64)
    if len(known):
        sides = dense_sides(problem, list(operators.values()))
        _add_kernels(parts, np.array(known), which, sides)


def _fill_slots(
    scorer: PlanScorer, plan: ShardingPlan, layout: LayoutGraph, parts: _Parts
) -> None:
    problem = scorer.problem
    bits, features = scorer.layout_and_features(plan)
    ranks = features.shape[1]
    which = layout.slot_kind * ranks + layout.slot_rank
    is_kernel = np.isin(layout.slot_kind, list(KERNEL_SLOTS))
    _add_kernels(
        parts,
        layout.slot_task[is_kernel],
        which[is_kernel],
        slot_sides(problem, bits, features),
    )
    # A prefetch of rows is a copy, like those of batches.
    is_exchange = ~is_kernel & (layout.slot_kind != Slot.ROW_PREFETCH)
    if is_exchange.any():
        tasks, chosen = layout.slot_task[is_exchange], which[is_exchange]
        _add_collectives(parts, tasks, chosen, exchange_sides(problem, bits, features))


def _fill_all_reduces(problem: DlrmProblem, layout: LayoutGraph, parts: _Parts) -> None:
    bucket = all_reduce_buckets(layout)
    tasks = np.flatnonzero(bucket >= 0)
    sizes = np.array([size for size, _ in dense_buckets(problem)], dtype=np.float64)
    if len(tasks) and bucket.max() < len(sizes):
        _add_collectives(parts, tasks, bucket[tasks], all_reduce_sides(problem, sizes))


def _add_kernels(
    parts: _Parts, tasks: NDArray[np.int64], which: NDArray[np.int64], sides: KernelSides
) -> None:
    """Divides kernels; all beyond the latency is stretched alike to the duration.

    A learned duration that is shorter than the latency is latency.
    """
    duration_s = parts.duration_s[tasks]
    arithmetic_s, memory_s, cache_s, latency_s, host_link_s, other_s = (
        side.ravel()[which]
        for side in (
            sides.arithmetic_s,
            sides.memory_s,
            sides.cache_s,
            sides.latency_s,
            sides.host_link_s,
            sides.other_s,
        )
    )
    host_link_s = np.minimum(host_link_s, duration_s)
    latency_s = np.minimum(latency_s, duration_s - host_link_s)
    other_s = np.minimum(other_s, duration_s - host_link_s - latency_s)
    if sides.cache_overlaps:
        beside_s, after_s = cache_s, np.zeros_like(cache_s)
    else:
        # What memory and cache serve one after the other overlaps with arithmetic; where that is
        # longer, the cache hides behind it too.
        hidden = arithmetic_s > memory_s + cache_s
        beside_s = np.zeros_like(cache_s)
        after_s = np.where(hidden, 0.0, cache_s)
    overlapped = {
        Resource.ARITHMETIC: np.maximum(0.0, arithmetic_s - after_s),
        Resource.MEMORY: memory_s,
        Resource.CACHE: beside_s,
    }
    busy_s = np.maximum.reduce(list(overlapped.values())) + after_s
    rest_s = duration_s - host_link_s - latency_s - other_s
    stretch = np.divide(rest_s, busy_s, out=np.zeros_like(rest_s), where=busy_s > 0)
    for resource, seconds in overlapped.items():
        parts.add_overlapped(resource, tasks, seconds * stretch)
    parts.add_sequential(Resource.CACHE, tasks, after_s * stretch)
    parts.add_sequential(Resource.KERNEL_LATENCY, tasks, latency_s)
    parts.add_sequential(Resource.HOST_LINK, tasks, host_link_s)
    parts.add_sequential(Resource.OTHER, tasks, other_s)


def _add_collectives(
    parts: _Parts, tasks: NDArray[np.int64], which: NDArray[np.int64], sides: CollectiveSides
) -> None:
    """Divides collectives whose slower level hides all but a share of the faster one.

    With the share `v` of it that stays visible, `t = slower + v · faster`, which is a longest one
    of both and a sum of both: `(1 − v) · max(inside, between) + v · (inside + between)`.
    """
    duration_s = parts.duration_s[tasks]
    inside_s, inside_latency_s, between_s, between_latency_s = (
        side.ravel()[which]
        for side in (
            sides.inside_s,
            sides.inside_latency_s,
            sides.between_s,
            sides.between_latency_s,
        )
    )
    slower_s, faster_s = np.maximum(inside_s, between_s), np.minimum(inside_s, between_s)
    # The share follows from the durations, so the collective model alone decides it.
    visible = np.divide(
        duration_s - slower_s, faster_s, out=np.zeros_like(duration_s), where=faster_s > 0
    ).clip(0.0, 1.0)
    inside_latency_s = np.minimum(inside_latency_s, inside_s)
    between_latency_s = np.minimum(between_latency_s, between_s)
    inside_decides = inside_s >= between_s
    deciding_latency_s = np.where(inside_decides, inside_latency_s, between_latency_s)
    other_latency_s = np.where(inside_decides, between_latency_s, inside_latency_s)
    latency_s = np.minimum(deciding_latency_s + visible * other_latency_s, duration_s)
    moved_s = slower_s + visible * faster_s - latency_s
    # What slows a collective down from outside, such as concurrent kernels, takes its bandwidth.
    stretch = np.divide(
        duration_s - latency_s, moved_s, out=np.zeros_like(moved_s), where=moved_s > 0
    )
    for resource, level_s, own_latency_s in (
        (Resource.LINK, inside_s, inside_latency_s),
        (Resource.NETWORK, between_s, between_latency_s),
    ):
        beside_s = np.maximum(0.0, level_s - deciding_latency_s)
        parts.add_overlapped(resource, tasks, stretch * (1.0 - visible) * beside_s)
        parts.add_sequential(resource, tasks, stretch * visible * (level_s - own_latency_s))
    parts.add_sequential(Resource.COLLECTIVE_LATENCY, tasks, latency_s)
