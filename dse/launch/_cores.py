"""Cores of their own for the ranks of this machine.

A rank on a CPU is a thread that computes and others that carry its messages. Left to the
scheduler, threads of two ranks meet on one core while another one has nothing to do, and the same
iteration lasts anything between its time and twice as long. So each rank that is measured is bound
to its share of the cores, as job schedulers do.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def read_system_file(path: str) -> str:
    """Returns the text of a file under the root, nothing if it cannot be read."""
    try:
        return (Path("/") / path).read_text()
    except OSError:
        return ""


def core_shares(
    ranks: int, read: Callable[[str], str] = read_system_file
) -> tuple[tuple[int, ...], ...]:
    """Deals the cores that this process may use out to ranks; siblings stay together.

    Args:
        ranks: Ranks on this machine.
        read: Returns the text of a file under the root.

    Returns:
        Logical cores of each rank, as evenly as can be; nothing where there are fewer cores than
        ranks, or where the system does not bind processes.
    """
    cores = _usable_cores()
    if len(cores) < ranks:
        return ()
    ordered = sorted(cores, key=lambda core: (*_place(core, read), core))
    ends = [len(ordered) * rank // ranks for rank in range(ranks + 1)]
    return tuple(tuple(ordered[first:end]) for first, end in pairwise(ends))


def bind(cores: Sequence[int]) -> None:
    """Lets this process, and the threads that it starts from now on, run on some cores only."""
    with suppress(AttributeError, OSError):  # not on every operating system, nor in every sandbox
        os.sched_setaffinity(0, cores)


def _usable_cores() -> list[int]:
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on every operating system
        return []


def _place(core: int, read: Callable[[str], str]) -> tuple[int, int]:
    """Returns socket and physical core of a logical core; itself where the system is silent."""
    folder = f"sys/devices/system/cpu/cpu{core}/topology"
    words = [read(f"{folder}/{name}").strip() for name in ("physical_package_id", "core_id")]
    if not all(word.isdecimal() for word in words):
        return 0, core
    return int(words[0]), int(words[1])
