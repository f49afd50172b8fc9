"""Event-driven simulation of one configuration, with a time line."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from dse.graph import predecessors, topological_order
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
    return _Run(graph).finish()


class _Run:
    """State of one simulation; plain lists, because single array elements are slow in Python."""

    def __init__(self, graph: ExecutionGraph) -> None:
        count = graph.task_count
        waits = predecessors(graph)
        self._graph = graph
        self._open_waits = [len(others) for others in waits]
        self._followers: list[list[int]] = [[] for _ in range(count)]
        for task, others in enumerate(waits):
            for other in others:
                self._followers[other].append(task)
        self._duration_s: list[float] = graph.duration_s.tolist()
        self._meeting: list[int] = graph.meeting.tolist()
        self._members: dict[int, list[int]] = {}
        for task, index in enumerate(self._meeting):
            if index >= 0:
                self._members.setdefault(index, []).append(task)
        self._absent = {index: len(tasks) for index, tasks in self._members.items()}
        self._ready_s = [0.0] * count
        self._start_s = [0.0] * count
        self._end_s = [0.0] * count
        self._running: list[tuple[float, int]] = []

    def finish(self) -> Timeline:
        """Runs all tasks."""
        for task, count in enumerate(self._open_waits):
            if count == 0:
                self._become_ready(task, 0.0)
        finished = 0
        while self._running:
            now_s, task = heapq.heappop(self._running)
            finished += 1
            for follower in self._followers[task]:
                self._open_waits[follower] -= 1
                if self._open_waits[follower] == 0:
                    self._become_ready(follower, now_s)
        if finished < self._graph.task_count:
            # Raises, and names the tasks that wait for each other.
            topological_order(self._graph)
        return Timeline(
            self._graph, np.array(self._ready_s), np.array(self._start_s), np.array(self._end_s)
        )

    def _become_ready(self, task: int, now_s: float) -> None:
        """Starts a task, or its whole meeting when it is the last member to be ready."""
        self._ready_s[task] = now_s
        group = [task]
        index = self._meeting[task]
        if index >= 0:
            self._absent[index] -= 1
            if self._absent[index]:
                return
            group = self._members[index]
        for member in group:
            self._start_s[member] = now_s
            self._end_s[member] = now_s + self._duration_s[member]
            heapq.heappush(self._running, (self._end_s[member], member))
