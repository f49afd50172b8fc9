"""Front moves: which candidates enter or leave a front of the same candidates, and why."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from dse.search._records import TrialStatus

if TYPE_CHECKING:
    from dse.search._records import StudyResult, TrialRecord
    from dse.search.space import Objective


@dataclass(frozen=True, slots=True)
class FrontMove:
    """One candidate that is on one of two fronts.

    Attributes:
        number: The candidate.
        rank_before: Place on the first front, from 1, best in the leading objective first; None
            when it is not on it.
        rank_after: Place on the second front, or None.
        values_before: Objective values before.
        values_after: Objective values after; empty when it has none.
        reason: Why it left the front; empty unless it did.
    """

    number: int
    rank_before: int | None
    rank_after: int | None
    values_before: tuple[float, ...]
    values_after: tuple[float, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class BestMove:
    """The best candidate in one objective, before and after.

    Attributes:
        metric: Name of the objective's metric.
        maximize: Its direction.
        number_before: Best candidate before; None where nothing was feasible.
        value_before: Its value; NaN where there is none.
        number_after: Best candidate after, or None.
        value_after: Its value, or NaN.
    """

    metric: str
    maximize: bool
    number_before: int | None
    value_before: float
    number_after: int | None
    value_after: float

    @property
    def change(self) -> float:
        """Relative change of the best value; NaN where one is missing or zero."""
        if self.value_before == 0:
            return math.nan
        return self.value_after / self.value_before - 1.0


def front_moves(before: StudyResult, after: StudyResult) -> tuple[FrontMove, ...]:
    """Returns every candidate of either front, those of the second first, in its order.

    Args:
        before: A study.
        after: The same candidates by number under other inputs, with the same objectives.
    """
    ranks_before = {record.number: rank for rank, record in enumerate(before.front, start=1)}
    ranks_after = {record.number: rank for rank, record in enumerate(after.front, start=1)}
    old = {record.number: record for record in before.records}
    new = {record.number: record for record in after.records}
    numbers = [*ranks_after, *(number for number in ranks_before if number not in ranks_after)]
    return tuple(
        FrontMove(
            number=number,
            rank_before=ranks_before.get(number),
            rank_after=ranks_after.get(number),
            values_before=old[number].values,
            values_after=new[number].values,
            reason="" if number in ranks_after else _why_not(new[number], after),
        )
        for number in numbers
    )


def best_moves(before: StudyResult, after: StudyResult) -> tuple[BestMove, ...]:
    """Returns the best candidate of each objective in two studies with the same objectives."""
    return tuple(
        BestMove(axis.metric, axis.maximize, *best_of(before, axis), *best_of(after, axis))
        for axis in before.objectives
    )


def best_of(study: StudyResult, axis: Objective) -> tuple[int | None, float]:
    """Returns the best feasible candidate in one objective and its value; NaN where none is."""
    known = [
        (record.metrics[axis.metric], record.number)
        for record in study.records
        if record.status is TrialStatus.FEASIBLE
        and not math.isnan(record.metrics.get(axis.metric, math.nan))
    ]
    if not known:
        return None, math.nan
    sign = -1.0 if axis.maximize else 1.0
    value, number = min(known, key=lambda pair: (sign * pair[0], pair[1]))
    return number, value


def _why_not(record: TrialRecord, study: StudyResult) -> str:
    """Returns why a candidate is not on the front: a limit, or a candidate that dominates it."""
    if record.status is not TrialStatus.FEASIBLE:
        return record.reason or record.status.value
    for other in study.front:
        if all(
            theirs >= own if axis.maximize else theirs <= own
            for theirs, own, axis in zip(
                other.values, record.values, study.objectives, strict=True
            )
        ):
            return f"#{other.number} is at least as good in everything"
    return "its figures are not all known"
