"""CPU affinity of ranks.

A rank on a CPU has a thread that computes and others that communicate. The scheduler may put
threads of two ranks on one core while another core idles, which makes an iteration up to twice as
long. So ranks that are measured are pinned to their share of the cores, as job schedulers do.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
import os
from typing import TYPE_CHECKING

from dse._process.system import read_system_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def partition_cores(
    ranks: int, read: Callable[[str], str] = read_system_file
) -> tuple[tuple[int, ...], ...]:
    """Partitions the usable cores among ranks, keeping SMT siblings together.

    Args:
        ranks: Ranks on this machine.
        read: Returns the text of a file under the root.

    Returns:
        Logical cores of each rank, in shares of nearly equal size; empty if there are fewer cores
        than ranks or the system has no CPU affinity.
    """
    cores = _usable_cores()
    if len(cores) < ranks:
        return ()
    ordered = sorted(cores, key=lambda core: (*_place(core, read), core))
    ends = [len(ordered) * rank // ranks for rank in range(ranks + 1)]
    return tuple(tuple(ordered[first:end]) for first, end in pairwise(ends))


def pin_process(cores: Sequence[int]) -> None:
    """Pins this process, and threads that it starts later, to the given cores."""
    with suppress(AttributeError, OSError):  # not on every system, nor in every sandbox
        os.sched_setaffinity(0, cores)


def _usable_cores() -> list[int]:
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on every operating system
        return []


def _place(core: int, read: Callable[[str], str]) -> tuple[int, int]:
    """Returns socket and physical core of a logical core; the core itself if unknown."""
    folder = f"sys/devices/system/cpu/cpu{core}/topology"
    fields = [read(f"{folder}/{name}") for name in ("physical_package_id", "core_id")]
    if not all(field.isdecimal() for field in fields):
        return 0, core
    return int(fields[0]), int(fields[1])
