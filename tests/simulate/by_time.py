"""The rules of an execution graph, played out in order of time; slow and plain."""

from __future__ import annotations

import heapq

import numpy as np

from dse.graph import collective_members, predecessors
from dse.simulate import Timeline


def simulate_by_time(graph):
    """Returns the time line of a graph that has no cycle."""
    waits = predecessors(graph)
    left = [len(others) for others in waits]
    followers = [[] for _ in waits]
    for task, others in enumerate(waits):
        for other in others:
            followers[other].append(task)
    members = collective_members(graph)
    collective, lasts = graph.collective.tolist(), graph.duration_s.tolist()
    absent = {index: len(tasks) for index, tasks in members.items()}
    ready_s, start_s, end_s = ([0.0] * graph.task_count for _ in range(3))
    running = []

    def become_ready(task, now_s):
        ready_s[task] = now_s
        starting = [task]
        if collective[task] >= 0:
            absent[collective[task]] -= 1
            starting = [] if absent[collective[task]] else members[collective[task]]
        for member in starting:
            start_s[member], end_s[member] = now_s, now_s + lasts[member]
            heapq.heappush(running, (end_s[member], member))

    for task in [task for task, count in enumerate(left) if not count]:
        become_ready(task, 0.0)
    while running:
        now_s, task = heapq.heappop(running)
        for follower in followers[task]:
            left[follower] -= 1
            if not left[follower]:
                become_ready(follower, now_s)
    assert not any(left)
    return Timeline(graph, np.array(ready_s), np.array(start_s), np.array(end_s))
