"""Deciding an order by priority: which of the ready tasks of a lane runs next."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from dse.graph import followers_of, meeting_members, topological_order

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dse.graph import ExecutionGraph


def schedule(
    graph: ExecutionGraph, lanes: Collection[int], priority: Sequence[float]
) -> dict[int, tuple[int, ...]]:
    """Runs a graph in which some lanes choose their next task, and returns the orders they chose.

    On these lanes the order of the tasks does not bind. Whenever one is free it starts the task of
    lowest priority value among those whose dependencies have ended; ties go to the lower number. A
    collective starts when all its members may, so that all ranks agree. No task is interrupted:
    a task that becomes ready later waits, however urgent (Daydream's `schedule` primitive).

    Args:
        graph: The graph, with its durations.
        lanes: Lanes that choose.
        priority: Of each task; the lowest goes first. The lowest of its members counts for a
            collective.

    Returns:
        For each of the lanes its tasks in the order chosen; with it the graph has no cycle.

    Raises:
        SimulationError: Tasks wait for each other; one shortest cycle is named.
    """
    return _Run(graph, frozenset(lanes), priority).finish()


class _Run:
    def __init__(
        self, graph: ExecutionGraph, lanes: frozenset[int], priority: Sequence[float]
    ) -> None:
        self._graph = graph
        self._lane: list[int] = graph.lane.tolist()
        self._duration_s: list[float] = graph.duration_s.tolist()
        self._free = lanes
        # Whatever starts at once is one unit: a meeting, or a task by itself.
        self._unit = [
            meeting if meeting >= 0 else -1 - task
            for task, meeting in enumerate(graph.meeting.tolist())
        ]
        self._members = {
            **meeting_members(graph),
            **{-1 - task: [task] for task, unit in enumerate(self._unit) if unit < 0},
        }
        waits = self._waits()
        self._followers = followers_of(waits)
        self._open = [len(others) for others in waits]
        self._absent = {unit: len(tasks) for unit, tasks in self._members.items()}
        self._rank = {
            unit: (min(priority[task] for task in tasks), tasks[0])
            for unit, tasks in self._members.items()
        }
        self._busy = dict.fromkeys(lanes, False)
        # Ready tasks that only wait for their own lane, and ready meetings.
        self._queues: dict[int, list[tuple[tuple[float, int], int]]] = {lane: [] for lane in lanes}
        self._meetings: list[tuple[tuple[float, int], int]] = []
        self._changed: set[int] = set(lanes)
        self._running: list[tuple[float, int]] = []
        self._orders: dict[int, list[int]] = {lane: [] for lane in lanes}

    def _waits(self) -> list[list[int]]:
        """Returns what each task waits for; its predecessor only on lanes that do not choose."""
        graph = self._graph
        last: dict[int, int] = {}
        offsets, others = graph.dependency_offsets.tolist(), graph.dependency_tasks.tolist()
        result = []
        for task, lane in enumerate(self._lane):
            waits = dict.fromkeys(others[offsets[task] : offsets[task + 1]])
            if lane not in self._free:
                if lane in last:
                    waits[last[lane]] = None
                last[lane] = task
            result.append(list(waits))
        return result

    def finish(self) -> dict[int, tuple[int, ...]]:
        """Runs all tasks and returns the orders."""
        now_s, ended = 0.0, 0
        for task, count in enumerate(self._open):
            if not count:
                self._become_ready(task, now_s)
        self._start_candidates(now_s)
        while self._running:
            now_s = self._running[0][0]
            while self._running and self._running[0][0] <= now_s:
                _, task = heapq.heappop(self._running)
                ended += 1
                lane = self._lane[task]
                if lane in self._free:
                    self._busy[lane] = False
                    self._changed.add(lane)
                for follower in self._followers[task]:
                    self._open[follower] -= 1
                    if not self._open[follower]:
                        self._become_ready(follower, now_s)
            self._start_candidates(now_s)
        if ended < self._graph.task_count:
            # Raises, and names the tasks that wait for each other.
            topological_order(self._graph)
        return {lane: tuple(tasks) for lane, tasks in self._orders.items()}

    def _become_ready(self, task: int, now_s: float) -> None:
        unit = self._unit[task]
        self._absent[unit] -= 1
        if self._absent[unit]:
            return
        tasks = self._members[unit]
        if not self._chosen(tasks):
            self._start(tasks, now_s)
        elif len(tasks) == 1:
            lane = self._lane[task]
            heapq.heappush(self._queues[lane], (self._rank[unit], unit))
            self._changed.add(lane)
        else:
            heapq.heappush(self._meetings, (self._rank[unit], unit))

    def _chosen(self, tasks: Sequence[int]) -> list[int]:
        """Returns the lanes that have to be free for tasks to start."""
        return [self._lane[task] for task in tasks if self._lane[task] in self._free]

    def _start_candidates(self, now_s: float) -> None:
        """Starts what may start now, the most urgent first."""
        candidates = [
            (*self._queues[lane][0], lane)
            for lane in self._changed
            if self._queues[lane] and not self._busy[lane]
        ]
        self._changed.clear()
        candidates += [(*meeting, -1) for meeting in self._meetings]
        waiting = []
        for rank, unit, lane in sorted(candidates):
            tasks = self._members[unit]
            if any(self._busy[other] for other in self._chosen(tasks)):
                if lane < 0:
                    waiting.append((rank, unit))
                continue
            if lane >= 0:
                heapq.heappop(self._queues[lane])
            self._start(tasks, now_s)
        self._meetings = waiting

    def _start(self, tasks: Sequence[int], now_s: float) -> None:
        for task in tasks:
            lane = self._lane[task]
            if lane in self._free:
                self._busy[lane] = True
                self._orders[lane].append(task)
            heapq.heappush(self._running, (now_s + self._duration_s[task], task))
