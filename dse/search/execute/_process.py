"""Evaluations in processes of this machine.

Each worker has a pipe of its own, so it is known which one died and what it was at: it is
replaced, and what it was at is asked again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
import multiprocessing
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from dse._interrupts import shield_children_from_interrupts
from dse.errors import WorkerError
from dse.search.execute._chunks import ChunkQueue, Pace, given_up
from dse.search.execute._executor import Executor
from dse.search.execute._process_worker import Listening, Started, worker_main

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from types import TracebackType

    from dse.search._records import TrialRecord
    from dse.search.evaluate._base import EvaluationContext
    from dse.search.execute._process_worker import Answer
    from dse.search.propose._proposer import Proposal

#: Workers in a row that may fail to start.
_MAX_FAILED_STARTS = 3

#: Time for an idle worker to end when its pipe is closed, in seconds.
_FAREWELL_S = 5.0


@dataclass(slots=True, eq=False)
class _Worker:
    """One process and what it is at.

    Attributes:
        process: The process.
        pipe: To it.
        started: Whether it has said that it is there.
        chunk: What it evaluates; empty when it is idle. It never holds a second one: sending it
            could wait for the worker while the worker waits to be heard.
    """

    process: SpawnProcess
    pipe: Connection
    started: bool = False
    chunk: tuple[Proposal, ...] = ()


class ProcessExecutor(Executor):
    """Evaluates in worker processes.

    They are spawned, so a script that uses this needs the usual ``__main__`` guard. They end with
    the asking process, however that ends.

    Args:
        context: What evaluations need besides the parameters; sent once to each worker.
        jobs: Number of workers.
    """

    def __init__(self, context: EvaluationContext, jobs: int) -> None:
        self._context = context
        self._jobs = jobs
        self._pace = Pace()
        self._workers: list[_Worker] = []
        self._failed_starts = 0

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Numbers of the workers' processes."""
        return tuple(worker.process.pid or 0 for worker in self._workers)

    def run(self, proposals: Sequence[Proposal]) -> Iterator[TrialRecord]:
        """Evaluates in parallel, and on other workers again what was lost with one."""
        queue = ChunkQueue(proposals, self._pace, self._jobs)
        # What an abandoned round left behind is nobody's.
        self._end([worker for worker in self._workers if worker.chunk])
        while queue or any(worker.chunk for worker in self._workers):
            while len(self._workers) < self._jobs:
                self._start_worker()
            self._hand_out(queue)
            pipes = {id(worker.pipe): worker for worker in self._workers}
            for ready in wait([worker.pipe for worker in self._workers]):
                yield from self._hear(pipes[id(ready)], queue)

    def _hand_out(self, queue: ChunkQueue) -> None:
        """Gives every idle worker a chunk."""
        for worker in list(self._workers):
            if not worker.started or worker.chunk:
                continue
            all_answered = not any(other.chunk for other in self._workers)
            chunk = queue.take(all_answered=all_answered)
            if not chunk:
                return
            try:
                worker.pipe.send(chunk)
            except OSError:
                # It died while it had nothing to do.
                queue.put_back(chunk)
                self._end([worker])
            else:
                worker.chunk = chunk

    def _hear(self, worker: _Worker, queue: ChunkQueue) -> Iterator[TrialRecord]:
        """Yields what a worker answers, or what is given up because it died."""
        try:
            said: Listening | Started | Answer = worker.pipe.recv()
        except (EOFError, OSError):
            # One that ends by itself should tell how.
            worker.process.join(_FAREWELL_S)
            self._end([worker])
            if not worker.started:
                self._count_failed_start(_why_not_started(worker.process.exitcode or 0))
            elif worker.chunk:
                yield from map(given_up, queue.put_back_after_death(worker.chunk))
            return
        if isinstance(said, Listening):
            # Should it be gone by now, its closed pipe will tell.
            with suppress(OSError):
                worker.pipe.send(self._context)
            return
        if isinstance(said, Started):
            if said.problem:
                self._end([worker])
                self._count_failed_start(said.problem)
            else:
                self._failed_starts = 0
                worker.started = True
            return
        worker.chunk = ()
        self._pace.observe(len(said.records), said.duration_s)
        # It goes on while its records are kept.
        self._hand_out(queue)
        yield from said.records

    def _count_failed_start(self, problem: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= _MAX_FAILED_STARTS:
            raise WorkerError(
                f"{self._failed_starts} worker processes in a row did not start: {problem}; use "
                "fewer --jobs or --executor serial, then --resume"
            )

    def _start_worker(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=worker_main, args=(theirs,), daemon=True)
        with shield_children_from_interrupts():
            self._workers.append(_Worker(process, ours))
            try:
                process.start()
            finally:
                theirs.close()

    def _end(self, workers: Sequence[_Worker]) -> None:
        """Ends workers at once: nothing in them needs saving."""
        for worker in workers:
            self._workers.remove(worker)
            worker.pipe.close()
            if worker.process.pid is not None:
                worker.process.kill()
        for worker in workers:
            if worker.process.pid is not None:
                worker.process.join()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the workers; evaluations in flight are dropped."""
        # Idle ones end by themselves, and with what they opened closed.
        for worker in self._workers:
            if worker.started and not worker.chunk:
                worker.pipe.close()
        for worker in self._workers:
            if worker.started and not worker.chunk:
                worker.process.join(_FAREWELL_S)
        self._end(list(self._workers))


def _why_not_started(exit_code: int) -> str:
    if exit_code <= 0:
        return "it was killed, perhaps for its memory"
    return (
        f"it ended with exit code {exit_code} while it imported the program, and printed why; a "
        'script has to call dse.run under `if __name__ == "__main__":` and to be a file'
    )
