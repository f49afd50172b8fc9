"""Chunks of proposals: their size, and what becomes of them when a worker dies.

A chunk should keep a worker busy for long enough that sending it costs nothing, and be short
enough that all workers end together and little is lost with one of them.
"""

from __future__ import annotations

from collections import Counter, deque
import math
from typing import TYPE_CHECKING

from dse.search._records import TrialStatus
from dse.search.evaluate._judge import without_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.search._proposals import Proposal
    from dse.search._records import TrialRecord
    from dse.search.execute._executor import Wanted

#: How long a worker should be busy with one chunk.
CHUNK_DURATION_S = 0.5

#: Work on all workers together that is handed out at once: it lasts hardly longer than sending it.
_SHORT_S = 0.05

#: Workers that may die while they evaluate one proposal before it is given up.
MAX_DEATHS = 3


class Pace:
    """How long an evaluation takes, from all that have been seen."""

    def __init__(self) -> None:
        self._count = 0
        self._duration_s = 0.0

    def observe(self, count: int, duration_s: float) -> None:
        """Adds the total duration of `count` evaluations."""
        self._count += count
        self._duration_s += duration_s

    def chunk_size(self, waiting: int, workers: int) -> int:
        """Returns how many evaluations to hand out at once.

        Args:
            waiting: Evaluations that are not handed out yet.
            workers: Workers that share them.

        Returns:
            As many as take about :data:`CHUNK_DURATION_S`, but no more than half of a worker's
            share of what is left, so that no worker waits long for the last one; at least 1. All
            of its share if the rest takes hardly longer than sending it, and one while nothing is
            known.
        """
        if self._count == 0:
            return 1
        share = waiting // (2 * workers)
        if waiting * self._duration_s < _SHORT_S * self._count * workers:
            share = math.ceil(waiting / workers)
        if self._duration_s == 0.0:
            return max(1, share)
        fitting = math.floor(CHUNK_DURATION_S * self._count / self._duration_s)
        return max(1, min(share, fitting))


class ChunkQueue:
    """Proposals of a round that no worker holds, and behind them some of the next round.

    A chunk has proposals of one round, so that no answer waits for one that is needed later.

    A proposal whose worker died while evaluating it, or may have, is a suspect: it is handed out
    again alone, to an idle worker, after all others. Its last attempt waits until all others are
    answered: if it kills its worker, no other proposal is lost with it.

    Args:
        proposals: What has to be evaluated.
        pace: How long evaluations take.
        workers: Workers that share them.
        wanted: Whether a proposal that is about to be handed out is still to be evaluated; None
            if all are.
    """

    def __init__(
        self,
        proposals: Sequence[Proposal],
        pace: Pace,
        workers: int,
        wanted: Wanted | None = None,
    ) -> None:
        self._fresh = deque(proposals)
        self._next: deque[Proposal] = deque()
        #: Numbers of all that were begun of the next round.
        self._numbers_ahead: set[int] = set()
        self._wanted = wanted
        self._suspects: deque[Proposal] = deque()
        self._deaths: Counter[int] = Counter()
        self._pace = pace
        self._workers = workers

    def __len__(self) -> int:
        return len(self._fresh) + len(self._next) + len(self._suspects)

    @property
    def holds_round(self) -> bool:
        """Whether anything of the present round waits."""
        return bool(self._fresh) or any(self.is_of_round((each,)) for each in self._suspects)

    def is_of_round(self, chunk: Sequence[Proposal]) -> bool:
        """Returns whether a chunk is of the present round, and not of the next one."""
        return chunk[0].number not in self._numbers_ahead

    def next_round(self, proposals: Sequence[Proposal]) -> None:
        """Goes on to the next round, with these proposals behind those that were added ahead."""
        self._fresh.extend(self._next)
        self._fresh.extend(proposals)
        self._next.clear()
        self._numbers_ahead.clear()

    def add_ahead(self, proposals: Sequence[Proposal]) -> None:
        """Adds proposals of the next round."""
        self._next.extend(proposals)
        self._numbers_ahead.update(each.number for each in proposals)

    @property
    def selective(self) -> bool:
        """Whether answers decide what else is handed out."""
        return self._wanted is not None

    def take(self, *, idle: bool = True, all_answered: bool) -> tuple[Proposal, ...]:
        """Returns the next chunk; empty when nothing may be handed out now.

        Args:
            idle: Whether the worker that gets the chunk is idle.
            all_answered: Whether all workers are idle.
        """
        while self._wanted is not None and self._fresh and not self._wanted(self._fresh[0]):
            self._fresh.popleft()
        if waiting := self._fresh or self._next:
            # What is wanted later may depend on the answer to what is handed out now.
            size = self._pace.chunk_size(len(waiting), self._workers)
            size = size if self._wanted is None else 1
            return tuple(waiting.popleft() for _ in range(size))
        if not idle:
            return ()
        for proposal in self._suspects:
            if self._deaths[proposal.number] < MAX_DEATHS - 1:
                self._suspects.remove(proposal)
                return (proposal,)
        return (self._suspects.popleft(),) if self._suspects and all_answered else ()

    def put_back(self, chunk: Sequence[Proposal]) -> None:
        """Takes back a chunk that no worker has started."""
        (self._fresh if self.is_of_round(chunk) else self._next).extendleft(reversed(chunk))

    def put_back_after_death(
        self, chunk: Sequence[Proposal], behind: Sequence[Proposal] = ()
    ) -> tuple[Proposal, ...]:
        """Takes back the chunks of a worker that died.

        Args:
            chunk: The first that it had not answered; its death counts against each of these.
            behind: What it would have begun next, and may have: an answer can be lost that was
                given just before. Suspect, but nothing is counted.

        Returns:
            Proposals of the chunk that are given up: it was their last attempt.
        """
        self._deaths.update(proposal.number for proposal in chunk)
        lost = tuple(proposal for proposal in chunk if self._deaths[proposal.number] >= MAX_DEATHS)
        self._suspects.extend(proposal for proposal in chunk if proposal not in lost)
        self._suspects.extend(behind)
        return lost


def given_up(proposal: Proposal) -> TrialRecord:
    """Returns the record of a proposal that no worker survived."""
    return without_answer(
        proposal.number,
        TrialStatus.FAILED,
        f"{MAX_DEATHS} workers died, each while evaluating it; they were probably killed for "
        "their memory: use fewer --jobs, then --resume",
        dict(proposal.parameters),
    )
