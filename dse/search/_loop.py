"""The loop of a run: ask, evaluate, keep, tell, until enough configurations are evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse._interrupts import defer_interrupts
from dse.search._records import TrialRecord, TrialStatus
from dse.search.propose._proposer import Proposal, Proposer

if TYPE_CHECKING:
    from dse.search._header import StudyHeader
    from dse.search._options import Progress
    from dse.search._records import OuterChoice
    from dse.search.evaluate._base import EvaluationContext
    from dse.search.execute._executor import Executor
    from dse.search.execute._failures import FailureWatch
    from dse.search.propose._proposer import Batch
    from dse.search.storage._storage import News, StudyStorage


class Loop:
    """Asks, evaluates, keeps and tells until enough configurations are evaluated.

    What former runs of the same stream have finished is not evaluated again: the sampler proposes
    it once more, and is told the known answers.

    Args:
        context: What evaluations need.
        header: Sampler and seed of the study.
        storage: Where finished trials are kept.
        progress: Told of every finished trial.
        failures: Told of every answer; ends the run when nothing but failures comes.
    """

    def __init__(
        self,
        context: EvaluationContext,
        header: StudyHeader,
        storage: StudyStorage,
        progress: Progress | None,
        failures: FailureWatch,
    ) -> None:
        self._storage = storage
        self._failures = failures
        self._progress = progress
        self._batch = context.space.search.batch
        self._total = header.trials
        self._proposer = Proposer(
            context.space,
            header.sampler,
            stream_seed(header.seed, storage.stream),
            context.make_evaluator().rejection,
        )
        former = storage.former_records()
        self._former = {record.parameters: record for record in former}
        self._records: list[TrialRecord] = []
        self._counted: set[OuterChoice] = set()

    @property
    def exhausted(self) -> bool:
        """Whether the whole space has been looked at."""
        return self._proposer.exhausted

    @property
    def total(self) -> int:
        """Configurations to evaluate, which other runs of the study may have changed."""
        return self._total

    def records(self) -> tuple[TrialRecord, ...]:
        """Returns what there is so far."""
        return self._storage.records(self._records)

    def run_until_interrupted(self, executor: Executor) -> bool:
        """Runs to the end; returns whether Ctrl-C came first."""
        try:
            while self._round(executor):
                pass
        except KeyboardInterrupt:
            return True
        return False

    def _round(self, executor: Executor) -> bool:
        """Asks for one batch and answers it; returns whether there is more to do."""
        news = self._storage.news()
        self._total = news.total
        self._proposer.tell([self._keep(record) for record in news.records])
        self._proposer.leave_to_others(news.busy)
        if news.complete:
            self._tell_rest()
            return False
        open_count = news.total - len(self._counted)
        free_count = open_count - len(news.busy)
        if open_count <= 0 or (self.exhausted and not news.busy and not news.orphans):
            return False
        if free_count <= 0 or (self.exhausted and not news.orphans):
            self._storage.wait()
            return True
        # Near the end, all runs get a share of what is left.
        self._evaluate(min(self._batch, -(-free_count // news.runs)), news, executor)
        return True

    def _evaluate(self, count: int, news: News, executor: Executor) -> None:
        adopted = news.orphans[:count]
        self._proposer.leave_to_others(adopted)
        batch = self._proposer.ask(count - len(adopted))
        new = [one for one in batch.proposals if one.parameters not in self._former]
        answers, proposals, rejections = self._split(batch)
        # Numbered before all others: they were asked for earlier.
        taken = [Proposal(index - len(adopted), choice) for index, choice in enumerate(adopted)]
        # What is stored and what is remembered must not differ when Ctrl-C comes.
        with defer_interrupts():
            entered = self._storage.enter([*taken, *proposals], rejections)
            for record in entered.rejections:
                self._keep(record)
        for record in executor.run(entered.proposals):
            with defer_interrupts():
                if self._storage.add(record):
                    answers.append(self._keep(record))
            self._failures.note(record)
        self._proposer.tell(answers)
        if new or adopted:
            self._tell_rest()
        if not answers and not entered.rejections:
            self._storage.wait()

    def _split(self, batch: Batch) -> tuple[list[TrialRecord], list[Proposal], list[TrialRecord]]:
        """Returns answers that are known, proposals to evaluate, and new rejections."""
        answers = []
        proposals = []
        for proposal in batch.proposals:
            known = self._former.pop(proposal.parameters, None)
            # Failed evaluations get another chance.
            if known is None or known.status is TrialStatus.FAILED:
                proposals.append(proposal)
            else:
                answers.append(self._keep(self._storage.renumbered(known, proposal.number)))
        rejections = []
        for rejection in batch.rejections:
            record = TrialRecord(
                rejection.number,
                TrialStatus.REJECTED,
                rejection.reason,
                rejection.parameters,
                (),
                None,
                None,
                planner="",
            )
            known = self._former.pop(rejection.parameters, None)
            if known is None or known.status is not TrialStatus.REJECTED:
                rejections.append(record)
            else:
                self._keep(self._storage.renumbered(known, rejection.number))
        return answers, proposals, rejections

    def _tell_rest(self) -> None:
        """Tells what former runs of a shared study finished and the sampler does not ask again.

        Together with what others finished it proposes other configurations than before.
        """
        if self._storage.shared and self._former:
            rest = sorted(self._former.values(), key=lambda record: record.number)
            self._former = {}
            self._proposer.tell([self._keep(record) for record in rest])

    def _keep(self, record: TrialRecord) -> TrialRecord:
        self._records.append(record)
        # A trace may refuse a change only when it is tried; that is no evaluation either.
        if record.status is not TrialStatus.REJECTED:
            self._counted.add(record.parameters)
        if self._progress is not None:
            self._progress(self._records, self._total)
        return record


def stream_seed(seed: int, stream: int) -> int:
    """Returns the seed of one run's sampler; that of the study for its first run."""
    if stream == 0:
        return seed
    return int(np.random.SeedSequence([seed, stream]).generate_state(1)[0])
