"""Result of a study: its records with the front marked, and its sources."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.search._records import StudyResult, TrialRecord, TrialStatus
from dse.search.analyse._bounds import with_bounds
from dse.search.analyse._outcomes import first_of_each
from dse.search.analyse._pareto import pareto_mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.search._header import StudyHeader
    from dse.search._records import Fact, Params
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
    )


def mark_front(
    records: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> tuple[TrialRecord, ...]:
    """Returns the records by number, those on the Pareto front of the feasible ones marked.

    Of trials with the same outcome, the first stands for all.
    """
    ordered = sorted(records, key=lambda record: record.number)
    feasible = first_of_each(
        [record for record in ordered if record.status is TrialStatus.FEASIBLE]
    )
    values = np.array([record.values for record in feasible], dtype=np.float64)
    mask = pareto_mask(values.reshape(-1, len(objectives)), [axis.maximize for axis in objectives])
    front = {record.number for record, marked in zip(feasible, mask, strict=True) if marked}
    return tuple(replace(record, on_front=record.number in front) for record in ordered)


def adopt_revised(
    records: Sequence[TrialRecord],
    revised: Mapping[Params, TrialRecord],
    objectives: Sequence[Objective],
) -> tuple[TrialRecord, ...]:
    """Returns the records, those that are on the front with the plans of thorough searches.

    A better plan can take another record off the front or onto it, so this is repeated until the
    front does not change. What was on the front of a part of the study only keeps its first
    answer: the result does not depend on where a study was interrupted.

    Args:
        records: First answers.
        revised: Answers of thorough searches, by their parameters.
        objectives: Axes of the front.
    """
    current = tuple(records)
    while True:
        wanted = {
            record.parameters
            for record in mark_front(current, objectives)
            if record.on_front and not record.thorough and record.parameters in revised
        }
        if not wanted:
            return current
        current = tuple(
            replace(revised[record.parameters], number=record.number)
            if record.parameters in wanted
            else record
            for record in current
        )
