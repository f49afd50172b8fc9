"""Simulator of one configuration, with a time line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.graph import collective_members, followers, topological_order, wait_counts
from dse.simulate._timeline import Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph


def simulate(graph: ExecutionGraph, duration_s: NDArray[np.float64] | None = None) -> Timeline:
    """Runs the graph by the rules in :class:`dse.graph.ExecutionGraph`.

    A start follows from the ends of the dependencies, so tasks need not be visited in order of
    time, which would need a priority queue: any topological order gives the same numbers, bit for
    bit.

    Args:
        graph: The graph, with its durations.
        duration_s: Durations in seconds to use instead; shape `(tasks,)`.

    Returns:
        When each task was ready, started and ended; its graph has the durations that were used.

    Raises:
        SimulationError: Some tasks wait for each other (one shortest cycle is named), or the
            durations do not fit the graph.
    """
    if duration_s is not None:
        graph = graph.with_durations(duration_s)
    count = graph.task_count
    # Plain lists, because single array elements are slow in Python.
    (offsets, waiting), open_waits = followers(graph), wait_counts(graph)
    lasts: list[float] = graph.duration_s.tolist()
    collective: list[int] = graph.collective.tolist()
    members = collective_members(graph)
    absent = {index: len(tasks) for index, tasks in members.items()}
    ready_s, end_s = [0.0] * count, [0.0] * count
    start_of_collective_s: dict[int, float] = {}
    runnable = [task for task, waits in enumerate(open_waits) if not waits]
    finished = 0
    while runnable:
        task = runnable.pop()
        index = collective[task]
        if index < 0:
            starting, start_s = [task], ready_s[task]
        else:
            absent[index] -= 1
            if absent[index]:
                continue
            starting = members[index]
            start_s = start_of_collective_s[index] = max([ready_s[member] for member in starting])
        for member in starting:
            end_s[member] = now_s = start_s + lasts[member]
            for follower in waiting[offsets[member] : offsets[member + 1]]:
                if now_s > ready_s[follower]:
                    ready_s[follower] = now_s
                open_waits[follower] -= 1
                if not open_waits[follower]:
                    runnable.append(follower)
        finished += len(starting)
    if finished < count:
        # Raises, and names the tasks that wait for each other.
        topological_order(graph)
    readiness_s = np.array(ready_s)
    begin_s = readiness_s.copy()
    for index, moment_s in start_of_collective_s.items():
        begin_s[members[index]] = moment_s
    return Timeline(graph, readiness_s, begin_s, np.array(end_s))
