"""Breakdown of the critical path through the graph of a traced step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace._step_graph import TaskRole

if TYPE_CHECKING:
    from dse.simulate import CriticalPath
    from dse.trace._step_graph import TraceGraph

#: Most contributors listed.
_MOST = 10

_PARTS = {
    TaskRole.HOST_WORK: "host operators",
    TaskRole.HOST_GAP: "host gaps",
    TaskRole.CALL: "calls",
    TaskRole.AFTER_WAIT: "after waits",
    TaskRole.LAUNCH_DELAY: "launch delays",
    TaskRole.STREAM_GAP: "stream gaps",
    TaskRole.KERNEL: "kernels",
    TaskRole.COPY: "copies",
    TaskRole.FILL: "fills",
    TaskRole.COLLECTIVE: "collectives",
}
_BEFORE = "later start"
#: Times are whole nanoseconds; less is rounding of sums.
_ROUNDING_S = 0.5e-9


@dataclass(frozen=True, slots=True)
class PathPart:
    """Contribution of one kind of task to a critical path.

    Attributes:
        part: `kernels`, `collectives` (transfer; for collectives that lack members including the
            wait for these), `copies`, `fills`, `host operators`, `host gaps` (between operators),
            `calls`, `after waits` (from the end of the wait to the return of the call),
            `launch delays`, `stream gaps`, and `later start` of the step of the rank on which the
            path begins.
        count: Number of tasks with a duration above zero.
        seconds: Their sum.
        share: The sum as a fraction of the path.
    """

    part: str
    count: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class PathContributor:
    """Contribution of the tasks of one name to a critical path.

    Attributes:
        name: Operator, call, kernel or gap.
        part: As in :class:`PathPart`.
        count: Number of tasks.
        seconds: Their sum.
        share: The sum as a fraction of the path.
    """

    name: str
    part: str
    count: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class PathRank:
    """How long a critical path stays on one rank.

    Attributes:
        rank: Global rank.
        seconds: Time on its streams and threads.
        share: The time as a fraction of the path.
    """

    rank: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class PathSummary:
    """A critical path of one step over all ranks.

    Attributes:
        length_s: From the earliest start of any rank's step to the last end, in seconds.
        parts: By kind of task, most time first.
        contributors: By name, most time first, the first ten.
        ranks: By rank, most time first.
        rank_changes: How often the path changes from one rank to another.
    """

    length_s: float
    parts: tuple[PathPart, ...]
    contributors: tuple[PathContributor, ...]
    ranks: tuple[PathRank, ...]
    rank_changes: int


def summarise_path(made: TraceGraph, path: CriticalPath) -> PathSummary:
    """Adds up the tasks of a critical path by kind, name and rank.

    Args:
        made: The graph that was simulated.
        path: A critical path of its simulation.
    """
    tasks = path.tasks.tolist()
    length_s = float(path.seconds.sum())
    by_name: dict[tuple[str, str], tuple[int, float]] = {}
    by_rank: dict[int, float] = {}

    def add(part: str, name: str, seconds: float) -> None:
        count, total_s = by_name.get((part, name), (0, 0.0))
        by_name[part, name] = (count + 1, total_s + seconds)

    for task, seconds in zip(tasks, path.seconds.tolist(), strict=True):
        rank, role = int(made.rank[task]), TaskRole(made.role[task])
        by_rank[rank] = by_rank.get(rank, 0.0) + seconds
        if seconds <= _ROUNDING_S:
            continue
        if role == TaskRole.LEAD_IN:
            add(_BEFORE, f"rank {rank} starts later", seconds)
        else:
            part = _PARTS.get(role, role.name.lower().replace("_", " "))
            add(part, made.graph.names[task], seconds)

    by_part: dict[str, tuple[int, float]] = {}
    for (part, _), (count, seconds) in by_name.items():
        counted, total_s = by_part.get(part, (0, 0.0))
        by_part[part] = (counted + count, total_s + seconds)
    share = 1 / length_s if length_s else 0.0
    contributors = sorted(by_name.items(), key=lambda item: (-item[1][1], item[0]))[:_MOST]
    ranks = made.rank[path.tasks]
    return PathSummary(
        length_s=length_s,
        parts=tuple(
            PathPart(part, count, seconds, seconds * share)
            for part, (count, seconds) in sorted(
                by_part.items(), key=lambda item: (-item[1][1], item[0])
            )
        ),
        contributors=tuple(
            PathContributor(name, part, count, seconds, seconds * share)
            for (part, name), (count, seconds) in contributors
        ),
        ranks=tuple(
            PathRank(rank, seconds, seconds * share)
            for rank, seconds in sorted(by_rank.items(), key=lambda item: (-item[1], item[0]))
        ),
        rank_changes=int(np.count_nonzero(np.diff(ranks))),
    )
