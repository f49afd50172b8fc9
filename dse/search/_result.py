"""Result of a study: its records with the front marked, and its sources."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.search._records import StudyResult, TrialStatus
from dse.search.analyse._bounds import with_bounds
from dse.search.analyse._outcomes import first_of_each, outcome_key
from dse.search.analyse._pareto import pareto_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from dse.search._header import StudyHeader
    from dse.search._records import Fact, Params, TrialRecord
    from dse.search.space import Objective


def study_result(
    header: StudyHeader,
    records: Sequence[TrialRecord],
    facts: tuple[Fact, ...],
    bounds: Mapping[Params, float],
) -> StudyResult:
    """Returns the result of a study, with the front marked among its records."""
    marked = with_bounds(mark_front(records, header.objectives), bounds)
    return StudyResult(
        name=header.name,
        model_name=header.model,
        objectives=header.objectives,
        records=marked,
        inputs=header.inputs,
        facts=facts,
        versions=tuple((each.package, each.version) for each in header.versions),
        seed=header.seed,
        sampler=header.sampler.value,
        created=header.created,
        trace=header.trace,
        kind=header.kind,
        cost_model=header.cost_model,
        certificate=header.certificate,
        parameters=header.parameters,
        constraints=header.constraints,
        description=header.description,
        trials=header.trials,
    )


def mark_front(
    records: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    key: Callable[[TrialRecord], Hashable] = outcome_key,
) -> tuple[TrialRecord, ...]:
    """Returns the records by number, those on the Pareto front of the feasible ones marked.

    Of trials with the same outcome, the first stands for all.

    Args:
        records: Trials.
        objectives: Axes of the front.
        key: Outcome of a trial, if it is known already.
    """
    ordered = sorted(records, key=lambda record: record.number)
    feasible = first_of_each(
        [record for record in ordered if record.status is TrialStatus.FEASIBLE], key
    )
    values = np.array([record.values for record in feasible], dtype=np.float64)
    mask = pareto_mask(values.reshape(-1, len(objectives)), [axis.maximize for axis in objectives])
    front = {record.number for record, marked in zip(feasible, mask, strict=True) if marked}
    # Copies take longer than all the rest, and few marks change.
    return tuple(
        record if record.on_front == (record.number in front) else _marked(record)
        for record in ordered
    )


def _marked(record: TrialRecord) -> TrialRecord:
    return replace(record, on_front=not record.on_front)
