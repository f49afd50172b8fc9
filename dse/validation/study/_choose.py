"""Choice of the trials to run: the best feasible ones, and others at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError, PlanError
from dse.search import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dse.search import StudyResult, TrialRecord
    from dse.workload import Configuration


@dataclass(frozen=True, slots=True)
class Chosen:
    """Chosen trials.

    Attributes:
        runs: `(trial, other trials with the same run, "best" or "random")`.
        left_out: `(trial number, reason)` of trials that cannot be run.
    """

    runs: tuple[tuple[TrialRecord, tuple[int, ...], str], ...]
    left_out: tuple[tuple[int, str], ...]


def feasible_trials(study: StudyResult) -> list[TrialRecord]:
    """Returns the feasible trials, sorted by the first objective, best first."""
    sign = -1.0 if study.objectives[0].maximize else 1.0
    found = [
        record
        for record in study.records
        if record.status is TrialStatus.FEASIBLE and record.configuration is not None
    ]
    return sorted(found, key=lambda record: (sign * record.values[0], record.number))


def configuration_of(record: TrialRecord) -> Configuration:
    """Returns the configuration of a feasible trial."""
    assert record.configuration is not None
    return record.configuration


def choose(
    records: Sequence[TrialRecord],
    top: int,
    random: int,
    seed: int,
    run_key: Callable[[TrialRecord], object],
) -> Chosen:
    """Chooses the best trials that can be run, then others at random.

    Args:
        records: Trials, best first.
        top: Number of best trials.
        random: Number of others.
        seed: Seed of the random choice.
        run_key: Returns a key that is equal for trials with the same run; raises `ConfigError` or
            `PlanError` if a trial cannot be run.
    """
    others = list(records)
    keys: dict[object, int] = {}
    picked: list[tuple[TrialRecord, list[int], str]] = []
    left_out: list[tuple[int, str]] = []

    def take(queue: Iterator[TrialRecord], count: int, chosen: str) -> None:
        wanted = len(picked) + count
        while len(picked) < wanted and (record := next(queue, None)) is not None:
            others.remove(record)
            try:
                key = run_key(record)
            except (ConfigError, PlanError) as error:
                left_out.append((record.number, str(error)))
                continue
            if key in keys:
                picked[keys[key]][1].append(record.number)
            else:
                keys[key] = len(picked)
                picked.append((record, [], chosen))

    take(iter(list(records)), top, "best")
    order = np.random.default_rng(seed).permutation(len(others))
    take(iter([others[index] for index in order.tolist()]), random, "random")
    runs = tuple((record, tuple(same), chosen) for record, same, chosen in picked)
    return Chosen(runs, tuple(left_out))
