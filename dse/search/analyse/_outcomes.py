"""Outcomes: configurations that come to the same, of which one stands for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from dse.search._records import StudyResult, TrialRecord

#: Digits to which figures of equal configurations agree; sums in another order differ beyond.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Outcome:
    """One outcome, with the configurations that have it.

    Attributes:
        record: The first trial with this outcome, which stands for all.
        equal: Other configurations of the space with this outcome, tried or not.
        because: Parameters that make no difference to it.
    """

    record: TrialRecord
    equal: int
    because: tuple[str, ...]


def outcome_key(record: TrialRecord) -> Hashable:
    """Returns what trials with the same outcome have in common.

    These are machines, ranks, batch, program, time with its interval, price, memory, further
    figures, and every objective value; a trial without a prediction is an outcome of its own.
    """
    configuration, prediction = record.configuration, record.prediction
    if configuration is None or prediction is None:
        return record.number
    figures = (
        *record.values,
        prediction.iteration_time_s,
        prediction.iteration_time_p5_s,
        prediction.iteration_time_p95_s,
        prediction.peak_memory_bytes,
        prediction.price_usd_per_hour,
        *(value for _, value in prediction.metrics),
    )
    return (
        configuration.kind,
        configuration.platform,
        configuration.world_size,
        configuration.global_batch_size,
        configuration.program,
        record.status,
        # Text, since a NaN does not equal another one.
        *("" if value is None else f"{value:.{_DIGITS}g}" for value in figures),
    )


class OutcomeKeys:
    """Keys of outcomes, computed once for each record that is asked for again and again."""

    def __init__(self) -> None:
        # With the record, so that no other one gets its address.
        self._known: dict[int, tuple[TrialRecord, Hashable]] = {}

    def __call__(self, record: TrialRecord) -> Hashable:
        """Returns the same as :func:`outcome_key`."""
        if id(record) not in self._known:
            self._known[id(record)] = record, outcome_key(record)
        return self._known[id(record)][1]


def first_of_each(
    records: Sequence[TrialRecord], key: Callable[[TrialRecord], Hashable] = outcome_key
) -> tuple[TrialRecord, ...]:
    """Returns the first trial of each outcome, in the order of the records.

    Args:
        records: Trials.
        key: Outcome of one, if it is known already.
    """
    found: dict[Hashable, TrialRecord] = {}
    for record in records:
        found.setdefault(key(record), record)
    return tuple(found.values())


def front_outcomes(study: StudyResult) -> tuple[Outcome, ...]:
    """Returns the outcomes on the front of a study, in the order of its front."""
    groups: dict[Hashable, list[TrialRecord]] = {outcome_key(record): [] for record in study.front}
    for record in study.records:
        if (group := groups.get(outcome_key(record))) is not None:
            group.append(record)
    return tuple(_outcome(record, groups[outcome_key(record)]) for record in study.front)


def _outcome(record: TrialRecord, group: Sequence[TrialRecord]) -> Outcome:
    own = dict(record.parameters)
    differing = {
        name
        for twin in group
        for name, value in twin.parameters
        if name in own and own[name] != value
    }
    stated = {name for twin in group for name in twin.equal_because}
    return Outcome(
        record=record,
        equal=sum(1 + twin.equal_count for twin in group) - 1,
        because=tuple(name for name in own if name in differing | stated),
    )
