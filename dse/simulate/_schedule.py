"""Priority scheduling: which of the ready tasks of a stream runs next."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeAlias

from dse.graph import collective_members, invert_waits, topological_order

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dse.graph import ExecutionGraph

#: Priority (ties by number) and unit.
_Ready: TypeAlias = tuple[tuple[float, int], int]


def schedule(
    graph: ExecutionGraph, streams: Collection[int], priority: Sequence[float]
) -> dict[int, tuple[int, ...]]:
    """Simulates a graph in which some streams choose their next task; returns the orders chosen.

    On these streams the order of the tasks does not bind. A free stream starts the task of lowest
    priority value among those whose dependencies have ended; ties go to the lower number. A
    collective starts when all its members may, so that all ranks agree. No task is interrupted:
    a task that becomes ready later waits, however urgent (Daydream's `schedule` primitive).

    Args:
        graph: The graph, with its durations.
        streams: Streams that choose.
        priority: Of each task; the lowest goes first. The lowest of its members counts for a
            collective.

    Returns:
        For each of the streams its tasks in the order chosen; with it the graph has no cycle.

    Raises:
        SimulationError: Tasks wait for each other; one shortest cycle is named.
    """
    return _Run(graph, frozenset(streams), priority).finish()


class _Run:
    def __init__(
        self, graph: ExecutionGraph, streams: frozenset[int], priority: Sequence[float]
    ) -> None:
        self._graph = graph
        self._stream: list[int] = graph.stream.tolist()
        self._duration_s: list[float] = graph.duration_s.tolist()
        self._free = streams
        # Whatever starts at once is one unit: a collective, or a task by itself.
        self._unit = [
            collective if collective >= 0 else -1 - task
            for task, collective in enumerate(graph.collective.tolist())
        ]
        self._members = {
            **collective_members(graph),
            **{-1 - task: [task] for task, unit in enumerate(self._unit) if unit < 0},
        }
        waits = self._waits()
        self._followers = invert_waits(waits)
        self._open = [len(others) for others in waits]
        self._absent = {unit: len(tasks) for unit, tasks in self._members.items()}
        self._rank = {
            unit: (min(priority[task] for task in tasks), tasks[0])
            for unit, tasks in self._members.items()
        }
        self._busy = dict.fromkeys(streams, False)
        # Ready tasks that only wait for their own stream, and ready collectives.
        self._queues: dict[int, list[_Ready]] = {stream: [] for stream in streams}
        self._ready_collectives: list[_Ready] = []
        self._changed: set[int] = set(streams)
        self._running: list[tuple[float, int]] = []
        self._orders: dict[int, list[int]] = {stream: [] for stream in streams}

    def _waits(self) -> list[list[int]]:
        """Returns what each task waits for; its predecessor only on streams that do not choose."""
        graph = self._graph
        last: dict[int, int] = {}
        offsets, others = graph.dependency_offsets.tolist(), graph.dependency_tasks.tolist()
        result = []
        for task, stream in enumerate(self._stream):
            waits = dict.fromkeys(others[offsets[task] : offsets[task + 1]])
            if stream not in self._free:
                if stream in last:
                    waits[last[stream]] = None
                last[stream] = task
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
                stream = self._stream[task]
                if stream in self._free:
                    self._busy[stream] = False
                    self._changed.add(stream)
                for follower in self._followers[task]:
                    self._open[follower] -= 1
                    if not self._open[follower]:
                        self._become_ready(follower, now_s)
            self._start_candidates(now_s)
        if ended < self._graph.task_count:
            # Raises, and names the tasks that wait for each other.
            topological_order(self._graph)
        return {stream: tuple(tasks) for stream, tasks in self._orders.items()}

    def _become_ready(self, task: int, now_s: float) -> None:
        unit = self._unit[task]
        self._absent[unit] -= 1
        if self._absent[unit]:
            return
        tasks = self._members[unit]
        if not self._chosen(tasks):
            self._start(tasks, now_s)
        elif len(tasks) == 1:
            stream = self._stream[task]
            heapq.heappush(self._queues[stream], (self._rank[unit], unit))
            self._changed.add(stream)
        else:
            heapq.heappush(self._ready_collectives, (self._rank[unit], unit))

    def _chosen(self, tasks: Sequence[int]) -> list[int]:
        """Returns the streams that have to be free for tasks to start."""
        return [self._stream[task] for task in tasks if self._stream[task] in self._free]

    def _start_candidates(self, now_s: float) -> None:
        """Starts what may start now, the most urgent first."""
        candidates = [
            (*self._queues[stream][0], stream)
            for stream in self._changed
            if self._queues[stream] and not self._busy[stream]
        ]
        self._changed.clear()
        candidates += [(*collective, -1) for collective in self._ready_collectives]
        waiting = []
        for rank, unit, stream in sorted(candidates):
            tasks = self._members[unit]
            if any(self._busy[other] for other in self._chosen(tasks)):
                if stream < 0:
                    waiting.append((rank, unit))
                continue
            if stream >= 0:
                heapq.heappop(self._queues[stream])
            self._start(tasks, now_s)
        self._ready_collectives = waiting

    def _start(self, tasks: Sequence[int], now_s: float) -> None:
        for task in tasks:
            stream = self._stream[task]
            if stream in self._free:
                self._busy[stream] = True
                self._orders[stream].append(task)
            heapq.heappush(self._running, (now_s + self._duration_s[task], task))
