"""Where evaluations run: in this process, in worker processes, or on Ray.

Every executor gives the same records for the same proposals; only the order in which they come
back differs. One process asks and tells; executors only evaluate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dse.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import ProcessPoolExecutor
    from types import TracebackType

    from dse.search._evaluate import EvaluationContext, Evaluator
    from dse.search._proposer import Proposal
    from dse.search._records import TrialRecord


#: Executors by their names on the command line.
EXECUTORS = ("process", "serial", "ray")


def check_executor(name: str, jobs: int, address: str) -> None:
    """Refuses impossible settings before anything is written.

    Args:
        name: One of :data:`EXECUTORS`.
        jobs: Number of workers.
        address: Of a Ray cluster, or empty.

    Raises:
        ConfigError: They do not exist or do not fit.
        OptionalDependencyError: Ray is asked for and is not installed.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, found {jobs}")
    if name not in EXECUTORS:
        raise ConfigError(f"unknown executor `{name}`; expected one of {', '.join(EXECUTORS)}")
    if name == "ray":
        from dse.search._ray_cluster import require_ray

        require_ray()
    elif address:
        raise ConfigError(f"--address {address}: only --executor ray takes an address")


def make_executor(name: str, context: EvaluationContext, jobs: int, address: str = "") -> Executor:
    """Returns the executor of that name.

    Args:
        name: One of :data:`EXECUTORS`.
        context: What evaluations need besides the parameters.
        jobs: Number of workers.
        address: Of a Ray cluster; empty for a local Ray.
    """
    if name == "ray":
        from dse.search._ray_executor import RayExecutor

        return RayExecutor(context, jobs, address)
    if name == "process" and jobs > 1:
        return ProcessExecutor(context, jobs)
    return SerialExecutor(context)


class Executor(ABC):
    """Evaluates proposals of one study; a context manager that frees its workers."""

    @abstractmethod
    def run(self, proposals: Sequence[Proposal]) -> Iterator[TrialRecord]:
        """Evaluates proposals and yields their records as they finish, in any order.

        Raises:
            WorkerError: A worker died twice on the same proposals.
        """

    def __enter__(self) -> Executor:
        return self

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the workers; at once when an exception is on its way."""


class SerialExecutor(Executor):
    """Evaluates in the calling process.

    Args:
        context: What evaluations need besides the parameters.
    """

    def __init__(self, context: EvaluationContext) -> None:
        self._evaluator = context.make_evaluator()

    def run(self, proposals: Sequence[Proposal]) -> Iterator[TrialRecord]:
        """Evaluates one after the other."""
        for proposal in proposals:
            yield self._evaluator.evaluate(proposal.number, dict(proposal.parameters))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to free."""


class ProcessExecutor(Executor):
    """Evaluates in worker processes.

    A worker that dies (killed, out of memory) breaks the pool; the proposals that had no answer
    yet are evaluated once more in a new pool.

    Args:
        context: What evaluations need besides the parameters; sent once to each worker.
        jobs: Number of workers.
    """

    def __init__(self, context: EvaluationContext, jobs: int) -> None:
        self._context = context
        self._jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def run(self, proposals: Sequence[Proposal]) -> Iterator[TrialRecord]:
        """Evaluates in parallel."""
        from concurrent.futures.process import BrokenProcessPool

        waiting = {proposal.number: proposal for proposal in proposals}
        for attempt in range(2):
            try:
                for record in self._collect(list(waiting.values())):
                    del waiting[record.number]
                    yield record
            except BrokenProcessPool:
                self._shut_down(wait=False)
                if attempt == 0:
                    continue
                numbers = ", ".join(str(number) for number in sorted(waiting))
                raise WorkerError(
                    f"a worker process died twice while evaluating trials {numbers}; it was "
                    "probably killed for its memory: use fewer --jobs, then --resume"
                ) from None
            return

    def _collect(self, proposals: Sequence[Proposal]) -> Iterator[TrialRecord]:
        from concurrent.futures import as_completed

        pool = self._started_pool()
        futures = [
            pool.submit(_evaluate_in_worker, proposal.number, proposal.parameters)
            for proposal in proposals
        ]
        for future in as_completed(futures):
            yield future.result()

    def _started_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            from concurrent.futures import ProcessPoolExecutor
            import multiprocessing

            self._pool = ProcessPoolExecutor(
                self._jobs,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(self._context,),
            )
        return self._pool

    def _shut_down(self, *, wait: bool) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)
            self._pool = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the workers; evaluations in flight are dropped when an exception is on its way."""
        if error is not None and self._pool is not None:
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._shut_down(wait=True)


_worker_evaluator: Evaluator | None = None


def _start_worker(context: EvaluationContext) -> None:
    import signal

    global _worker_evaluator
    # Ctrl-C reaches the whole process group; only the asking process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker_evaluator = context.make_evaluator()


def _evaluate_in_worker(
    number: int, parameters: tuple[tuple[str, str | int | float | bool], ...]
) -> TrialRecord:
    if _worker_evaluator is None:
        raise WorkerError("the worker was not initialised")
    return _worker_evaluator.evaluate(number, dict(parameters))
