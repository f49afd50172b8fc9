"""Event-driven simulation of one configuration, with a time line."""

from __future__ import annotations

import heapq

import numpy as np

from typing import TYPE_CHECKING

from dse.graph import predecessors
from dse.graph import topological_order
from dse.simulate._timeline import Timeline

if TYPE_CHECKING:
    from dse.graph import ExecutionGraph


def simulate(graph: ExecutionGraph) -> Timeline:
    """Runs the graph in time order, by the rules in :class:`dse.graph.ExecutionGraph`.

    Args:
        graph: The graph, with its durations.

    Returns:
        When each task was ready, started and ended.

    Raises:
        SimulationError: Some tasks wait for each other; a cycle is named.
    """
    waits = predecessors(graph)
    count = graph.task_count
    followers: list[list[int]] = [[] for _ in range(count)]
    for task, others in enumerate(waits):
        for other in others:
            followers[other].append(task)
    open_waits = [len(others) for others in waits]
    duration_s = graph.duration_s.tolist()
    meeting = graph.meeting.tolist()
    members: dict[int, list[int]] = {}
    for task, index in enumerate(meeting):
        if index >= 0:
            members.setdefault(index, []).append(task)
    absent = {index: len(tasks) for index, tasks in members.items()}
    ready_s = [0.0] * count
    start_s = [0.0] * count
    end_s = [0.0] * count
    running: list[tuple[float, int]] = []

    def begin(task: int, now_s: float) -> None:
        ready_s[task] = now_s
        group = [task]
        if meeting[task] >= 0:
            absent[meeting[task]] -= 1
            if absent[meeting[task]]:
                return
            group = members[meeting[task]]
        for member in group:
            start_s[member] = now_s
            end_s[member] = now_s + duration_s[member]
            heapq.heappush(running, (end_s[member], member))

    for task in range(count):
        if open_waits[task] == 0:
            begin(task, 0.0)
    finished = 0
    while running:
        now_s, task = heapq.heappop(running)
        finished += 1
        for follower in followers[task]:
            open_waits[follower] -= 1
            if open_waits[follower] == 0:
                begin(follower, now_s)
    if finished < count:
        topological_order(graph)  # Raises with the names of the tasks that wait for each other.
    return Timeline(graph, np.array(ready_s), np.array(start_s), np.array(end_s))
