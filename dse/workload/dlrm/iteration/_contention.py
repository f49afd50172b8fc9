"""Overlap of kernels and collectives within a DLRM iteration.

What overlaps follows from the construction of an iteration, not from its durations: buckets of
dense gradients are reduced under the rest of the backward pass, and the indices of the next batch
are exchanged during the lookups of this one. So the slowdown is a property of tasks, the same for
every plan, and the plan scorer, the simulator and the solver's bounds all see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.machine import contention_factors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.workload.dlrm.iteration._costs import Cost


def contended(
    kernels: Sequence[Cost], collectives: Sequence[Cost], first: int
) -> tuple[list[Cost], list[Cost]]:
    """Slows kernels and collectives down that run at the same time.

    Of the kernels from `first` on, collectives accompany at most their own duration's worth.

    Args:
        kernels: In order of execution on one stream.
        collectives: On another stream, the first ready before kernel `first`.
        first: Index of the first kernel that overlaps with a collective.

    Returns:
        Both with longer durations; unchanged where nothing overlaps.
    """
    kernel, collective = contention_factors(
        sum(cost.duration_s for cost in kernels[first:]),
        sum(cost.duration_s for cost in collectives),
    )
    slowed = [
        cost._replace(duration_s=cost.duration_s * (kernel if index >= first else 1.0))
        for index, cost in enumerate(kernels)
    ]
    return slowed, [cost._replace(duration_s=cost.duration_s * collective) for cost in collectives]
