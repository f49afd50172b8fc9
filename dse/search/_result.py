"""Result of a study: its records with the front marked, its conclusion, and its sources."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.search._records import StudyResult, TrialRecord, TrialStatus
from dse.search.analyse._bounds import with_bounds
from dse.search.analyse._conclusion import conclude
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
    marked = with_bounds(_with_equals(mark_front(records, header.objectives)), bounds)
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
        conclusion=conclude(header.objectives, marked),
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

    Of several with the same machines, plan and prediction, such as those that a wider choice of
    sharding types has in common with a narrower one, the first is marked.
    """
    ordered = sorted(records, key=lambda record: record.number)
    feasible = [record for record in ordered if record.status is TrialStatus.FEASIBLE]
    values = np.array([record.values for record in feasible], dtype=np.float64)
    mask = pareto_mask(values.reshape(-1, len(objectives)), [axis.maximize for axis in objectives])
    equal: dict[object, list[TrialRecord]] = {}
    for record, marked in zip(feasible, mask, strict=True):
        if marked:
            equal.setdefault(_same_job(record), []).append(record)
    front = {same[0].number for same in equal.values()}
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
            revised[record.parameters] if record.parameters in wanted else record
            for record in current
        )


def _same_job(record: TrialRecord) -> object:
    """Returns what is equal for records that describe the same job in different words."""
    configuration, prediction = record.configuration, record.prediction
    if configuration is None or configuration.plan is None or prediction is None:
        return record.number
    return (
        configuration.platform,
        configuration.world_size,
        configuration.global_batch_size,
        configuration.plan,
        prediction.iteration_time_s,
        prediction.memory_bytes_per_rank,
        record.values,
    )


def _with_equals(records: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
    """Returns the records, those on the front with all that describe the same job counted."""
    same: dict[object, list[TrialRecord]] = {}
    for record in records:
        if record.status is TrialStatus.FEASIBLE:
            same.setdefault(_same_job(record), []).append(record)
    return tuple(
        _counted(record, same[_same_job(record)]) if record.on_front else record
        for record in records
    )


def _counted(record: TrialRecord, same: Sequence[TrialRecord]) -> TrialRecord:
    if len(same) == 1:
        return record
    because = [name for other in same for name in other.equal_because]
    because += [
        name
        for other in same
        for (name, value), (_, own) in zip(other.parameters, record.parameters, strict=True)
        if value != own
    ]
    return replace(
        record,
        equal_count=sum(1 + other.equal_count for other in same) - 1,
        equal_because=tuple(dict.fromkeys(because)),
    )
