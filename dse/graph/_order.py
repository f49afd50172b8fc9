"""Who waits for whom: predecessor lists and a topological order that respects meetings.

Graphs that differ in durations alone share the arrays of their structure, so the answers for the
last few structures are kept: a problem is compiled, sampled and simulated over the same one.
Callers must not change the lists that they get.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dse.errors import SimulationError
from dse.graph._cycle import describe_shortest_cycle

if TYPE_CHECKING:
    from dse.graph._graph import ExecutionGraph


class _Structure:
    """A graph as the key of a cache: equal to graphs that share its arrays, whatever they last."""

    __slots__ = ("_arrays", "graph")

    def __init__(self, graph: ExecutionGraph) -> None:
        self.graph = graph
        self._arrays = (
            graph.lane,
            graph.dependency_offsets,
            graph.dependency_tasks,
            graph.meeting,
        )

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._arrays)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Structure) and all(
            mine is theirs for mine, theirs in zip(self._arrays, other._arrays, strict=True)
        )


def predecessors(graph: ExecutionGraph) -> list[list[int]]:
    """Returns, for every task, its dependencies and its predecessor on the lane, each once."""
    return _predecessors(_Structure(graph))


@lru_cache(maxsize=8)
def _predecessors(structure: _Structure) -> list[list[int]]:
    graph = structure.graph
    last_on_lane: dict[int, int] = {}
    offsets = graph.dependency_offsets.tolist()
    dependencies = graph.dependency_tasks.tolist()
    result: list[list[int]] = []
    for task, lane in enumerate(graph.lane.tolist()):
        waits = dependencies[offsets[task] : offsets[task + 1]]
        previous = last_on_lane.get(lane)
        if previous is not None:
            waits = [*waits, previous]
        result.append(list(dict.fromkeys(waits)))
        last_on_lane[lane] = task
    return result


def followers_of(waits: list[list[int]]) -> list[list[int]]:
    """Turns predecessor lists around: for every task, the tasks that wait for it."""
    followers: list[list[int]] = [[] for _ in waits]
    for task, others in enumerate(waits):
        for other in others:
            followers[other].append(task)
    return followers


def meeting_members(graph: ExecutionGraph) -> dict[int, list[int]]:
    """Returns the tasks of each meeting, in ascending order of task."""
    members: dict[int, list[int]] = {}
    for task, index in enumerate(graph.meeting.tolist()):
        if index >= 0:
            members.setdefault(index, []).append(task)
    return members


def topological_order(graph: ExecutionGraph) -> list[int]:
    """Returns the tasks so that each comes after all it waits for, its meeting's waits included.

    Members of a meeting come one after the other.

    Raises:
        SimulationError: Some tasks wait for each other; one shortest cycle is named. Two lanes
            that meet in different order are such a cycle.
    """
    return _topological_order(_Structure(graph))


@lru_cache(maxsize=8)
def _topological_order(structure: _Structure) -> list[int]:
    graph = structure.graph
    waits = _predecessors(structure)
    followers = followers_of(waits)
    members = meeting_members(graph)
    meeting = graph.meeting.tolist()
    open_waits = [len(others) for others in waits]
    absent = {index: len(tasks) for index, tasks in members.items()}
    ready = [task for task, count in enumerate(open_waits) if count == 0]
    order: list[int] = []
    while ready:
        task = ready.pop()
        group = [task]
        if meeting[task] >= 0:
            absent[meeting[task]] -= 1
            if absent[meeting[task]]:
                continue
            group = members[meeting[task]]
        order.extend(group)
        for member in group:
            for follower in followers[member]:
                open_waits[follower] -= 1
                if open_waits[follower] == 0:
                    ready.append(follower)
    if len(order) < graph.task_count:
        stuck = sorted(set(range(graph.task_count)).difference(order))
        raise SimulationError(describe_shortest_cycle(graph, waits, stuck))
    return order
