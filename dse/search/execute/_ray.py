"""Evaluations on Ray: a local one, or a cluster of many machines.

Ray only evaluates. Each worker is an actor that keeps its evaluator, and with it what evaluations
share; the problem lies in the object store once. A worker that dies, with its process or its
machine, is replaced, and what it was at is asked again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from itertools import chain
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError, WorkerError
from dse.search.execute._chunks import ChunkQueue, Pace, given_up
from dse.search.execute._executor import Executor
from dse.search.execute._process_worker import collect_rarely, evaluate_chunk
from dse.search.execute._ray_cluster import RayCluster, load_ray

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from dse.search._records import TrialRecord
    from dse.search.evaluate._evaluator import EvaluationContext
    from dse.search.execute._process_worker import Answer
    from dse.search.propose._proposer import Proposal

#: Chunks that a worker holds: one to evaluate, one on the way.
_CHUNKS_HELD = 2

#: Workers in a row that may fail to start.
_MAX_FAILED_STARTS = 3

#: How long to wait for the first worker; a cluster may have to start a machine.
_START_TIMEOUT_S = 600.0


class _RayEvaluator:
    """An actor: evaluates chunks, one after the other.

    Args:
        context: What evaluations need besides the parameters.
    """

    def __init__(self, context: EvaluationContext) -> None:
        self._evaluator = context.make_evaluator()
        collect_rarely()

    def version(self) -> str:
        """Returns the version of dse over there; answering at all means that it has started."""
        return metadata.version("dse")

    def evaluate(self, chunk: Sequence[Proposal]) -> Answer:
        """Evaluates a chunk."""
        return evaluate_chunk(self._evaluator, chunk)


@dataclass(slots=True)
class _Worker:
    """One actor and what it holds.

    Attributes:
        actor: Its handle.
        chunks: What it has to evaluate, in the order in which it does so, by what to wait for.
    """

    actor: Any
    chunks: dict[Any, tuple[Proposal, ...]] = field(default_factory=dict)


class RayExecutor(Executor):
    """Evaluates in actors of Ray.

    Args:
        context: What evaluations need besides the parameters; put into the object store once.
        jobs: Number of workers, of one processor each.
        address: As in :class:`~dse.search.execute._ray_cluster.RayCluster`.
        start_timeout_s: How long to wait while there is no worker at all.
    """

    def __init__(
        self,
        context: EvaluationContext,
        jobs: int,
        address: str = "",
        *,
        start_timeout_s: float = _START_TIMEOUT_S,
    ) -> None:
        self._context = context
        self._jobs = jobs
        self._cluster = RayCluster(address, jobs)
        self._start_timeout_s = start_timeout_s
        self._pace = Pace()
        self._ray: Any = None
        self._actor_class: Any = None
        self._stored_context: Any = None
        self._starting: dict[Any, _Worker] = {}
        self._workers: list[_Worker] = []
        self._failed_starts = 0

    def __enter__(self) -> RayExecutor:
        """Connects to Ray and has workers started.

        Raises:
            ConfigError: The address is none.
            OptionalDependencyError: Ray is not installed.
            WorkerError: Ray does not start or cannot be reached.
        """
        self._cluster.__enter__()
        self._ray = load_ray()
        try:
            actor_class = self._ray.remote(_RayEvaluator)
            self._actor_class = actor_class.options(num_cpus=1, max_restarts=0)
            self._stored_context = self._ray.put(self._context)
            self._start_missing_workers()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the workers with all they hold, then Ray if it was started here."""
        for worker in (*self._starting.values(), *self._workers):
            self._end(worker)
        self._starting.clear()
        self._workers.clear()
        self._stored_context = None
        self._cluster.__exit__(kind, error, trace)

    def run(self, proposals: Sequence[Proposal]) -> Iterator[TrialRecord]:
        """Evaluates in parallel, and on other workers again what was lost with one."""
        queue = ChunkQueue(proposals, self._pace, self._jobs)
        # What an abandoned round left behind is nobody's.
        for worker in self._workers:
            worker.chunks.clear()
        while queue or any(worker.chunks for worker in self._workers):
            self._start_missing_workers()
            self._hand_out(queue)
            ready = self._wait()
            if ready in self._starting:
                self._welcome(ready)
            else:
                yield from self._collect(ready, queue)

    def _start_missing_workers(self) -> None:
        while len(self._starting) + len(self._workers) < self._jobs:
            actor = self._actor_class.remote(self._stored_context)
            self._starting[actor.version.remote()] = _Worker(actor)

    def _hand_out(self, queue: ChunkQueue) -> None:
        """Gives everyone a first chunk, then a second one."""
        for held in range(_CHUNKS_HELD):
            for worker in self._workers:
                if len(worker.chunks) == held:
                    all_answered = not any(other.chunks for other in self._workers)
                    chunk = queue.take(idle=held == 0, all_answered=all_answered)
                    if not chunk:
                        return
                    worker.chunks[worker.actor.evaluate.remote(chunk)] = chunk

    def _wait(self) -> Any:
        """Returns the next thing that is there: an answer, or a worker."""
        awaited = [*self._starting]
        for worker in self._workers:
            awaited += worker.chunks
        timeout_s = None if self._workers else self._start_timeout_s
        ready, _ = self._ray.wait(awaited, num_returns=1, timeout=timeout_s)
        if not ready:
            free = self._ray.available_resources().get("CPU", 0.0)
            raise WorkerError(
                f"{self._cluster} started no worker in {self._start_timeout_s:.0f} s; it has "
                f"{free:.0f} free processors and each worker needs one: see `ray status`"
            )
        return ready[0]

    def _welcome(self, ready: Any) -> None:
        """Puts a worker that has started to work; or counts one that has not."""
        worker = self._starting.pop(ready)
        try:
            version = self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            self._end(worker)
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise WorkerError(
                    f"{self._failed_starts} workers in a row did not start on {self._cluster}: "
                    f"{_last_line(error)}; every machine needs the same installation of dse"
                ) from error
            return
        if version != metadata.version("dse"):
            raise ConfigError(
                f"{self._cluster} has dse {version} and this is {metadata.version('dse')}; "
                "install the same version on every machine"
            )
        self._failed_starts = 0
        self._workers.append(worker)

    def _collect(self, ready: Any, queue: ChunkQueue) -> Iterator[TrialRecord]:
        """Yields the records of a chunk, or puts back what a dead worker held."""
        worker = next(worker for worker in self._workers if ready in worker.chunks)
        try:
            answer: Answer = self._ray.get(ready)
        except self._ray.exceptions.RayTaskError:
            # Evaluations do not raise: a defect of the actor, not a dead worker.
            raise
        except self._ray.exceptions.RayError:
            self._workers.remove(worker)
            self._end(worker)
            # Workers take one chunk after the other.
            first, *behind = worker.chunks.values()
            yield from map(given_up, queue.put_back_after_death(first, [*chain(*behind)]))
            return
        del worker.chunks[ready]
        self._pace.observe(len(answer.records), answer.duration_s)
        yield from answer.records

    def _end(self, worker: _Worker) -> None:
        self._ray.kill(worker.actor, no_restart=True)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
