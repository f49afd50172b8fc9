"""Loop of a run: propose, evaluate, store, answer, until enough configurations are evaluated."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
import math
import time
from typing import TYPE_CHECKING

import numpy as np

from dse._process.interrupts import defer_interrupts
from dse.search._polish import FrontPolish
from dse.search._proposals import Batch, Effort, Proposal
from dse.search._records import TrialStatus
from dse.search._result import mark_front
from dse.search.analyse._outcomes import OutcomeKeys
from dse.search.evaluate._distinct import Canonical
from dse.search.evaluate._judge import without_answer
from dse.search.propose import make_strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.search._certificate import Certificate
    from dse.search._header import StudyHeader
    from dse.search._options import Progress
    from dse.search._records import Params, TrialRecord
    from dse.search.evaluate._evaluator import EvaluationContext
    from dse.search.execute import Executor, FailureWatch
    from dse.search.execute._executor import Ahead
    from dse.search.storage import ClaimedBatch, StudyStorage

#: Samplers take seeds below this.
_SAMPLER_SEEDS = 2**32

#: Configurations of the next round that are proposed between two answers: proposing takes
#: milliseconds each, while workers that are done wait.
_AHEAD_AT_ONCE = 4

#: Parameters that say how large a job is.
_SIZES = ("world_size", "global_batch_size", "local_batch_size")


class Loop:
    """Proposes, evaluates and stores configurations until enough of them are evaluated.

    Configurations that an earlier run of the same journal has finished are not evaluated again:
    the sampler proposes them once more and receives the stored answers.

    Args:
        context: What evaluations need.
        header: Sampler and seed of the study.
        storage: Where finished trials are kept.
        progress: Called after every finished trial.
        failures: Sees every answer; ends the run when there are only failures.
        time_limit_s: Seconds from now after which no further round begins, except one that
            evaluates what looks best if nothing is evaluated yet; None for no limit.
    """

    def __init__(
        self,
        context: EvaluationContext,
        header: StudyHeader,
        storage: StudyStorage,
        progress: Progress | None,
        failures: FailureWatch,
        time_limit_s: float | None = None,
    ) -> None:
        self._until_s = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
        self._storage = storage
        self._failures = failures
        self._progress = progress
        self._batch = context.space.search.batch
        self._total = header.trials
        self._objectives = header.objectives
        self._space = context.space
        self._evaluator = context.make_evaluator()
        self._strategy = make_strategy(
            context.space,
            header.sampler,
            stream_seed(header.seed, storage.stream),
            self._evaluator,
        )
        self._former = {record.parameters: record for record in storage.former_records()}
        #: Configurations by number: one keeps the number that it had in an earlier run.
        self._numbers = {record.number: params for params, record in self._former.items()}
        self._records: list[TrialRecord] = []
        self._counted: set[Params] = set()
        self._outcomes = OutcomeKeys()
        #: Numbers of what is not answered in this round, and in the next one.
        self._open: set[int] = set()
        self._open_ahead: set[int] = set()
        #: Answers to the next round.
        self._early: list[TrialRecord] = []

    @property
    def exhausted(self) -> bool:
        """Whether the whole space has been looked at."""
        return self._strategy.exhausted

    @property
    def total(self) -> int:
        """Configurations to evaluate, which other runs of the study may have changed."""
        return self._total

    def records(self) -> tuple[TrialRecord, ...]:
        """Returns the records so far, with those of an earlier run that are not reached yet."""
        return self._polish().records

    def _polish(self, *, compare: bool = False) -> FrontPolish:
        return FrontPolish(
            self._storage.records((*self._records, *self._former.values())),
            self._storage.revised(),
            self._objectives,
            self._evaluator.with_plans_of if compare else None,
            self._revise,
            self._outcomes,
        )

    def _revise(self, record: TrialRecord) -> None:
        with defer_interrupts():
            self._storage.revise(record)

    def certificate(self) -> Certificate | None:
        """Returns what is proven about the front."""
        return self._strategy.certificate()

    def polish_until_interrupted(self, executor: Executor) -> bool:
        """Searches the plans of the front thoroughly; returns whether Ctrl-C came first.

        Workers search ahead of the order in which answers count, but nothing that is known to be
        in vain.
        """
        try:
            polish = self._polish(compare=True)
            while polish.waiting:
                ahead = [
                    Proposal(record.number, record.parameters, Effort.THOROUGH)
                    for record in polish.waiting
                ]
                for found in executor.run(ahead, polish.wants):
                    # A search that failed is not repeated.
                    answer = replace(found, thorough=True)
                    with defer_interrupts():
                        self._storage.revise(answer)
                        polish.add(answer)
        except KeyboardInterrupt:
            return True
        return False

    def bound_until_interrupted(
        self, executor: Executor, taken: TrialRecord | None = None
    ) -> bool:
        """Bounds the plans of the front that have no bound; returns whether Ctrl-C came first.

        Args:
            executor: Computes the bounds.
            taken: The recommended record. Its bound is that of :func:`dse.shard`, which takes
                seconds; others get quick ones.
        """
        if not self._evaluator.bounds_time:
            return False
        known = self._storage.bounds()
        wanted = [
            Proposal(record.number, record.parameters, Effort.OWN_BOUND)
            for record in mark_front(self.records(), self._objectives, self._outcomes)
            if record.on_front and record.planner and record.parameters not in known
        ]
        if taken is not None and taken.planner and taken.prediction is not None:
            # A former run may have recommended another one, so this one's may be a quick one.
            time_s = taken.prediction.iteration_time_s
            first = Proposal(taken.number, taken.parameters, Effort.OWN_BOUND, time_s)
            # The longest comes first, so that one worker has it while others do the rest.
            wanted = [first, *(each for each in wanted if each.number != taken.number)]
        bounds = {}
        try:
            for found in executor.run(wanted):
                if found.lower_bound_s not in (None, known.get(found.parameters)):
                    bounds[found.parameters] = found.lower_bound_s
        except KeyboardInterrupt:
            return True
        finally:
            with defer_interrupts():
                self._storage.add_bounds(bounds)
        return False

    def scale_until_interrupted(self, executor: Executor, taken: TrialRecord) -> bool:
        """Evaluates other sizes of one configuration; returns whether Ctrl-C came first.

        A complete search leaves out what is dominated, but the reader wants to see what more ranks
        or another batch would bring. Nothing is done after a search that is not complete.

        Args:
            executor: Evaluates.
            taken: The recommended configuration.
        """
        certificate = self.certificate()
        if certificate is None or not certificate.complete:
            return False
        known = {record.parameters for record in self.records()}
        canonical = Canonical(self._space, self._evaluator)
        sizes = [each for each in self._space.parameters if each.name in _SIZES]
        wanted: dict[Params, None] = {}
        for chosen in product(*(each.choices for each in sizes)):
            values = dict(zip((each.name for each in sizes), chosen, strict=True))
            other = canonical(tuple({**dict(taken.parameters), **values}.items()))
            if other not in known and not self._evaluator.rejection(dict(other)):
                wanted[other] = None
        first = 1 + max((*self._numbers, *(record.number for record in self._records)), default=-1)
        try:
            numbered = (Proposal(first + place, each) for place, each in enumerate(wanted))
            answers, proposals, _ = self._split(Batch(tuple(numbered)))
            with defer_interrupts():
                claimed = self._storage.claim(proposals, [])
            self._strategy.tell([*answers, *self._answers(claimed.proposals, executor)])
        except KeyboardInterrupt:
            return True
        return False

    def run_until_interrupted(self, executor: Executor) -> bool:
        """Runs to the end or the time limit; returns whether Ctrl-C came first.

        Answers of an earlier run that were not proposed again are kept. If there is no answer at
        all at the time limit, one round is evaluated without waiting for closer bounds.
        """
        try:
            unfinished = True
            while unfinished and (self._has_begun or time.monotonic() < self._until_s):
                unfinished = self._round(executor)
            self._adopt_former()
            if unfinished and not self._counted:
                self._round(executor, hurried=True)
        except KeyboardInterrupt:
            return True
        return False

    def _adopt_former(self) -> None:
        """Takes answers of an earlier run of this journal that the sampler has not proposed."""
        known = (TrialStatus.FEASIBLE, TrialStatus.INFEASIBLE)
        found = [record for record in self._former.values() if record.status in known]
        for record in found:
            del self._former[record.parameters]
        self._strategy.tell([self._keep(record) for record in found])

    def _round(self, executor: Executor, *, hurried: bool = False) -> bool:
        """Evaluates one batch of proposals; returns whether there is more to do."""
        update = self._storage.update()
        self._total = update.total
        self._strategy.tell([self._keep(record) for record in update.records])
        self._strategy.mark_in_flight(update.in_flight)
        if update.complete:
            return False
        if not self._has_begun and (first := self._ahead()):
            # Workers begin with these while the others are proposed.
            self._answers(first, executor, self._ahead)
        if self._has_begun:
            self._evaluate(self._batch, (), executor, hurried=False)
            return True
        open_count = update.total - len(self._counted)
        free_count = open_count - len(update.in_flight)
        used_up = self.exhausted and not update.abandoned
        if open_count <= 0 or (used_up and not update.in_flight):
            return False
        if free_count <= 0 or used_up:
            self._storage.wait()
            return True
        # Near the end, all runs get a share of what is left.
        count = min(self._batch, -(-free_count // update.runs))
        self._evaluate(count, update.abandoned, executor, hurried=hurried)
        return True

    def _evaluate(
        self, count: int, abandoned: Sequence[Params], executor: Executor, *, hurried: bool
    ) -> None:
        adopted = abandoned[:count]
        self._strategy.mark_in_flight(adopted)
        batch = self._strategy.ask(count - len(adopted), hurried=hurried)
        self._strategy.tell_bounds(list(executor.run(batch.bounds)) if batch.bounds else [])
        # Numbered before all others: they were proposed earlier.
        first = [Proposal(index - len(adopted), params) for index, params in enumerate(adopted)]
        early, self._early = self._early, []
        begun, self._open_ahead = self._open_ahead, set()
        known, claimed = self._claimed(batch, first)
        self._open = begun | {proposal.number for proposal in claimed.proposals}
        answers = [*early, *known, *self._answers(claimed.proposals, executor, self._ahead)]
        self._strategy.tell(answers)
        if not answers and not claimed.rejections and not batch.bounds:
            self._storage.wait()

    def _claimed(
        self, batch: Batch, first: Sequence[Proposal] = ()
    ) -> tuple[list[TrialRecord], ClaimedBatch]:
        """Claims a batch behind other proposals; returns stored answers and what is claimed."""
        answers, proposals, rejections = self._split(batch)
        # What is stored and what is remembered must not differ when Ctrl-C comes.
        with defer_interrupts():
            claimed = self._storage.claim([*first, *proposals], rejections)
            for record in claimed.rejections:
                self._keep(record)
        return answers, claimed

    @property
    def _has_begun(self) -> bool:
        """Whether a part of the next round is proposed."""
        return bool(self._open_ahead or self._early)

    def _ahead(self) -> Sequence[Proposal]:
        """Proposes a part of the next round, if that is certain to come and to be a full one."""
        early = sum(record.parameters in self._counted for record in self._early)
        left = self._total - (len(self._counted) - early) - len(self._open)
        if self._storage.shared or left < self._batch or time.monotonic() >= self._until_s:
            return ()
        known, claimed = self._claimed(self._strategy.ask_ahead(self._batch, _AHEAD_AT_ONCE))
        self._early += known
        self._open_ahead |= {proposal.number for proposal in claimed.proposals}
        return claimed.proposals

    def _answers(
        self, claimed: Sequence[Proposal], executor: Executor, ahead: Ahead | None = None
    ) -> list[TrialRecord]:
        """Evaluates and stores what this run has claimed; returns answers of this round."""
        answers: list[TrialRecord] = []
        for found in executor.run(claimed, ahead=ahead):
            record = self._strategy.annotated(found)
            of_round = self._early if found.number in self._open_ahead else answers
            self._open.discard(found.number)
            self._open_ahead.discard(found.number)
            with defer_interrupts():
                if self._storage.add(record):
                    of_round.append(self._keep(record))
            self._failures.note(record)
        return answers

    def _split(self, batch: Batch) -> tuple[list[TrialRecord], list[Proposal], list[TrialRecord]]:
        """Returns stored answers, proposals to evaluate, and new rejections."""
        answers = []
        proposals = []
        for proposal in batch.proposals:
            known = self._former.pop(proposal.parameters, None)
            # Failed evaluations are tried again.
            if known is not None and known.status is not TrialStatus.FAILED:
                answers.append(self._keep(known))
            else:
                number = self._number(proposal.parameters, known, proposal.number)
                proposals.append(replace(proposal, number=number))
        rejections = []
        for rejection in batch.rejections:
            known = self._former.pop(rejection.parameters, None)
            if known is not None and known.status is TrialStatus.REJECTED:
                self._keep(known)
            else:
                rejections.append(
                    without_answer(
                        self._number(rejection.parameters, known, rejection.number),
                        TrialStatus.REJECTED,
                        rejection.reason,
                        dict(rejection.parameters),
                    )
                )
        return answers, proposals, rejections

    def _number(self, params: Params, known: TrialRecord | None, proposed: int) -> int:
        """Returns the number that a configuration has, or else the proposed one if it is free.

        How many configurations are wanted decides in which order the last ones are proposed, so a
        run that continues with more may propose another one under the number of an earlier one.
        """
        if known is not None:
            return known.number
        number = proposed
        if self._numbers.get(number, params) != params:
            number = 1 + max(self._numbers)
        self._numbers[number] = params
        return number

    def _keep(self, record: TrialRecord) -> TrialRecord:
        self._records.append(record)
        # A trace may refuse a change only when it is tried; that is no evaluation either.
        if record.status is not TrialStatus.REJECTED:
            self._counted.add(record.parameters)
        if self._progress is not None:
            self._progress(self._records, self._total)
        return record


def stream_seed(seed: int, stream: int) -> int:
    """Returns the seed of one run's sampler, below 2^32.

    That of the study for its first run, unless it is too large for samplers.
    """
    if stream == 0 and seed < _SAMPLER_SEEDS:
        return seed
    return int(np.random.SeedSequence([seed, stream]).generate_state(1)[0])
