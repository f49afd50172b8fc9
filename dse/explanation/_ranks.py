"""Activity of each rank, and the ranks it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.explanation._types import WaitedFor
from dse.graph import TaskKind, collective_members
from dse.simulate import SyncScope, covered_s, ranks_of_tasks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.simulate import FoldedRanks, Timeline

#: Shorter waits are rounding of sums.
_SHORTEST_WAIT_S = 1e-12


@dataclass(frozen=True, slots=True)
class Activity:
    """Parts of one rank's iteration, as :class:`RankExplanation` defines them."""

    compute_s: float
    transfer_s: float
    waiting_s: float
    host_s: float
    idle_s: float
    collective_s: float


def activity(timeline: Timeline, mine: NDArray[np.int64], late: NDArray[np.bool_]) -> Activity:
    """Splits the iteration by what a rank does.

    Args:
        timeline: What was simulated.
        mine: The tasks of this rank; shape `(own,)`.
        late: Tasks of the host that their rank waits for; shape `(tasks,)`.
    """
    kind = timeline.graph.kind[mine]
    start, end, ready = timeline.start_s[mine], timeline.end_s[mine], timeline.ready_s[mine]
    compute, transfer, copy = (
        kind == wanted for wanted in (TaskKind.COMPUTE, TaskKind.COLLECTIVE, TaskKind.COPY)
    )
    host = late[mine]
    layers = (
        (start[host], end[host]),
        (start[compute], end[compute]),
        (start[transfer], end[transfer]),
        (start[copy], end[copy]),
        (ready[transfer], start[transfer]),
    )
    covered = [0.0]
    for count in range(1, len(layers) + 1):
        starts, ends = (
            np.concatenate([layer[side] for layer in layers[:count]]) for side in (0, 1)
        )
        covered.append(covered_s(starts, ends))
    host_s, compute_s, transfer_s, copy_s, waiting_s = (float(part) for part in np.diff(covered))
    return Activity(
        compute_s=compute_s + copy_s,
        transfer_s=transfer_s,
        waiting_s=waiting_s,
        host_s=host_s,
        idle_s=max(0.0, timeline.makespan_s - covered[-1]),
        collective_s=covered_s(*layers[2]),
    )


def waits(
    timeline: Timeline, folded: FoldedRanks | None = None
) -> dict[int, tuple[WaitedFor, ...]]:
    """Returns whom each rank waited for in collectives, most often first.

    Args:
        timeline: What was simulated.
        folded: Its ranks, where some stand for others; then those have an entry, too.
    """
    rank_of = ranks_of_tasks(timeline.graph).tolist()
    found: dict[int, dict[tuple[int, SyncScope], list[float]]] = {}
    for members in collective_members(timeline.graph).values():
        scope = SyncScope.ALL if folded is None else folded.scope_of(members[0])
        ready = timeline.ready_s[members]
        last = rank_of[members[int(np.argmax(ready))]]
        for member, at_s in zip(members, ready.tolist(), strict=True):
            waited_s = float(timeline.start_s[member]) - at_s
            if waited_s > _SHORTEST_WAIT_S:
                mine = found.setdefault(rank_of[member], {})
                mine.setdefault((last, scope), []).append(waited_s)
    result = {}
    by_all: dict[int, tuple[WaitedFor, ...]] = {}
    every = {rank: rank for rank in found} if folded is None else dict(folded.representatives)
    for rank, same in every.items():
        waited = found.get(same)
        if waited is None:
            continue
        listed = by_all.get(same)
        if listed is None:
            others: dict[int, list[float]] = {}
            for (last, scope), each in waited.items():
                # Who stands for others waits for its own node, or its own local rank on others.
                other = last if rank == same or folded is None else folded.met(scope, last, rank)
                others.setdefault(other, []).extend(each)
            listed = _listed(others)
            if all(scope is SyncScope.ALL for _, scope in waited):
                by_all[same] = listed
        result[rank] = listed
    return result


def _listed(others: dict[int, list[float]]) -> tuple[WaitedFor, ...]:
    """Returns whom one rank waited for, given the seconds of each time."""
    listed = [WaitedFor(other, len(each), sum(each)) for other, each in others.items()]
    listed.sort(key=lambda waited: (-waited.times, -waited.seconds, waited.rank))
    return tuple(listed)
