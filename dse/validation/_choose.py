"""Which configurations of a study are run: the best that can be, and others at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError, PlanError
from dse.search import TrialStatus
from dse.workload.dlrm import Configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dse.search import StudyResult, TrialRecord


@dataclass(frozen=True, slots=True)
class Chosen:
    """The configurations to run.

    Attributes:
        runs: Trials that represent themselves and those that are the same.
        left_out: `(trial, reason)` of those that cannot be run.
    """

    runs: tuple[tuple[TrialRecord, tuple[int, ...], str], ...]
    left_out: tuple[tuple[int, str], ...]


def feasible_by_value(study: StudyResult) -> list[TrialRecord]:
    """Returns the feasible trials, best in the leading objective first."""
    sign = -1.0 if study.objectives[0].maximize else 1.0
    found = [
        record
        for record in study.records
        if record.status is TrialStatus.FEASIBLE
        and isinstance(record.configuration, Configuration)
    ]
    return sorted(found, key=lambda record: (sign * record.values[0], record.number))


def choose(
    records: Sequence[TrialRecord],
    top: int,
    random: int,
    seed: int,
    run_of: Callable[[TrialRecord], object],
) -> Chosen:
    """Takes the best that can be run, then others at random.

    Args:
        records: Best first.
        top: How many of the best.
        random: How many others.
        seed: Of the random ones.
        run_of: What would be run for a trial, equal for trials whose runs are the same; raises a
            `ConfigError` or `PlanError` where it cannot be run.
    """
    others = list(records)
    keys: dict[object, int] = {}
    picked: list[tuple[TrialRecord, list[int], str]] = []
    left_out: list[tuple[int, str]] = []

    def take(queue: Iterator[TrialRecord], count: int, word: str) -> None:
        wanted = len(picked) + count
        while len(picked) < wanted and (record := next(queue, None)) is not None:
            others.remove(record)
            try:
                key = run_of(record)
            except (ConfigError, PlanError) as error:
                left_out.append((record.number, str(error)))
                continue
            if key in keys:
                picked[keys[key]][1].append(record.number)
            else:
                keys[key] = len(picked)
                picked.append((record, [], word))

    take(iter(list(records)), top, "best")
    order = np.random.default_rng(seed).permutation(len(others))
    take(iter([others[index] for index in order.tolist()]), random, "random")
    runs = tuple((record, tuple(same), word) for record, same, word in picked)
    return Chosen(runs, tuple(left_out))
