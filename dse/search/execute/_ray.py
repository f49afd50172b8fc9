"""Evaluations on Ray: a local one, or a cluster of many machines.

Ray only evaluates. Each worker is an actor that keeps its evaluator and what evaluations share;
the context is put into the object store once. A worker that dies, with its process or its machine,
is replaced and its work is handed out again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError, WorkerError
from dse.search.execute._pool import Died, PoolExecutor, Worker
from dse.search.execute._ray_cluster import RayCluster, load_ray
from dse.search.execute._worker import Started, evaluate_chunk, ready_evaluator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.search._proposals import Proposal
    from dse.search.evaluate._evaluator import EvaluationContext
    from dse.search.execute._worker import Answer

#: Chunks that a worker holds: one to evaluate, one on the way.
_CHUNKS_HELD = 2

#: How long to wait for the first worker; a cluster may have to start a machine.
_START_TIMEOUT_S = 600.0


class _RayEvaluator:
    """An actor: evaluates chunks, one after the other.

    Args:
        context: What evaluations need besides the parameters.
    """

    def __init__(self, context: EvaluationContext) -> None:
        self._evaluator = ready_evaluator(context)

    def version(self) -> str:
        """Returns the version of dse on the actor's machine; answering means it has started."""
        return metadata.version("dse")

    def evaluate(self, chunk: Sequence[Proposal]) -> Answer:
        """Evaluates a chunk."""
        return evaluate_chunk(self._evaluator, chunk)


@dataclass(slots=True, eq=False, kw_only=True)
class _RayWorker(Worker):
    """An actor.

    Attributes:
        actor: Its handle.
        answers: References to its next answers: its version, then one for each chunk.
    """

    actor: Any
    answers: deque[Any] = field(default_factory=deque)


class RayExecutor(PoolExecutor[_RayWorker]):
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
        super().__init__(context, jobs, chunks_held=_CHUNKS_HELD)
        self._cluster = RayCluster(address, jobs)
        self._start_timeout_s = start_timeout_s
        self._ray: Any = None
        self._actor_class: Any = None
        self._stored_context: Any = None

    def __enter__(self) -> RayExecutor:
        """Connects to Ray and starts workers.

        Raises:
            ConfigError: The address is not valid.
            OptionalDependencyError: Ray is not installed.
            WorkerError: Ray does not start or cannot be reached.
        """
        self._cluster.__enter__()
        self._ray = load_ray()
        try:
            actor_class = self._ray.remote(_RayEvaluator)
            self._actor_class = actor_class.options(num_cpus=1, max_restarts=0)
            self._stored_context = self._ray.put(self._context)
            self._start_missing()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        """Ends the workers with all they hold, then Ray if it was started here."""
        self._end(self._workers)
        self._stored_context = None
        self._cluster.__exit__()

    def _start(self) -> _RayWorker:
        actor = self._actor_class.remote(self._stored_context)
        return _RayWorker(actor=actor, answers=deque([actor.version.remote()]))

    def _send(self, worker: _RayWorker, chunk: tuple[Proposal, ...]) -> bool:
        worker.answers.append(worker.actor.evaluate.remote(chunk))
        return True

    def _wait(self, *, block: bool) -> Iterator[tuple[_RayWorker, Started | Answer | Died]]:
        # An actor answers in the order in which it was called.
        awaited = {worker.answers[0]: worker for worker in self._workers if worker.answers}
        any_started = any(worker.started for worker in self._workers)
        timeout_s = None if any_started else self._start_timeout_s
        timeout_s = timeout_s if block else 0.0
        if not awaited and not block:
            return
        ready, _ = self._ray.wait([*awaited], num_returns=1, timeout=timeout_s)
        if not ready and block:
            free = self._ray.available_resources().get("CPU", 0.0)
            raise WorkerError(
                f"{self._cluster} started no worker in {self._start_timeout_s:.0f} s; it has "
                f"{free:.0f} free processors and each worker needs one: see `ray status`"
            )
        for answer in ready:
            worker = awaited[answer]
            worker.answers.popleft()
            yield worker, self._message(worker, answer)

    def _message(self, worker: _RayWorker, answer: Any) -> Started | Answer | Died:
        try:
            found: str | Answer = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            # Evaluations do not raise: this is a defect of the actor, not a dead worker.
            if worker.started and isinstance(error, self._ray.exceptions.RayTaskError):
                raise
            return Died(_last_line(error))
        if not isinstance(found, str):
            return found
        if found != metadata.version("dse"):
            raise ConfigError(
                f"{self._cluster} has dse {found} and this is {metadata.version('dse')}; "
                "install the same version on every machine"
            )
        return Started()

    def _stop(self, workers: Sequence[_RayWorker]) -> None:
        for worker in workers:
            self._ray.kill(worker.actor, no_restart=True)

    def _abandon(self) -> None:
        for worker in self._workers:
            if worker.started:
                worker.chunks.clear()
                worker.answers.clear()

    def _start_error(self, problem: str) -> str:
        return (
            f"workers in a row did not start on {self._cluster}: {problem}; every machine needs "
            "the same installation of dse"
        )


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
