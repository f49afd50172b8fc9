"""Barrier in shared memory: processes of one machine reach the same point within a microsecond.

Every process has a counter in memory that all of them share. To wait, it increments its own
and polls the others until they are as high; it does so twice. In the first round, a process that
waits for long sleeps, so that others can run where there are fewer free cores than processes. In
the second round all have just arrived and nobody sleeps: no process is late because it had to be
woken up, as with messages or collectives.
"""

from __future__ import annotations

from contextlib import contextmanager
import mmap
import os
from pathlib import Path
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Bytes from one counter to the next: two lines of a cache, which processors load in pairs.
_STRIDE_BYTES = 128

#: Bytes of a counter.
_COUNTER_BYTES = 8

#: Polls before a process sleeps, and for how long: some tenths of a millisecond in the first
#: round. The second round needs as many only if a process has lost its core in between.
_POLLS = (2_000, 50_000)
_SLEEP_S = 200e-6


@contextmanager
def shared_counters(processes: int) -> Iterator[Path]:
    """Makes the memory of a group; it is in a file that is gone at the end.

    Processes keep the memory once they have opened it, so the file may go before they do.

    Args:
        processes: Processes that wait for each other.
    """
    descriptor, name = tempfile.mkstemp(prefix="dse_barrier_")
    try:
        os.write(descriptor, bytes(processes * _STRIDE_BYTES))
        os.close(descriptor)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


class SharedBarrier:
    """Barrier of one process with the others of its group.

    Args:
        path: The file of :func:`shared_counters`.
        number: Number of this process.
        processes: Processes that wait for each other.
        timeout_s: Time after which a missing process is an error, in seconds.
    """

    def __init__(self, path: Path, number: int, processes: int, timeout_s: float = 60.0) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), processes * _STRIDE_BYTES)
        self._counters = memoryview(self._memory).cast("q")
        self._own = number * _STRIDE_BYTES // _COUNTER_BYTES
        self._others = [
            other * _STRIDE_BYTES // _COUNTER_BYTES
            for other in range(processes)
            if other != number
        ]
        self._timeout_s = timeout_s

    def wait(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Returns when every process of the group has called this as often.

        Args:
            meanwhile: Called repeatedly until then.

        Raises:
            TimeoutError: A process does not arrive.
        """
        until_s = time.monotonic() + self._timeout_s
        for most_polls in _POLLS:
            self._meet(most_polls, until_s, meanwhile)

    def _meet(
        self, most_polls: int, until_s: float, meanwhile: Callable[[], object] | None
    ) -> None:
        counters = self._counters
        reached = counters[self._own] + 1
        counters[self._own] = reached
        polls = 0
        for other in self._others:
            while counters[other] < reached:
                polls += 1
                if meanwhile is not None:
                    meanwhile()
                elif polls < most_polls:
                    continue
                else:
                    time.sleep(_SLEEP_S)
                if time.monotonic() > until_s:
                    raise TimeoutError(
                        f"a process did not arrive within {self._timeout_s:g} s; it has ended, or "
                        "the machine is overloaded"
                    )
