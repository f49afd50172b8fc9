"""Pool of workers: hands out chunks of proposals and replaces workers that die.

What a worker is, a process or an actor of Ray, is left to subclasses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

from dse.errors import WorkerError
from dse.search.execute._chunks import ChunkQueue, Pace, given_up
from dse.search.execute._executor import Executor
from dse.search.execute._worker import Answer, Started

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dse.search._proposals import Effort, Proposal
    from dse.search._records import TrialRecord
    from dse.search.evaluate._evaluator import EvaluationContext
    from dse.search.execute._executor import Ahead, Wanted

#: Workers in a row that may fail to start.
_MAX_FAILED_STARTS = 3


@dataclass(frozen=True, slots=True)
class Died:
    """A worker is gone.

    Attributes:
        reason: Why, as far as that is known.
    """

    reason: str


@dataclass(slots=True, eq=False)
class Worker:
    """A worker and its work.

    Attributes:
        started: Whether it can evaluate.
        chunks: Handed out to it and not answered, in the order in which it evaluates them.
    """

    started: bool = False
    chunks: deque[tuple[Proposal, ...]] = field(default_factory=deque)


W = TypeVar("W", bound=Worker)


class PoolExecutor(Executor, Generic[W]):
    """Evaluates on workers that may die.

    Args:
        context: What evaluations need besides the parameters.
        jobs: Number of workers.
        chunks_held: Chunks that a worker has at a time.
    """

    def __init__(self, context: EvaluationContext, jobs: int, chunks_held: int) -> None:
        self._context = context
        self._jobs = jobs
        self._chunks_held = chunks_held
        # Bounds take another time than evaluations; a round has one kind of proposals.
        self._paces: defaultdict[Effort, Pace] = defaultdict(Pace)
        self._pace = Pace()
        self._workers: list[W] = []
        self._failed_starts = 0
        #: What the last round has begun of the next one.
        self._left: ChunkQueue | None = None

    @abstractmethod
    def _start(self) -> W:
        """Starts a worker without waiting for it."""

    @abstractmethod
    def _send(self, worker: W, chunk: tuple[Proposal, ...]) -> bool:
        """Hands out a chunk; returns False if the worker is gone."""

    @abstractmethod
    def _wait(self, *, block: bool) -> Iterable[tuple[W, Started | Answer | Died]]:
        """Returns messages of workers; waits for one unless `block` is false."""

    @abstractmethod
    def _stop(self, workers: Sequence[W]) -> None:
        """Ends workers at once: they hold nothing worth saving."""

    @abstractmethod
    def _abandon(self) -> None:
        """Discards work of an earlier round that was not waited for."""

    @abstractmethod
    def _start_error(self, problem: str) -> str:
        """Returns the message after several workers in a row have not started."""

    def run(
        self,
        proposals: Sequence[Proposal],
        wanted: Wanted | None = None,
        ahead: Ahead | None = None,
    ) -> Iterator[TrialRecord]:
        """Evaluates in parallel; what is lost with a worker is evaluated on another one."""
        queue, self._left = self._left, None
        if queue is None:
            self._abandon()
            if proposals:
                self._pace = self._paces[proposals[0].effort]
            queue = ChunkQueue(proposals, self._pace, self._jobs, wanted)
        else:
            queue.next_round(proposals)
        records: deque[TrialRecord] = deque()
        while records or queue.holds_round or any(map(queue.is_of_round, self._chunks())):
            self._start_missing()
            # What is handed out may depend on all answers.
            if not (records and queue.selective):
                self._hand_out(queue)
            if ahead is not None and self._busy:
                queue.add_ahead(ahead())
                self._hand_out(queue)
            # Where nothing that was left is wanted any more, no worker has anything to say.
            expected = self._busy or not all(worker.started for worker in self._workers)
            # Storing a record may wait for a disk; meanwhile other workers finish.
            try:
                for worker, message in self._wait(block=expected and not records):
                    if worker in self._workers:
                        records.extend(self._handle(worker, message, queue))
            except WorkerError:
                yield from records
                raise
            if records:
                yield records.popleft()
        if queue or self._busy:
            self._left = queue

    def _chunks(self) -> Iterator[tuple[Proposal, ...]]:
        return chain.from_iterable(worker.chunks for worker in self._workers)

    @property
    def _busy(self) -> bool:
        return any(worker.chunks for worker in self._workers)

    def _start_missing(self) -> None:
        while len(self._workers) < self._jobs:
            self._workers.append(self._start())

    def _hand_out(self, queue: ChunkQueue) -> None:
        """Gives every worker its first chunk, then its second one."""
        for held in range(self._chunks_held):
            for worker in list(self._workers):
                if not worker.started or len(worker.chunks) != held:
                    continue
                chunk = queue.take(idle=held == 0, all_answered=not self._busy)
                if not chunk:
                    return
                if self._send(worker, chunk):
                    worker.chunks.append(chunk)
                else:
                    queue.put_back(chunk)
                    self._end([worker])

    def _handle(
        self, worker: W, message: Started | Answer | Died, queue: ChunkQueue
    ) -> tuple[TrialRecord, ...]:
        """Returns the records of a chunk, or of proposals that are given up."""
        if isinstance(message, Answer):
            worker.chunks.popleft()
            self._pace.observe(len(message.records), message.duration_s)
            if not queue.selective:
                # The worker continues while its records are stored.
                self._hand_out(queue)
            return message.records
        if isinstance(message, Started) and not message.problem:
            self._failed_starts = 0
            worker.started = True
            return ()
        self._end([worker])
        problem = message.problem if isinstance(message, Started) else message.reason
        if not worker.started:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise WorkerError(f"{self._failed_starts} {self._start_error(problem)}")
        elif worker.chunks:
            first, *behind = worker.chunks
            lost = queue.put_back_after_death(first, [*chain(*behind)])
            return tuple(map(given_up, lost))
        return ()

    def _end(self, workers: Sequence[W]) -> None:
        self._workers = [worker for worker in self._workers if worker not in workers]
        self._stop(workers)
