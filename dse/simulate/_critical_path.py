"""Critical path of a simulated graph, and the slack of its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import SimulationError
from dse.graph import collective_members, predecessors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from dse.simulate._symmetric import SymmetricRanks
    from dse.simulate._timeline import Timeline


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """The tasks that follow each other without a pause from time zero to the end.

    Each starts at the moment at which the one before it ends, so their times add up to the whole.
    A task that is lengthened lengthens the whole by as much; shortening tasks off the path has no
    effect. Of several paths of that length one is taken.

    Attributes:
        tasks: In order of time; shape `(path,)`, int64.
        seconds: What each contributes, in seconds; shape `(path,)`, float64.
        arrivals: Task whose readiness started each of them: itself, or the member of its
            collective that came last, on whose stream the path goes on; shape `(path,)`, int64.
        length_s: End of the last task, in seconds.
    """

    tasks: NDArray[np.int64]
    seconds: NDArray[np.float64]
    arrivals: NDArray[np.int64]
    length_s: float


def critical_path(timeline: Timeline, end_tasks: Iterable[int] | None = None) -> CriticalPath:
    """Follows from the end what each task waited for last.

    That is a task's predecessor on the stream or one of its dependencies; for a member of a
    collective, one of those of the member that arrived last. Of several that end together the one
    on the same stream is taken, otherwise the one with the lowest index; of members that arrive
    together the one on the path, otherwise the one with the lowest index.

    Args:
        timeline: What was simulated.
        end_tasks: Tasks of which the last one ends the path; all by default.

    Raises:
        SimulationError: There is no such task.
    """
    graph = timeline.graph
    ends = _chosen(timeline, end_tasks)
    if not len(ends):
        nothing = np.zeros(0, dtype=np.int64)
        return CriticalPath(nothing, np.zeros(0), nothing.copy(), 0.0)
    waits, members = predecessors(graph), collective_members(graph)
    end_s, ready_s, stream = timeline.end_s, timeline.ready_s, graph.stream

    def lateness(task: int, other: int) -> tuple[float, bool, int]:
        same = bool(stream[task] == stream[other])
        # On the same stream the nearest task has the highest index.
        return float(end_s[other]), same, other if same else -other

    task = int(ends[np.argmax(end_s[ends])])
    tasks, arrivals = [], []
    while True:
        arrival = task
        if graph.collective[task] >= 0:
            came = members[int(graph.collective[task])]
            last = came[int(np.argmax(ready_s[came]))]
            arrival = task if ready_s[task] == ready_s[last] else last
        tasks.append(task)
        arrivals.append(arrival)
        if not waits[arrival]:
            break
        task = max(waits[arrival], key=partial(lateness, arrival))
    path = np.array(tasks[::-1], dtype=np.int64)
    return CriticalPath(
        tasks=path,
        seconds=np.diff(end_s[path], prepend=0.0),
        arrivals=np.array(arrivals[::-1], dtype=np.int64),
        length_s=float(end_s[path[-1]]),
    )


def path_over_copies(
    ranks: SymmetricRanks, end_s: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns the critical path through all copies of a graph, as :func:`critical_path` takes it.

    Args:
        ranks: The graph and its copies.
        end_s: When the tasks end; shape `(tasks, copies)`.

    Returns:
        Tasks in order of time, and what each contributes in seconds; both of shape `(path,)`.
    """
    graph = ranks.graph
    if not end_s.size:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    waits, members = predecessors(graph), collective_members(graph)
    collective, stream = graph.collective.tolist(), graph.stream.tolist()

    def ready_s(task: int, copies: NDArray[np.int64]) -> NDArray[np.float64]:
        own = waits[task]
        return end_s[own][:, copies].max(axis=0) if own else np.zeros(len(copies))

    def lateness(task: int, copy: int, other: int) -> tuple[float, bool, int]:
        same = stream[task] == stream[other]
        return float(end_s[other, copy]), same, other if same else -other

    task, copy = (int(index) for index in np.unravel_index(end_s.argmax(), end_s.shape))
    tasks, ends_s = [], []
    while True:
        tasks.append(task)
        ends_s.append(float(end_s[task, copy]))
        index = collective[task]
        if index >= 0:
            together = ranks.together(ranks.scopes[index], copy)
            came = members[index]
            arrivals_s = np.stack([ready_s(member, together) for member in came])
            if ready_s(task, np.array([copy]))[0] < arrivals_s.max():
                row, column = divmod(int(arrivals_s.argmax()), len(together))
                task, copy = came[row], int(together[column])
        if not waits[task]:
            break
        task = max(waits[task], key=partial(lateness, task, copy))
    return np.array(tasks[::-1], dtype=np.int64), np.diff(ends_s[::-1], prepend=0.0)


def _chosen(timeline: Timeline, end_tasks: Iterable[int] | None) -> NDArray[np.int64]:
    count = timeline.graph.task_count
    if end_tasks is None:
        return np.arange(count)
    ends = np.unique(np.fromiter(end_tasks, dtype=np.int64))
    if not len(ends) or ends[0] < 0 or ends[-1] >= count:
        raise SimulationError(
            f"end tasks {ends.tolist()}; expected at least one, each from 0 to {count - 1}"
        )
    return ends
