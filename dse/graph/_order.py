"""Who waits for whom: predecessor lists and a topological order that respects meetings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.errors import SimulationError

if TYPE_CHECKING:
    from dse.graph._graph import ExecutionGraph

_MAX_CYCLE_SHOWN = 12


def predecessors(graph: ExecutionGraph) -> list[list[int]]:
    """Returns, for every task, its dependencies and its predecessor on the lane, each once."""
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


def topological_order(graph: ExecutionGraph) -> list[int]:
    """Returns the tasks so that each comes after all it waits for, its meeting's waits included.

    Members of a meeting come one after the other.

    Raises:
        SimulationError: Some tasks wait for each other; a cycle is named. Two lanes that meet in
            different order are such a cycle.
    """
    waits = predecessors(graph)
    meeting = graph.meeting.tolist()
    members: dict[int, list[int]] = {}
    for task, index in enumerate(meeting):
        if index >= 0:
            members.setdefault(index, []).append(task)
    followers: list[list[int]] = [[] for _ in waits]
    for task, others in enumerate(waits):
        for other in others:
            followers[other].append(task)
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
        raise SimulationError(_describe_cycle(graph, waits, members, set(order)))
    return order


def _describe_cycle(
    graph: ExecutionGraph, waits: list[list[int]], members: dict[int, list[int]], done: set[int]
) -> str:
    """Walks backwards among the stuck tasks until one comes up again."""
    meeting = graph.meeting.tolist()
    task = next(task for task in range(graph.task_count) if task not in done)
    seen: dict[int, int] = {}
    path: list[int] = []
    while task not in seen:
        seen[task] = len(path)
        path.append(task)
        group = members[meeting[task]] if meeting[task] >= 0 else [task]
        stuck = [other for member in group for other in waits[member] if other not in done]
        task = stuck[0]
    cycle = path[seen[task] :]
    lanes = graph.lanes
    named = [
        f"`{graph.names[index]}` (rank {lanes[graph.lane[index]].rank}, "
        f"{lanes[graph.lane[index]].name})"
        for index in cycle[:_MAX_CYCLE_SHOWN]
    ]
    more = len(cycle) - len(named)
    return (
        "the tasks wait for each other: "
        + " waits for ".join(named)
        + (f" and {more} more" if more else "")
        + f", which waits for `{graph.names[cycle[0]]}` again; check the order in which lanes meet"
    )
