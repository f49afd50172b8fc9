"""Thorough plans for the front: which configuration is searched next, and which answers count.

Configurations are evaluated with plans that are found quickly; those on the front get the plan
that a thorough search finds. A better plan can take others off the front, or let others onto it
that need less of something else. So one comes after the other, the best in the first objective
first, and when its turn comes, the plans that were found for others are tried for it: what takes
another one's place on the front only because its own plan is still the quick one leaves it again,
and is not searched.

Answers count in that order, whenever they were found. So the front does not depend on the number
of workers, which search ahead, nor on where a study was interrupted.
"""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.search._records import TrialStatus
from dse.search._result import mark_front
from dse.search.analyse._outcomes import OutcomeKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from dse.search._proposals import Proposal
    from dse.search._records import Params, TrialRecord
    from dse.search.space import Objective
    from dse.sharding import ShardingPlan

    #: Returns a record with each of other records' plans that is faster and feasible.
    Compare = Callable[[TrialRecord, Sequence[TrialRecord]], Sequence[TrialRecord]]

    #: Keeps an answer that counts.
    Keep = Callable[[TrialRecord], None]


#: How much faster a plan has to be, as a share, if it is worse in another objective, such as free
#: memory: for less, the front would lose what the plan before was there for.
_WORTH = 0.01


class FrontPolish:
    """The records of a study while those on its front get better plans.

    Args:
        records: First answers.
        revised: Answers with plans of thorough searches, and of other configurations, that are
            known already. What is not on the front when its turn would come keeps its first
            answer.
        objectives: Axes of the front.
        compare: Tries plans of other configurations; without it only what is known counts.
        keep: Called with what `compare` found, when it counts.
        outcomes: Outcomes of records that are known already.
    """

    def __init__(
        self,
        records: Sequence[TrialRecord],
        revised: Iterable[TrialRecord],
        objectives: Sequence[Objective],
        compare: Compare | None = None,
        keep: Keep | None = None,
        outcomes: OutcomeKeys | None = None,
    ) -> None:
        self._outcomes = OutcomeKeys() if outcomes is None else outcomes
        self._objectives = objectives
        self._signs = np.where([axis.maximize for axis in objectives], -1.0, 1.0)
        self._compare, self._keep = compare, keep
        self._thorough: dict[Params, TrialRecord] = {}
        # Plans are numbered: comparing them takes long.
        self._plans: dict[ShardingPlan | None, int] = {}
        #: What is known of a plan for a configuration; None if it is no better.
        self._tried: dict[tuple[Params, int], TrialRecord | None] = {}
        for record in revised:
            if record.thorough:
                self._thorough[record.parameters] = record
            else:
                self._tried[record.parameters, self._plan_of(record)] = record
        self._kept = set(self._tried)
        self._records = list(mark_front(records, objectives, self._outcomes))
        self._places = {
            record.number: place
            for place, record in enumerate(self._records)
            if record.status is TrialStatus.FEASIBLE
        }
        self._front = _on_front(self._records)
        #: Records that were searched, by the number of their plan.
        self._searched: dict[int, TrialRecord] = {}
        self._waiting: tuple[TrialRecord, ...] = ()
        self._proceed()

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """All records by number, with the answers that count."""
        return tuple(self._records)

    @property
    def waiting(self) -> tuple[TrialRecord, ...]:
        """Records on the front that have to be searched thoroughly, the next one first.

        Those behind the first one may turn out not to need it.
        """
        return self._waiting

    def wants(self, proposal: Proposal) -> bool:
        """Returns whether a waiting record still needs a search, as far as that is known now."""
        for record in self._waiting:
            if record.number == proposal.number:
                return self._better_plan(record) is None
        return False

    def add(self, found: TrialRecord) -> None:
        """Takes the answer of a thorough search of a waiting record."""
        self._thorough[found.parameters] = found
        self._proceed()

    def _proceed(self) -> None:
        """Goes on in the order of the front until an answer is missing."""
        while True:
            quick = [each for each in self._front if each.planner and not each.thorough]
            if not quick:
                # Answers that agree up to rounding stand for each other, so one may be left.
                self._front = self._of_all()
                quick = [each for each in self._front if each.planner and not each.thorough]
            costs = {each.number: tuple(self._costs(each)) for each in quick}
            quick.sort(key=lambda each: (costs[each.number], each.number))
            self._waiting = tuple(each for each in quick if each.parameters not in self._thorough)
            if not quick:
                return
            first = quick[0]
            better = self._better_plan(first)
            if better is not None:
                key = better.parameters, self._plan_of(better)
                if self._keep is not None and key not in self._kept:
                    self._kept.add(key)
                    self._keep(better)
                self._replace(first, better)
            elif first.parameters in self._thorough:
                found = self._thorough[first.parameters]
                found = replace(found if self._is_better(found, first) else first, thorough=True)
                self._replace(first, found)
                self._searched.setdefault(self._plan_of(found), found)
            else:
                return

    def _better_plan(self, record: TrialRecord) -> TrialRecord | None:
        """Returns a record with the fastest plan that was found for others, if it is faster."""
        keys = [(record.parameters, plan) for plan in self._searched]
        unknown = [key for key in keys if key not in self._tried]
        if unknown and self._compare is not None:
            self._tried.update(dict.fromkeys(unknown))
            for found in self._compare(record, [self._searched[plan] for _, plan in unknown]):
                self._tried[found.parameters, self._plan_of(found)] = found
        tried = [other for key in keys if (other := self._tried.get(key)) is not None]
        tried.sort(key=_time_s)
        return next((other for other in tried if self._is_better(other, record)), None)

    def _is_better(self, found: TrialRecord, known: TrialRecord) -> bool:
        """Returns whether a plan is faster, and by how much if it is worse in an objective."""
        if found.status is not TrialStatus.FEASIBLE:
            return False
        no_worse = (self._costs(found) <= self._costs(known)).all()
        return _time_s(found) * (1.0 if no_worse else 1.0 + _WORTH) < _time_s(known)

    def _replace(self, former: TrialRecord, found: TrialRecord) -> None:
        found = replace(
            found,
            number=former.number,
            on_front=True,
            equal_count=former.equal_count,
            equal_because=former.equal_because,
        )
        self._records[self._places[former.number]] = found
        if (self._costs(found) <= self._costs(former)).all():
            left = [found if each.number == found.number else each for each in self._front]
            self._front = _on_front(mark_front(left, self._objectives, self._outcomes))
        else:
            # Only what is worse in something can let others onto the front.
            self._front = self._of_all()

    def _of_all(self) -> list[TrialRecord]:
        return _on_front(mark_front(self.records, self._objectives, self._outcomes))

    def _plan_of(self, record: TrialRecord) -> int:
        plan = None if record.configuration is None else record.configuration.plan
        return self._plans.setdefault(plan, len(self._plans))

    def _costs(self, record: TrialRecord) -> NDArray[np.float64]:
        return np.array(record.values, dtype=np.float64) * self._signs


def _on_front(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    return [record for record in records if record.on_front]


def _time_s(record: TrialRecord) -> float:
    return math.inf if record.prediction is None else record.prediction.iteration_time_s
