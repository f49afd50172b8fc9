"""Walk through the tasks of a graph, cached by structure.

Graphs that differ in durations alone share their arrays, so the last few answers are kept.
"""

from __future__ import annotations

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
