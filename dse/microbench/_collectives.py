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
from multiprocessing.connection import wait
import signal
import time
from typing import TYPE_CHECKING, Any, cast

from dse.errors import CalibrationError, DseError
from dse.microbench._ranks import Prepare, RankSetup, Refusal, Repeat, serve
from dse.microbench._timing import MeasureSettings, repeat
from dse.microbench._torch import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from dse.microbench._types import CollectivePoint, Sample

#: Repeats that the ranks run before they answer.
_BATCH = 6

#: How often the starter looks whether a rank has died, in seconds.
_LOOK_EVERY_S = 0.5

#: Time for ranks to end when told to, in seconds.
_FAREWELL_S = 5.0


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
    torch = load_torch()
    processes = torch.multiprocessing
    # The starter holds the rendezvous on a port that the system chose: no race for a free one.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    setup = RankSetup(backend, ranks, threads, int(store.port), timeout_s)
    pairs = [processes.get_context("spawn").Pipe() for _ in range(ranks)]
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    with _interrupts_held_back():
        context = processes.start_processes(
            serve, (setup, theirs), nprocs=ranks, join=False, daemon=True, start_method="spawn"
        )
    try:
        for pipe in theirs:
            pipe.close()
        started = LocalRanks(context, ours, timeout_s)
        started.answers()
        yield started
        started.tell(None)
        _join(context, _FAREWELL_S)
    finally:
        for process in context.processes:
            if process.is_alive():
                process.terminate()
        for process in context.processes:
            process.join(_FAREWELL_S)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in ours:
            pipe.close()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Processes that start meanwhile hold back Ctrl-C until :func:`serve` lets it through.

    The terminal sends it to them as well; while they still import, each would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not on every operating system
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class LocalRanks:
    """The running ranks of one group.

    Args:
        context: The processes.
        pipes: One to each rank.
        timeout_s: Time for the answer to one request, in seconds.
    """

    def __init__(self, context: Any, pipes: list[Connection], timeout_s: float) -> None:
        self._context = context
        self._pipes = pipes
        self._timeout_s = timeout_s

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
            CalibrationError: A rank has died or does not answer.
        """
        settings = settings or MeasureSettings()
        self.tell(Prepare(point.op, point.size_bytes))
        self._accepted_answers()
        warm_until = clock() + settings.warm_up_s
        while True:
            self._times_s(1)
            if clock() >= warm_until:
                break
        return repeat(lambda: self._times_s(_BATCH), settings, clock)

    def _times_s(self, count: int) -> list[float]:
        self.tell(Repeat(count))
        by_rank = self._accepted_answers()
        return [
            max(end_s for _, end_s in spans) - max(start_s for start_s, _ in spans)
            for spans in zip(*by_rank, strict=True)
        ]

    def _accepted_answers(self) -> list[Any]:
        answers = self.answers()
        for answer in answers:
            if isinstance(answer, Refusal):
                raise RefusedCollectiveError(answer.reason)
        return answers

    def tell(self, order: object) -> None:
        """Sends a request to all ranks."""
        try:
            for pipe in self._pipes:
                pipe.send(order)
        except OSError:
            self._raise_failure()

    def answers(self) -> list[Any]:
        """Waits for one answer of every rank.

        Raises:
            CalibrationError: A rank has died or does not answer.
        """
        until = time.monotonic() + self._timeout_s
        answers: dict[int, Any] = {}
        while len(answers) < len(self._pipes):
            missing = {
                id(pipe): rank for rank, pipe in enumerate(self._pipes) if rank not in answers
            }
            ready = wait([self._pipes[rank] for rank in missing.values()], _LOOK_EVERY_S)
            for pipe in ready:
                try:
                    answers[missing[id(pipe)]] = cast("Connection", pipe).recv()
                except (EOFError, OSError):
                    self._raise_failure()
            if not ready:
                _join(self._context, 0.0)
            if time.monotonic() > until:
                raise CalibrationError(
                    f"ranks {sorted(missing.values())} gave no answer within {self._timeout_s:g} s"
                )
        return [answers[rank] for rank in range(len(self._pipes))]

    def _raise_failure(self) -> None:
        """Raises what a rank failed with, once its process has ended."""
        _join(self._context, _FAREWELL_S)
        raise CalibrationError("a rank of a collective ended without being told to")


def _join(context: Any, timeout_s: float) -> None:
    """Waits for the processes; raises when one of them has failed."""
    processes = load_torch().multiprocessing
    try:
        context.join(timeout=timeout_s)
    except (processes.ProcessRaisedException, processes.ProcessExitedException) as error:
        raise CalibrationError(f"a rank of a collective has failed: {error}") from error
