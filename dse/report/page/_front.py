"""Intervals and measurements of the front."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from dse.report._metrics import metric_formats
from dse.report.console import duration, signed_percent
from dse.report.page._payload import rounded
from dse.search import ValidationMode
from dse.search.analyse import recommended_trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.search import StudyResult, TrialRecord, ValidatedCandidate
    from dse.workload import Metric

#: Low, expected and high value on an axis.
Span = tuple[float | None, float, float | None]


@dataclass(frozen=True, slots=True)
class PointView:
    """A point of the front with intervals and measurements.

    Attributes:
        number: Trial number.
        predicted: Ends of the 90 % interval on each axis; None where the axis has none.
        measured: Measured value on each axis with the ends of its 95 % interval; None where what
            was run is not this configuration, or says nothing about the axis.
        note: Result of its validation; empty where it was not run.
    """

    number: int
    predicted: tuple[tuple[float, float] | None, ...]
    measured: tuple[Span | None, ...]
    note: str


@dataclass(frozen=True, slots=True)
class FrontView:
    """Points of the front and validated ones.

    Attributes:
        points: By trial number; points with neither interval nor measurement are left out.
        recommended: The one that the decision takes; None without a front.
        second: Another one of the front to compare it with; None without another one.
    """

    points: tuple[PointView, ...]
    recommended: int | None
    second: int | None


def front_view(study: StudyResult) -> FrontView:
    """Extracts intervals and measurements, and which two candidates to compare first."""
    runs = _runs(study)
    formats = metric_formats(study)
    metrics = [formats[axis.metric] for axis in study.objectives]
    points = [
        _point(study, record, runs.get(record.number), metrics)
        for record in study.records
        if record.evaluated and (record.on_front or record.number in runs)
    ]
    recommended, second = _first_two(study)
    return FrontView(
        tuple(
            point
            for point in points
            if point.note or any(ends is not None for ends in point.predicted)
        ),
        recommended,
        second,
    )


def _first_two(study: StudyResult) -> tuple[int | None, int | None]:
    best = recommended_trial(study)
    if best is None:
        return None, None
    others = [record.number for record in study.front if record.number != best.number]
    return best.number, others[0] if others else None


def _runs(study: StudyResult) -> dict[int, ValidatedCandidate]:
    """Returns the run of each configuration, including those that another one stands for."""
    if study.validation is None:
        return {}
    return {
        number: run for run in study.validation.candidates for number in (run.number, *run.same)
    }


def _point(
    study: StudyResult,
    record: TrialRecord,
    run: ValidatedCandidate | None,
    metrics: Sequence[Metric],
) -> PointView:
    prediction = record.prediction
    predicted: Sequence[tuple[float, float] | None] = [None] * len(study.objectives)
    if prediction is not None and not math.isnan(prediction.iteration_time_p5_s):
        factors = (
            prediction.iteration_time_p5_s / prediction.iteration_time_s,
            prediction.iteration_time_p95_s / prediction.iteration_time_s,
        )
        predicted = [
            _pair(_scaled(record, index, metric, factors)) for index, metric in enumerate(metrics)
        ]
    if run is None or prediction is None:
        return PointView(record.number, tuple(predicted), (None,) * len(study.objectives), "")
    measured: list[Span | None] = [None] * len(study.objectives)
    if _is_itself(study, record, run):
        time_s = prediction.iteration_time_s
        for index, metric in enumerate(metrics):
            found = _scaled(record, index, metric, (run.measured_s / time_s,))
            if found is None:
                continue
            ends: list[float] | None = None
            if run.measured_low_s is not None and run.measured_high_s is not None:
                low_high = (run.measured_low_s / time_s, run.measured_high_s / time_s)
                ends = _scaled(record, index, metric, low_high)
            measured[index] = (ends[0], found[0], ends[1]) if ends else (None, found[0], None)
    return PointView(record.number, tuple(predicted), tuple(measured), _note(run))


def _is_itself(study: StudyResult, record: TrialRecord, run: ValidatedCandidate) -> bool:
    """Returns whether the run was the configuration itself: its ranks, its batch, its platform."""
    setting = study.validation.setting if study.validation else None
    configuration = record.configuration
    return (
        setting is not None
        and configuration is not None
        and setting.mode is not ValidationMode.SCALED
        and setting.platform == configuration.platform
        and run.run_world_size == configuration.world_size
        and run.run_batch_size == configuration.global_batch_size
    )


def _scaled(
    record: TrialRecord, index: int, metric: Metric, factors: Sequence[float]
) -> list[float] | None:
    """Returns the value on an axis if the iteration took so many times as long, ascending.

    None where the axis does not depend on the iteration time.
    """
    value = record.values[index] if index < len(record.values) else math.nan
    exponent = metric.time_exponent
    if not math.isfinite(value) or not exponent:
        return None
    return sorted(rounded(value * metric.scale * factor**exponent) for factor in factors)


def _pair(values: list[float] | None) -> tuple[float, float] | None:
    return None if values is None else (values[0], values[1])


def _note(run: ValidatedCandidate) -> str:
    return (
        f"run for real on {run.run_world_size} ranks, batch {run.run_batch_size:,}: measured "
        f"{duration(run.measured_s)}, predicted {duration(run.predicted_s)} "
        f"({signed_percent(run.error)})"
    )
