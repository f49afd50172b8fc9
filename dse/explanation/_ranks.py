"""Activity of each rank, and the ranks it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.explanation._types import WaitedFor
from dse.graph import TaskKind, collective_members
from dse.simulate import covered_s, ranks_of_tasks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.simulate import Timeline

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


def activity(timeline: Timeline, mine: NDArray[np.bool_], late: NDArray[np.bool_]) -> Activity:
    """Splits the iteration by what a rank does.

    Args:
        timeline: What was simulated.
        mine: Whether each task is of this rank; shape `(tasks,)`.
        late: Tasks of the host that their rank waits for; shape `(tasks,)`.
    """
    kind = timeline.graph.kind
    start, end, ready = timeline.start_s, timeline.end_s, timeline.ready_s
    device = mine & ((kind == TaskKind.COMPUTE) | (kind == TaskKind.COPY))
    transfer = mine & (kind == TaskKind.COLLECTIVE)
    host = mine & late
    layers = (
        (start[host], end[host]),
        (start[device], end[device]),
        (start[transfer], end[transfer]),
        (ready[transfer], start[transfer]),
    )
    covered = [0.0]
    for count in range(1, len(layers) + 1):
        starts, ends = (
            np.concatenate([layer[side] for layer in layers[:count]]) for side in (0, 1)
        )
        covered.append(covered_s(starts, ends))
    host_s, compute_s, transfer_s, waiting_s = (float(part) for part in np.diff(covered))
    return Activity(
        compute_s=compute_s,
        transfer_s=transfer_s,
        waiting_s=waiting_s,
        host_s=host_s,
        idle_s=max(0.0, timeline.makespan_s - covered[-1]),
        collective_s=covered_s(*layers[2]),
    )


def waits(timeline: Timeline) -> dict[int, tuple[WaitedFor, ...]]:
    """Returns whom each rank waited for in collectives, most often first."""
    rank_of = ranks_of_tasks(timeline.graph).tolist()
    found: dict[int, dict[int, list[float]]] = {}
    for members in collective_members(timeline.graph).values():
        ready = timeline.ready_s[members]
        last = rank_of[members[int(np.argmax(ready))]]
        for member, at_s in zip(members, ready.tolist(), strict=True):
            waited_s = float(timeline.start_s[member]) - at_s
            if waited_s > _SHORTEST_WAIT_S:
                found.setdefault(rank_of[member], {}).setdefault(last, []).append(waited_s)
    return {
        rank: tuple(
            sorted(
                (WaitedFor(other, len(each), sum(each)) for other, each in others.items()),
                key=lambda waited: (-waited.times, -waited.seconds, waited.rank),
            )
        )
        for rank, others in found.items()
    }
