"""Time breakdown of each rank, by an exact sweep over its time line."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.graph import StructureKey, TaskKind, predecessors
from dse.simulate._timeline import RankBreakdown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph
    from dse.simulate._timeline import Timeline

#: Structures whose waits are kept; a study has a few dozen.
_KEPT = 48


def breakdown(timeline: Timeline) -> tuple[RankBreakdown, ...]:
    """Splits the makespan of every rank as :class:`RankBreakdown` defines.

    Returns:
        One entry per rank, in ascending order of rank.
    """
    graph, makespan_s = timeline.graph, timeline.makespan_s
    late = late_launches(graph, timeline.end_s[:, None])
    parts: list[RankBreakdown] = []
    for mine in tasks_by_rank(graph).values():
        columns = (timeline.start_s[mine, None], timeline.end_s[mine, None], late[mine])
        parts += _split(graph.kind[mine], *columns, makespan_s)
    return tuple(parts)


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
    makespan_s = float(end_s.max(initial=0.0))
    return _split(graph.kind, start_s, end_s, late_launches(graph, end_s), makespan_s)


def late_launches(graph: ExecutionGraph, end_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns the tasks of the host that a rank waits for, whatever its device does meanwhile.

    From the last task of each rank the chain of what was waited for is followed back, within the
    rank: of the predecessor on the stream and the dependencies that which ended last, and of
    several on the same moment that on the same stream, otherwise that with the lowest index. The
    host decides how long the rank takes wherever a task of the host is on that chain.

    Args:
        graph: Tasks of one or several ranks.
        end_s: When they end; shape `(tasks, copies)`.

    Returns:
        Whether each task is one of them; shape `(tasks, copies)`.
    """
    found = np.zeros(end_s.shape, dtype=bool)
    if not end_s.size:
        return found
    before = _waited_for(graph, end_s)
    ranks = [mine for mine in tasks_by_rank(graph).values() if len(mine)]
    task = np.concatenate([mine[end_s[mine].argmax(axis=0)] for mine in ranks])
    copy = np.tile(np.arange(end_s.shape[1]), len(ranks))
    while len(task):
        found[task, copy] = True
        task = before[task, copy]
        goes_on = task >= 0
        if not goes_on.all():
            task, copy = task[goes_on], copy[goes_on]
    return np.asarray(found & (graph.kind == TaskKind.HOST)[:, None])


class _Waits(NamedTuple):
    """What tasks wait for on their own rank, as one list for all.

    Attributes:
        tasks: Tasks that wait for any; shape `(waiting,)`.
        first: Where the list of each of them begins; shape `(waiting,)`.
        others: What they wait for, of equal candidates the preferred one first.
    """

    tasks: NDArray[np.int64]
    first: NDArray[np.int64]
    others: NDArray[np.int64]


@lru_cache(maxsize=_KEPT)
def _own_waits(structure: StructureKey) -> _Waits:
    graph = structure.graph
    rank, stream = ranks_of_tasks(graph).tolist(), graph.stream.tolist()
    tasks: list[int] = []
    first: list[int] = []
    others: list[int] = []
    for task, waits in enumerate(predecessors(graph)):
        own = [other for other in waits if rank[other] == rank[task]]
        if own:
            tasks.append(task)
            first.append(len(others))
            # On the same stream the nearest task has the highest index.
            same = [other for other in own if stream[other] == stream[task]]
            others += sorted(same, reverse=True)
            others += sorted(set(own) - set(same))
    return _Waits(*(np.array(each, dtype=np.int64) for each in (tasks, first, others)))


def _waited_for(graph: ExecutionGraph, end_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns what each task waited for last on its own rank, or -1; shape `(tasks, copies)`."""
    tasks, first, others = _own_waits(StructureKey(graph))
    found = np.full(end_s.shape, -1, dtype=np.int64)
    if not len(tasks):
        return found
    ends_s = end_s[others]
    lengths = np.diff(first, append=len(others))
    latest = ends_s == np.repeat(np.maximum.reduceat(ends_s, first), lengths, axis=0)
    place = np.where(latest, np.arange(len(others))[:, None], len(others))
    found[tasks] = others[np.minimum.reduceat(place, first)]
    return found


def _split(
    kind: NDArray[np.int8],
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    late: NDArray[np.bool_],
    makespan_s: float,
) -> tuple[RankBreakdown, ...]:
    """Splits the makespan of each column; shapes `(tasks,)` and `(tasks, columns)`."""
    host, compute, copy = (
        kind == wanted for wanted in (TaskKind.HOST, TaskKind.COMPUTE, TaskKind.COPY)
    )
    # A task of the host that nothing waits for has no length here.
    counted_s = np.where(late | ~host[:, None], end_s, start_s)
    # What the first k kinds cover together, less what the first k − 1 cover, is the k-th share;
    # where that is nothing, rounding may leave less.
    covered = [
        _covered_s(start_s[tasks], counted_s[tasks])
        for tasks in (host, host | compute, ~copy, np.ones(len(kind), dtype=bool))
    ]
    shares_s = np.maximum(0.0, np.diff(covered, axis=0))
    return tuple(
        RankBreakdown(
            compute_s=compute_s + copy_s,
            exposed_communication_s=communication_s,
            host_s=host_s,
            idle_s=max(0.0, makespan_s - busy_s),
        )
        for host_s, compute_s, communication_s, copy_s, busy_s in np.stack(
            (covered[0], *shares_s, covered[-1])
        ).T.tolist()
    )


def ranks_of_tasks(graph: ExecutionGraph) -> NDArray[np.int64]:
    """Returns the rank of each task; shape `(tasks,)`."""
    of_stream = np.array([stream.rank for stream in graph.streams], dtype=np.int64)
    return of_stream[graph.stream] if len(of_stream) else np.zeros(0, dtype=np.int64)


def tasks_by_rank(graph: ExecutionGraph) -> dict[int, NDArray[np.int64]]:
    """Returns the tasks of each rank, ranks and tasks ascending; ranks may have none."""
    rank_of = ranks_of_tasks(graph)
    order = np.argsort(rank_of, kind="stable")
    ranks = sorted({stream.rank for stream in graph.streams})
    ends = np.searchsorted(rank_of[order], ranks, side="right")
    return dict(zip(ranks, np.split(order, ends[:-1]), strict=True))


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
    covered_s = reach[-1] - start[0] - gap.sum(axis=0)
    return np.asarray(np.maximum(0.0, covered_s))
