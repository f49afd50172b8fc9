"""Time breakdown of each rank, by an exact sweep over its time line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.graph import TaskKind
from dse.simulate._timeline import RankBreakdown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph
    from dse.simulate._timeline import Timeline


def breakdown(timeline: Timeline) -> tuple[RankBreakdown, ...]:
    """Splits the makespan of every rank as :class:`RankBreakdown` defines.

    Returns:
        One entry per rank, in ascending order of rank.
    """
    graph = timeline.graph
    rank_of_stream = np.array([stream.rank for stream in graph.streams], dtype=np.int64)
    rank_of_task = rank_of_stream[graph.stream] if graph.streams else np.zeros(0, dtype=np.int64)
    return tuple(
        _rank_breakdown(timeline, rank_of_task == rank) for rank in np.unique(rank_of_stream)
    )


def breakdown_of_copies(
    graph: ExecutionGraph, start_s: NDArray[np.float64], end_s: NDArray[np.float64]
) -> tuple[RankBreakdown, ...]:
    """Splits the makespan of every copy of one rank's graph.

    Args:
        graph: Tasks of one rank.
        start_s: When they start; shape `(tasks, copies)`.
        end_s: When they end; same shape.

    Returns:
        One entry per copy.
    """
    kind = graph.kind
    device = (kind == TaskKind.COMPUTE) | (kind == TaskKind.COPY)
    covered = [
        _covered_s(start_s[tasks], end_s[tasks])
        for tasks in (
            device,
            device | (kind == TaskKind.COLLECTIVE),
            np.ones(len(kind), dtype=bool),
        )
    ]
    makespan_s = float(end_s.max(initial=0.0))
    return tuple(
        RankBreakdown(
            compute_s=compute_s,
            exposed_communication_s=transfer_s - compute_s,
            host_s=all_s - transfer_s,
            idle_s=makespan_s - all_s,
        )
        for compute_s, transfer_s, all_s in np.array(covered).T.tolist()
    )


def _rank_breakdown(timeline: Timeline, mine: NDArray[np.bool_]) -> RankBreakdown:
    kind = timeline.graph.kind
    device = mine & ((kind == TaskKind.COMPUTE) | (kind == TaskKind.COPY))
    transfer = mine & (kind == TaskKind.COLLECTIVE)
    host = mine & (kind == TaskKind.HOST)
    # What the first k kinds cover together, less what the first k − 1 cover, is the k-th share.
    covered = [
        covered_s(timeline.start_s[tasks], timeline.end_s[tasks])
        for tasks in (device, device | transfer, device | transfer | host)
    ]
    return RankBreakdown(
        compute_s=covered[0],
        exposed_communication_s=covered[1] - covered[0],
        host_s=covered[2] - covered[1],
        idle_s=timeline.makespan_s - covered[2],
    )


def covered_s(start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> float:
    """Returns the length of the union of intervals, in seconds.

    Args:
        start_s: Their starts; shape `(intervals,)`.
        end_s: Their ends, none before its start; shape `(intervals,)`.
    """
    return float(_covered_s(start_s[:, None], end_s[:, None])[0])


def _covered_s(start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the length of the union of the intervals of each column; shape `(columns,)`."""
    if not len(start_s):
        return np.zeros(start_s.shape[1])
    order = np.argsort(start_s, axis=0, kind="stable")
    start, end = (np.take_along_axis(times, order, axis=0) for times in (start_s, end_s))
    reach = np.maximum.accumulate(end, axis=0)
    # A new stretch begins where a task starts after all earlier ones have ended.
    gap = np.maximum(0.0, start[1:] - reach[:-1])
    return np.asarray(reach[-1] - start[0] - gap.sum(axis=0))
