"""Cores of their own for the ranks of this machine, and cores that do not fall asleep.

A rank on a CPU is a thread that computes and others that carry its messages. Left to the
scheduler, threads of two ranks meet on one core while another one has nothing to do; and a core
that sleeps while its rank waits for a message takes milliseconds to come back where a hypervisor
has given it away. Both make the same iteration last anything between its time and twice as long.
So each rank is bound to its share of the cores, as job schedulers do, and where that takes nothing
from the ranks a process of the lowest class keeps each core awake, as ``idle=poll`` does.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from itertools import pairwise
import os
from pathlib import Path
import subprocess
import sys
from typing import TYPE_CHECKING

from dse._control_groups import processor_shares, read_system_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Runs on its own, without this package, so that it starts in no time.
_PROGRAM = Path(__file__).with_name("_awake.py")


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


def may_stay_awake(cores: Sequence[int], read: Callable[[str], str] = read_system_file) -> bool:
    """Whether a core that does not sleep takes nothing from the ranks.

    It would where siblings share the units of a core, and where processor time is rationed.
    """
    rationed = any(share < len(cores) for share in processor_shares(read))
    return not rationed and len({_place(core, read) for core in cores}) == len(cores)


@contextmanager
def kept_awake(cores: Sequence[int]) -> Iterator[None]:
    """Keeps cores from falling asleep during the block; never at the cost of other programs.

    Where the system does not let it, nothing happens.

    Args:
        cores: Logical cores.
    """
    if not cores or not hasattr(os, "SCHED_IDLE"):
        yield
        return
    command = [sys.executable, "-I", "-S", str(_PROGRAM), str(os.getpid()), *map(str, cores)]
    quiet = subprocess.DEVNULL
    # A session of its own: Ctrl-C is for the starter, which ends this one.
    process = subprocess.Popen(
        command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        yield
    finally:
        # Those that it started end with it.
        process.kill()
        process.wait()


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
