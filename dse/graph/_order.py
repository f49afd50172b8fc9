"""Predecessors, followers and a topological order that respects collectives.

Graphs that differ in durations alone share the arrays of their structure, so the answers for the
last few structures are kept: a job is compiled, sampled and simulated over the same structure.
Callers must not change the lists that they get.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.errors import SimulationError
from dse.graph._cycle import describe_shortest_cycle

if TYPE_CHECKING:
    from dse.graph._graph import ExecutionGraph


class StructureKey:
    """A graph as the key of a cache: equal for graphs that differ in durations alone.

    Args:
        graph: The graph; compared by the identity of its arrays, so an edited copy is another key.
    """

    __slots__ = ("_arrays", "graph")

    def __init__(self, graph: ExecutionGraph) -> None:
        self.graph = graph
        self._arrays = (
            graph.stream,
            graph.dependency_offsets,
            graph.dependency_tasks,
            graph.collective,
        )

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._arrays)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructureKey) and all(
            mine is theirs for mine, theirs in zip(self._arrays, other._arrays, strict=True)
        )


def predecessors(graph: ExecutionGraph) -> list[list[int]]:
    """Returns, for every task, its dependencies and its predecessor on the stream, each once."""
    return _predecessors(StructureKey(graph))


@lru_cache(maxsize=8)
def _predecessors(structure: StructureKey) -> list[list[int]]:
    graph = structure.graph
    last_on_stream: dict[int, int] = {}
    offsets = graph.dependency_offsets.tolist()
    dependencies = graph.dependency_tasks.tolist()
    result: list[list[int]] = []
    for task, stream in enumerate(graph.stream.tolist()):
        waits = dependencies[offsets[task] : offsets[task + 1]]
        previous = last_on_stream.get(stream)
        if previous is not None:
            waits = [*waits, previous]
        result.append(list(dict.fromkeys(waits)))
        last_on_stream[stream] = task
    return result


class Followers(NamedTuple):
    """For every task, the tasks that wait for it, each once and in ascending order.

    One list for all: a hundred thousand small ones take longer to make than to use.

    Attributes:
        offsets: Where the followers of each task begin in `tasks`, and the end of the last.
        tasks: Followers of the first task, then of the second, and so on.
    """

    offsets: list[int]
    tasks: list[int]

    def of(self, task: int) -> list[int]:
        """Returns the followers of one task."""
        return self.tasks[self.offsets[task] : self.offsets[task + 1]]


def followers(graph: ExecutionGraph) -> Followers:
    """Returns, for every task, the tasks that wait for it."""
    return _followers(StructureKey(graph))


@lru_cache(maxsize=8)
def _followers(structure: StructureKey) -> Followers:
    graph = structure.graph
    count = graph.task_count
    by_stream = np.argsort(graph.stream, kind="stable")
    neighbours = graph.stream[by_stream[1:]] == graph.stream[by_stream[:-1]]
    awaited = np.concatenate((graph.dependency_tasks, by_stream[:-1][neighbours])).astype(np.int64)
    lengths = np.diff(graph.dependency_offsets)
    waiting = np.concatenate((np.repeat(np.arange(count), lengths), by_stream[1:][neighbours]))
    # One number for each pair: sorted and without repetitions in one go.
    pairs = np.unique(awaited * count + waiting)
    offsets = np.searchsorted(pairs, np.arange(count + 1) * count)
    return Followers(offsets.tolist(), (pairs % max(count, 1)).tolist())


def wait_counts(graph: ExecutionGraph) -> list[int]:
    """Returns, for every task, how many other tasks it waits for; a list of the caller's own."""
    waiting = np.array(followers(graph).tasks, dtype=np.int64)
    counts: list[int] = np.bincount(waiting, minlength=graph.task_count).tolist()
    return counts


def invert_waits(waits: list[list[int]]) -> list[list[int]]:
    """Inverts predecessor lists: returns, for every task, the tasks that wait for it."""
    followers: list[list[int]] = [[] for _ in waits]
    for task, others in enumerate(waits):
        for other in others:
            followers[other].append(task)
    return followers


def collective_members(graph: ExecutionGraph) -> dict[int, list[int]]:
    """Returns the tasks of each collective, in ascending order of task."""
    members: dict[int, list[int]] = {}
    tasks = np.flatnonzero(graph.collective >= 0)
    for task, index in zip(tasks.tolist(), graph.collective[tasks].tolist(), strict=True):
        members.setdefault(index, []).append(task)
    return members


def topological_order(graph: ExecutionGraph) -> list[int]:
    """Returns the tasks so that each comes after all that it and its collective wait for.

    Members of a collective come one after the other.

    Raises:
        SimulationError: Some tasks wait for each other; one shortest cycle is named. Two
            collectives in different order on two streams are such a cycle.
    """
    return _topological_order(StructureKey(graph))


@lru_cache(maxsize=8)
def _topological_order(structure: StructureKey) -> list[int]:
    graph = structure.graph
    offsets, followers = _followers(structure)
    members = collective_members(graph)
    collective = graph.collective.tolist()
    open_waits = wait_counts(graph)
    absent = {index: len(tasks) for index, tasks in members.items()}
    ready = [task for task, count in enumerate(open_waits) if count == 0]
    order: list[int] = []
    while ready:
        task = ready.pop()
        group = [task]
        if collective[task] >= 0:
            absent[collective[task]] -= 1
            if absent[collective[task]]:
                continue
            group = members[collective[task]]
        order.extend(group)
        for member in group:
            for follower in followers[offsets[member] : offsets[member + 1]]:
                open_waits[follower] -= 1
                if open_waits[follower] == 0:
                    ready.append(follower)
    if len(order) < graph.task_count:
        stuck = sorted(set(range(graph.task_count)).difference(order))
        raise SimulationError(describe_shortest_cycle(graph, _predecessors(structure), stuck))
    return order
