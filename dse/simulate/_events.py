"""Event-driven simulation of one configuration, with a time line."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from dse.graph import followers_of, meeting_members, predecessors, topological_order
from dse.simulate._timeline import Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph


def simulate(graph: ExecutionGraph, duration_s: NDArray[np.float64] | None = None) -> Timeline:
    """Runs the graph in time order, by the rules in :class:`dse.graph.ExecutionGraph`.

    Args:
        graph: The graph, with its durations.
        duration_s: Durations in seconds to use instead; shape `(tasks,)`.

    Returns:
        When each task was ready, started and ended; its graph has the durations that were used.

    Raises:
        SimulationError: Some tasks wait for each other (one shortest cycle is named), or the
            durations do not fit the graph.
    """
    return EventSimulator(graph).run(duration_s)


class EventSimulator:
    """A graph that is prepared once and run in time order with any durations.

    Args:
        graph: The graph, with its durations.
    """

    def __init__(self, graph: ExecutionGraph) -> None:
        waits = predecessors(graph)
        self._graph = graph
        self._wait_counts = [len(others) for others in waits]
        self._followers = followers_of(waits)
        self._members = meeting_members(graph)
        self._meeting: list[int] = graph.meeting.tolist()

    def run(self, duration_s: NDArray[np.float64] | None = None) -> Timeline:
        """Simulates once.

        Args:
            duration_s: Durations in seconds; shape `(tasks,)`. The graph's own by default.

        Returns:
            The time line; its graph has the durations that were used.

        Raises:
            SimulationError: Some tasks wait for each other (one shortest cycle is named), or the
                durations do not fit the graph.
        """
        graph = self._graph if duration_s is None else self._graph.with_durations(duration_s)
        return _Run(
            graph, self._wait_counts.copy(), self._followers, self._members, self._meeting
        ).finish()


class _Run:
    """State of one simulation; plain lists, because single array elements are slow in Python."""

    def __init__(
        self,
        graph: ExecutionGraph,
        open_waits: list[int],
        followers: list[list[int]],
        members: dict[int, list[int]],
        meeting: list[int],
    ) -> None:
        count = graph.task_count
        self._graph = graph
        self._open_waits = open_waits
        self._followers = followers
        self._members = members
        self._meeting = meeting
        self._duration_s: list[float] = graph.duration_s.tolist()
        self._absent = {index: len(tasks) for index, tasks in members.items()}
        self._ready_s = [0.0] * count
        self._start_s = [0.0] * count
        self._end_s = [0.0] * count
        self._running: list[tuple[float, int]] = []

    def finish(self) -> Timeline:
        """Runs all tasks."""
        open_waits, followers, running = self._open_waits, self._followers, self._running
        for task in [task for task, count in enumerate(open_waits) if count == 0]:
            self._become_ready(task, 0.0)
        finished = 0
        while running:
            now_s, task = heapq.heappop(running)
            finished += 1
            for follower in followers[task]:
                open_waits[follower] -= 1
                if open_waits[follower] == 0:
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
        index = self._meeting[task]
        if index < 0:
            self._start(task, now_s)
            return
        self._absent[index] -= 1
        if self._absent[index] == 0:
            for member in self._members[index]:
                self._start(member, now_s)

    def _start(self, task: int, now_s: float) -> None:
        end_s = now_s + self._duration_s[task]
        self._start_s[task] = now_s
        self._end_s[task] = end_s
        heapq.heappush(self._running, (end_s, task))
