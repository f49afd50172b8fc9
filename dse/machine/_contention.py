"""Contention: kernels and collectives that run at the same time slow each other down.

A collective occupies compute units and memory bandwidth of its device. The slowdown is the same
for every workload on a device.

METHOD: Daydream (Zhu et al., USENIX ATC 2020) measured NCCL kernels to take 34 % longer next to
computation than alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.machine._hardware import DeviceSpec

#: A collective that overlaps kernels takes this much longer (Daydream).
COLLECTIVE_SLOWDOWN = 1.34

#: A kernel that overlaps a collective takes this much longer; assumed. NCCL occupies 16 to 32 of
#: about a hundred compute units.
KERNEL_SLOWDOWN = 1.15


def contention_factors(kernels_s: float, collectives_s: float) -> tuple[float, float]:
    """Returns how much longer kernels and collectives take that start together.

    They overlap for as long as the shorter of the two lasts alone.

    Args:
        kernels_s: Time of the kernels alone.
        collectives_s: Time of the collectives alone.

    Returns:
        Factors of at least 1 on the time of the kernels and on that of the collectives.
    """
    if kernels_s <= 0 or collectives_s <= 0:
        return 1.0, 1.0
    together_s = min(kernels_s, collectives_s)
    kernels = 1.0 + (KERNEL_SLOWDOWN - 1.0) * together_s / kernels_s
    collectives = 1.0 + (COLLECTIVE_SLOWDOWN - 1.0) * together_s / collectives_s
    return kernels, collectives


def has_own_engines(device: DeviceSpec) -> bool:
    """Whether exchanges overlap with computation.

    On a GPU they have their own streams. Between ranks that are processes on a CPU, threads on
    the cores of the ranks move the messages: what an exchange takes, computation waits.
    """
    return device.kind != "cpu"
