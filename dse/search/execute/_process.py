"""Evaluations in processes of this machine.

Each worker has its own pipe, so it is known which one died and what it was evaluating: the worker
is replaced and its work is handed out again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

from dse._process.starting import OWN_PREFIX, start, start_method, starting
from dse.errors import ConfigError
from dse.search.evaluate import WorkloadContext
from dse.search.execute._pool import Died, PoolExecutor, Worker
from dse.search.execute._worker import Listening, worker_main

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess, SpawnProcess

    from dse.search._proposals import Proposal
    from dse.search.evaluate._evaluator import EvaluationContext
    from dse.search.execute._worker import Answer, Started

#: What the server of workers imports, once for all of them.
PRELOADED = ["dse.search.execute._worker", *WorkloadContext.preloaded]

#: Time for an idle worker to end after its pipe was closed, in seconds.
_SHUTDOWN_TIMEOUT_S = 5.0


@dataclass(slots=True, eq=False, kw_only=True)
class _ProcessWorker(Worker):
    """A worker process.

    Attributes:
        process: The process.
        pipe: Connection to it.
    """

    process: SpawnProcess | ForkServerProcess
    pipe: Connection


class ProcessExecutor(PoolExecutor[_ProcessWorker]):
    """Evaluates in worker processes.

    They start with nothing of this process; where a server can fork them, they share what it has
    imported. They import the calling script only if evaluations need something that it defines;
    such a script has to be a file with the usual ``__main__`` guard. They end with the process
    that started them, however that ends.

    Args:
        context: What evaluations need besides the parameters; sent once to each worker.
        jobs: Number of workers.
    """

    def __init__(self, context: EvaluationContext, jobs: int) -> None:
        # A worker never holds a second chunk: sending it could wait for the worker while the
        # worker waits for its answer to be read.
        super().__init__(context, jobs, chunks_held=1)

    def __enter__(self) -> ProcessExecutor:
        """Starts workers, which import what they need while the first round is proposed."""
        self._start_missing()
        return self

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(worker.process.pid or 0 for worker in self._workers)

    @cached_property
    def _content(self) -> bytes:
        """What evaluations need besides the parameters, pickled."""
        try:
            return bytes(ForkingPickler.dumps(self._context))
        except Exception as error:  # pickling raises what the objects of a user raise
            raise ConfigError(
                f"this study cannot be sent to workers: {error}; define its cost model at the top "
                "level of a module, or use one job"
            ) from error

    def _start(self) -> _ProcessWorker:
        context = start_method(PRELOADED)
        ours, theirs = context.Pipe()
        process = context.Process(
            target=worker_main, args=(theirs,), name=f"{OWN_PREFIX}worker", daemon=True
        )
        worker = _ProcessWorker(process=process, pipe=ours)
        with starting(self._content):
            try:
                start(process)
            except BaseException:
                self._stop([worker])
                raise
            finally:
                theirs.close()
        return worker

    def _send(self, worker: _ProcessWorker, chunk: tuple[Proposal, ...]) -> bool:
        try:
            worker.pipe.send(chunk)
        except OSError:
            # It died while it was idle.
            return False
        return True

    def _wait(self, *, block: bool) -> Iterator[tuple[_ProcessWorker, Started | Answer | Died]]:
        workers = {id(worker.pipe): worker for worker in self._workers}
        for ready in wait([worker.pipe for worker in self._workers], None if block else 0.0):
            worker = workers[id(ready)]
            if worker not in self._workers:
                continue
            try:
                message: Listening | Started | Answer = worker.pipe.recv()
            except (EOFError, OSError):
                # A process that ends by itself reports an exit code.
                worker.process.join(_SHUTDOWN_TIMEOUT_S)
                yield worker, Died(_death_reason(worker.process.exitcode or 0))
                continue
            if isinstance(message, Listening):
                # If it is gone by now, its closed pipe is found by the next wait.
                with suppress(OSError):
                    worker.pipe.send_bytes(self._content)
            else:
                yield worker, message

    def _stop(self, workers: Sequence[_ProcessWorker]) -> None:
        for worker in workers:
            worker.pipe.close()
            if worker.process.pid is not None:
                worker.process.kill()
        for worker in workers:
            if worker.process.pid is not None:
                worker.process.join()

    def _abandon(self) -> None:
        self._end([worker for worker in self._workers if worker.chunks])

    def _start_error(self, problem: str) -> str:
        return (
            f"worker processes in a row did not start: {problem}; use fewer --jobs or --executor "
            "serial, then --resume"
        )

    def __exit__(self, *raised: object) -> None:
        """Ends the workers; evaluations in flight are dropped."""
        # Idle ones end by themselves and close what they opened.
        idle = [worker for worker in self._workers if worker.started and not worker.chunks]
        for worker in idle:
            worker.pipe.close()
        for worker in idle:
            worker.process.join(_SHUTDOWN_TIMEOUT_S)
        self._end(list(self._workers))


def _death_reason(exit_code: int) -> str:
    if exit_code <= 0:
        return "it was killed, perhaps for its memory"
    return (
        f"it ended with exit code {exit_code} while it imported the program, and printed why; a "
        'script has to call dse.run under `if __name__ == "__main__":` and to be a file'
    )
