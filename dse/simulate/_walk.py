"""Walk through the tasks of a graph, cached by structure.

Graphs that differ in durations alone share their arrays, so the last few answers are kept.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from dse.graph import StructureKey, collective_members, predecessors, topological_order

if TYPE_CHECKING:
    from dse.graph import ExecutionGraph

#: Structures that are kept; a study has a few dozen.
_KEPT = 48


class Visit(NamedTuple):
    """One task.

    Attributes:
        task: Its number.
        collective: Its collective, or -1.
        waits: What it waits for; for the first member of a collective what all members wait for,
            and None for the other members, which start with the first one.
    """

    task: int
    collective: int
    waits: list[int] | None


class Walk(NamedTuple):
    """All tasks.

    Attributes:
        visits: Each task after all that it waits for.
        last: Tasks that no other one waits for.
        members: Tasks of each collective.
    """

    visits: list[Visit]
    last: list[int]
    members: dict[int, list[int]]


class LiveVisit(NamedTuple):
    """One task, with the places of the ends that something still waits for.

    Attributes:
        task: Its number.
        collective: Its collective if it is the first member of one, or -1.
        waits: Places of what it waits for; for other members of a collective that of its start.
        start: Place of the start of the collective, or -1.
        end: Place of its own end; one that is read for the last time here may be taken again.
        last: Whether nothing waits for it.
    """

    task: int
    collective: int
    waits: list[int]
    start: int
    end: int
    last: bool


class LiveWalk(NamedTuple):
    """All tasks, each after all that it waits for.

    Attributes:
        visits: The tasks.
        places: How many moments have to be kept at once.
    """

    visits: list[LiveVisit]
    places: int


def walk_graph(graph: ExecutionGraph) -> Walk:
    """Returns the walk through a graph; callers must not change it.

    Raises:
        SimulationError: Some tasks wait for each other.
    """
    return _walk(StructureKey(graph))


@lru_cache(maxsize=_KEPT)
def _walk(structure: StructureKey) -> Walk:
    graph = structure.graph
    collective: list[int] = graph.collective.tolist()
    waits, members = predecessors(graph), collective_members(graph)
    seen: set[int] = set()
    visits = []
    order = topological_order(graph)
    for task in order:
        index = collective[task]
        if index < 0:
            visits.append(Visit(task, index, waits[task]))
        elif index in seen:
            visits.append(Visit(task, index, None))
        else:
            seen.add(index)
            awaited = {other for member in members[index] for other in waits[member]}
            visits.append(Visit(task, index, sorted(awaited)))
    followed = {other for others in waits for other in others}
    return Walk(visits, [task for task in order if task not in followed], members)


def live_walk(graph: ExecutionGraph) -> LiveWalk:
    """Returns the walk of :func:`walk_graph` for those who only want the last end of all.

    A step of a hundred thousand tasks keeps some dozens of moments at once, which stay in the
    processor's cache.

    Raises:
        SimulationError: Some tasks wait for each other.
    """
    return _live_walk(StructureKey(graph))


@lru_cache(maxsize=_KEPT)
def _live_walk(structure: StructureKey) -> LiveWalk:
    walk = _walk(structure)
    # How often each end is still read, and each start of a collective by its other members.
    reads = Counter(other for visit in walk.visits for other in visit.waits or ())
    members = {index: len(tasks) - 1 for index, tasks in walk.members.items()}
    place_of_end: dict[int, int] = {}
    place_of_start: dict[int, int] = {}
    free: list[int] = []
    places = 0

    def take() -> int:
        nonlocal places
        if free:
            return free.pop()
        places += 1
        return places - 1

    visits = []
    for task, index, awaited in walk.visits:
        if awaited is None:
            start, end = -1, take()
            waits = [place_of_start[index]]
            members[index] -= 1
            if not members[index]:
                free.append(waits[0])
        else:
            waits = [place_of_end[other] for other in awaited]
            start = take() if index >= 0 else -1
            place_of_start[index] = start
            # The maximum of more than two is taken in several steps, in the place of the end.
            end = take() if len(waits) > 2 else -1
            for other in awaited:
                reads[other] -= 1
                if not reads[other]:
                    free.append(place_of_end[other])
            end = take() if end < 0 else end
            if index >= 0 and not members[index]:
                free.append(start)
        first = index if awaited is not None else -1
        last = not reads[task]
        visits.append(LiveVisit(task, first, waits, start, end, last))
        place_of_end[task] = end
        if last:
            free.append(end)
    return LiveWalk(visits, places)
