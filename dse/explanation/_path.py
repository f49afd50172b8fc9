"""The critical path by operator group, resource and rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dse.explanation._resources import Resource
from dse.explanation._types import CriticalTask, PathShare
from dse.graph import collective_members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.explanation._resources import TaskResources
    from dse.simulate import CriticalPath, Timeline


def path_shares(
    timeline: Timeline, path: CriticalPath, resources: TaskResources, groups: Sequence[str]
) -> tuple[PathShare, ...]:
    """Adds up the critical path; what a task adds is divided as its duration is.

    Args:
        timeline: What was simulated.
        path: Its critical path.
        resources: What the tasks keep busy.
        groups: Operator group of each task.
    """
    graph = timeline.graph
    parts = resources.parts_s()[:, path.tasks]
    whole = parts.sum(axis=0)
    # A task that takes no time has no parts, and adds nothing but rounding.
    parts[list(Resource).index(Resource.OTHER), whole == 0] = 1.0
    added = parts * (path.seconds / np.where(whole == 0, 1.0, whole))
    found: dict[tuple[str, int, int], list[float]] = {}
    for column, task in enumerate(path.tasks.tolist()):
        rank = graph.streams[graph.stream[task]].rank
        for row in np.flatnonzero(added[:, column]).tolist():
            found.setdefault((groups[task], row, rank), []).append(float(added[row, column]))
    every = tuple(Resource)
    shares = [
        PathShare(
            group=group,
            resource=every[row],
            resource_name=resources.names[row],
            rank=rank,
            tasks=len(seconds),
            seconds=math.fsum(seconds),
            share=math.fsum(seconds) / path.length_s,
        )
        for (group, row, rank), seconds in found.items()
    ]
    shares.sort(key=lambda part: (-part.seconds, part.group, part.resource, part.rank))
    return tuple(shares)


def critical_tasks(
    timeline: Timeline, path: CriticalPath, resources: TaskResources, groups: Sequence[str]
) -> tuple[CriticalTask, ...]:
    """Lists the critical path; arguments as of :func:`path_shares`."""
    graph, members = timeline.graph, collective_members(timeline.graph)
    every = tuple(Resource)
    rows = resources.parts_s().argmax(axis=0)
    result = []
    for task, arrival, seconds in zip(
        path.tasks.tolist(), path.arrivals.tolist(), path.seconds.tolist(), strict=True
    ):
        stream = graph.streams[graph.stream[task]]
        wait_s = 0.0
        if graph.collective[task] >= 0:
            joined = members[int(graph.collective[task])]
            wait_s = float((timeline.start_s[joined] - timeline.ready_s[joined]).max())
        row = int(rows[task])
        result.append(
            CriticalTask(
                task=task,
                name=graph.names[task],
                group=groups[task],
                rank=stream.rank,
                stream=stream.name,
                resource=every[row],
                resource_name=resources.names[row],
                start_s=float(timeline.start_s[task]),
                seconds=seconds,
                last_rank=graph.streams[graph.stream[arrival]].rank,
                longest_wait_s=wait_s,
            )
        )
    return tuple(result)
