"""Kernels and collectives that run at the same time slow each other down.

A collective occupies compute units and memory bandwidth of its device. What overlaps follows from
the construction of an iteration, not from its durations: buckets of dense gradients are reduced
under the rest of the backward pass, and the exchange of the next batch's indices runs beside the
lookups of this one. So the slowdown is a property of tasks, the same for every plan, and the plan
scorer, the simulator and the bounds of the solver all see it.

METHOD: Daydream (Zhu et al., USENIX ATC 2020) measured NCCL kernels to take 34 % longer beside
computation than alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import DeviceSpec
    from dse.workload.dlrm._costs import Cost

#: A collective beside kernels takes this much longer (Daydream).
COLLECTIVE_SLOWDOWN = 1.34

#: A kernel beside a collective takes this much longer. NCCL occupies 16 to 32 of about a hundred
#: compute units; an assumption.
KERNEL_SLOWDOWN = 1.15


def has_own_engines(device: DeviceSpec) -> bool:
    """Whether exchanges run beside computation.

    On a GPU they have lanes of their own. Between ranks that are processes on a CPU, threads on
    the cores of the ranks move the messages: what an exchange takes, computation waits.
    """
    return device.kind != "cpu"


def contended(
    kernels: Sequence[Cost], collectives: Sequence[Cost], first: int
) -> tuple[list[Cost], list[Cost]]:
    """Slows kernels and collectives down that run at the same time.

    Of the kernels from `first` on, collectives accompany at most their own duration's worth.

    Args:
        kernels: In order of execution on one lane.
        collectives: On another lane, the first ready before kernel `first`.
        first: Index of the first kernel that has a collective beside it.

    Returns:
        Both with longer durations; unchanged where nothing overlaps.
    """
    beside_s = sum(cost.duration_s for cost in kernels[first:])
    total_s = sum(cost.duration_s for cost in collectives)
    if beside_s <= 0 or total_s <= 0:
        return list(kernels), list(collectives)
    together_s = min(beside_s, total_s)
    kernel = 1.0 + (KERNEL_SLOWDOWN - 1.0) * together_s / beside_s
    collective = 1.0 + (COLLECTIVE_SLOWDOWN - 1.0) * together_s / total_s
    slowed = [
        cost._replace(duration_s=cost.duration_s * (kernel if index >= first else 1.0))
        for index, cost in enumerate(kernels)
    ]
    return slowed, [cost._replace(duration_s=cost.duration_s * collective) for cost in collectives]
