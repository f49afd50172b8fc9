"""Timing collectives over processes of this machine.

One process a rank is started for a number of ranks and serves all points of that number. Ranks
meet at a barrier before each repeat. With gloo a repeat lasts from the *last* start to the last
end over the ranks, on the clock that the processes share: a rank that left the barrier early
waits, and waiting is not transfer. With nccl each rank takes the mean of a row of calls between
two events, and the slowest rank counts.

torch 2.13's gloo has all six operations. Where a backend lacks one, its points are skipped with
the backend's own words; nothing is put together from other operations instead.

Ranks, and gloo's own threads, share the cores with the process that starts them, which sleeps
meanwhile; where there are as many ranks as cores, single repeats are held up by milliseconds. The
median is little affected, its interval shows it.
"""

from __future__ import annotations

from contextlib import contextmanager
import time
from typing import TYPE_CHECKING, Any

from dse.calibration.microbench._ranks import Prepare, Refusal, Repeat, collective_worker
from dse.calibration.microbench._timing import MeasureSettings, repeat
from dse.errors import CalibrationError, DseError, WorkerError
from dse.launch import start_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.calibration.microbench._types import CollectivePoint, Sample
    from dse.launch import RankGroup

#: Repeats that the ranks run before they answer.
_BATCH = 6


class RefusedCollectiveError(DseError):
    """A collective cannot be run, for lack of memory or of the operation; it is skipped."""


@contextmanager
def collective_ranks(
    backend: str, ranks: int, threads: int, timeout_s: float = 60.0
) -> Iterator[LocalRanks]:
    """Starts the ranks of a group on this machine and ends them afterwards, whatever happens.

    The processes are spawned, so a script that calls this needs the usual ``__main__`` guard.

    Args:
        backend: ``gloo`` or ``nccl``.
        ranks: Number of ranks, at least 2.
        threads: Threads that each rank computes with.
        timeout_s: Time for the ranks to start, and for the answer to one request, in seconds.

    Raises:
        CalibrationError: A rank has died; the message ends with its traceback.
    """
    try:
        with start_ranks(
            collective_worker,
            backend=backend,
            world_size=ranks,
            threads=threads,
            timeout_s=timeout_s,
            own_cores=True,
        ) as group:
            yield LocalRanks(group)
    except WorkerError as error:
        raise CalibrationError(f"a rank of a collective has failed: {error}") from error


class LocalRanks:
    """The running ranks of one group.

    Args:
        group: Whom to ask.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def measure(
        self,
        point: CollectivePoint,
        settings: MeasureSettings | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Sample:
        """Measures one collective.

        Args:
            point: Operation and size; its number of ranks is that of the group.
            settings: When to stop.
            clock: Seconds on any scale that only grows.

        Raises:
            RefusedCollectiveError: There is no memory for it, or the backend lacks the operation.
            WorkerError: A rank has died or does not answer.
        """
        settings = settings or MeasureSettings()
        self.ask(Prepare(point.op, point.size_bytes))
        warm_until = clock() + settings.warm_up_s
        while True:
            self._times_s(1)
            if clock() >= warm_until:
                break
        return repeat(lambda: self._times_s(_BATCH), settings, clock)

    def _times_s(self, count: int) -> list[float]:
        by_rank = self.ask(Repeat(count))
        return [
            max(end_s for _, end_s in spans) - max(start_s for start_s, _ in spans)
            for spans in zip(*by_rank, strict=True)
        ]

    def ask(self, order: object) -> list[Any]:
        """Gives all ranks the same order; returns their answers by rank.

        Raises:
            WorkerError: A rank has died or does not answer.
            RefusedCollectiveError: There is no memory for it, or the backend lacks the operation.
        """
        answers = self._group.ask(order)
        for answer in answers:
            if isinstance(answer, Refusal):
                raise RefusedCollectiveError(answer.reason)
        return answers
