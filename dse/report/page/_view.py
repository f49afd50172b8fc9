"""Content of the page as plain data.

The page gets one JSON payload. Every trial has a short entry; only the front and the best other
feasible candidates have full details (breakdown, memory, plan), which bounds the file's size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.report._decision import equal_text
from dse.report._metrics import metric_formats
from dse.report.page._analysis import analysis_view
from dse.report.page._decision import decision_view
from dse.report.page._details import (
    BREAKDOWN_PARTS,
    DetailView,
    captured_detail,
    detail_of,
    memory_purposes,
    table_sizes,
)
from dse.report.page._figures import figures_view
from dse.report.page._front import front_view
from dse.report.page._payload import finite, quoted
from dse.report.page._scaling import scaling_view
from dse.report.page._timeline import timeline_view
from dse.report.page._validation import validation_view
from dse.search import TrialStatus
from dse.search.analyse import front_outcomes, group_reasons
from dse.workload import PLACEMENT_PREFIX, program_label, workload_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.report.page._analysis import AnalysisView
    from dse.report.page._decision import DecisionView
    from dse.report.page._details import TableSize
    from dse.report.page._figures import FiguresView
    from dse.report.page._front import FrontView
    from dse.report.page._scaling import ScalingView
    from dse.report.page._timeline import TimelineView
    from dse.report.page._validation import ValidationView
    from dse.search import StudyResult, TrialRecord
    from dse.workload import Metric, ParameterValue

#: Feasible configurations, apart from the front, that get full details.
_MAX_OTHER_DETAILS = 40

#: Number of the details of the step as captured.
AS_CAPTURED = -1

#: Reasons shown, most frequent first.
_MAX_REASONS = 12


@dataclass(frozen=True, slots=True)
class AxisView:
    """One objective.

    Attributes:
        title: Name with unit.
        noun: Name inside a sentence.
        unit: Unit; may be empty.
        maximize: Direction.
        scale: Factor from SI to the shown unit.
        digits: Decimal places.
    """

    title: str
    noun: str
    unit: str
    maximize: bool
    scale: float
    digits: int


@dataclass(frozen=True, slots=True)
class TrialView:
    """One row of the table of all trials.

    Attributes:
        number: Trial number.
        status: Status word.
        front: Whether it is on the front.
        group: Platform, or optimizations where only they vary, for colour and shape.
        values: Objective values in shown units; empty when not evaluated.
        parameters: Values of the outer parameters, in the order of `ReportView.parameters`.
        reason: Why it is not feasible.
        speedup: Of a changed trace, times the captured throughput; else None.
    """

    number: int
    status: str
    front: bool
    group: str
    values: tuple[float | None, ...]
    parameters: tuple[str | int | float | bool, ...]
    reason: str
    speedup: float | None = None


@dataclass(frozen=True, slots=True)
class ReportView:
    """All data of the page.

    Attributes:
        title: What the study is about, for people.
        decision: What to take.
        scaling: How platforms scale; empty where nothing varies that scales.
        equal: `(trial number, words)` of outcomes on the front that other configurations share.
        bound_by: `(trial number, words)` of what binds the candidates on the front.
        axes: Objectives.
        parameters: Names of the outer parameters.
        trials: All trials by number.
        details: Full details of some.
        reasons: `(reason, status, count)`, most frequent first.
        counts: `(status, count)`.
        breakdown_parts: Names of the shares of an iteration; empty where none are known.
        memory_purposes: What memory is used for; empty where it is not known.
        rank_word: What the bars of a breakdown are: ranks, or the stages of a pipeline, whose
            ranks all do the same.
        best_speedup: Largest of the feasible ones; None in studies of a model.
        baseline: The captured step's values in the order of `axes`; None in studies of a model.
        front: Intervals and measurements of points, and which two to compare first.
        figures: Figures of the candidates that have details.
        timeline: Predicted iterations of candidates on the front.
        tables: Sizes of the model's tables; empty where they are not known.
        validation: Candidates that were run for real; None where none was.
        analysis: Sections on the study as a whole.
    """

    title: str
    decision: DecisionView
    scaling: tuple[ScalingView, ...]
    equal: tuple[tuple[int, str], ...]
    bound_by: tuple[tuple[int, str], ...]
    axes: tuple[AxisView, ...]
    parameters: tuple[str, ...]
    trials: tuple[TrialView, ...]
    details: tuple[DetailView, ...]
    reasons: tuple[tuple[str, str, int], ...]
    counts: tuple[tuple[str, int], ...]
    breakdown_parts: tuple[str, ...]
    memory_purposes: tuple[str, ...]
    rank_word: str
    best_speedup: float | None
    baseline: tuple[float | None, ...] | None
    front: FrontView
    figures: FiguresView
    timeline: TimelineView
    tables: tuple[TableSize, ...]
    analysis: AnalysisView
    validation: ValidationView | None = None


#: Parameters that may decide colours where there is only one platform.
_COLOURS = ("optimizations", "recompute")


def build_view(study: StudyResult) -> ReportView:
    """Extracts what the page shows from a study."""
    counts = Counter(record.status for record in study.records)
    formats = metric_formats(study)
    group = _group_of(study)
    trace = study.trace
    front = front_view(study)
    details = _details(study)
    return ReportView(
        title=study.description or study.name.replace("_", " "),
        decision=decision_view(study),
        scaling=scaling_view(study),
        equal=tuple(
            (outcome.record.number, equal_text(outcome))
            for outcome in front_outcomes(study)
            if outcome.equal
        ),
        bound_by=tuple(
            (record.number, record.prediction.bound_text)
            for record in study.front
            if record.prediction is not None and record.prediction.bound_text
        ),
        axes=tuple(
            AxisView(
                form.title_with_unit, form.noun, form.unit, axis.maximize, form.scale, form.digits
            )
            for axis in study.objectives
            for form in (formats[axis.metric],)
        ),
        parameters=tuple(name for name, _ in _shown_parameters(study.records[0]))
        if study.records
        else (),
        trials=tuple(_trial(study, record, group, formats) for record in study.records),
        details=details,
        reasons=tuple(
            (quoted(group.example), group.status.value, group.count)
            for group in group_reasons(study.records)[:_MAX_REASONS]
        ),
        counts=tuple((status.value, counts[status]) for status in TrialStatus),
        breakdown_parts=BREAKDOWN_PARTS if any(each.breakdown_ms for each in details) else (),
        memory_purposes=memory_purposes(study),
        rank_word=workload_kind(study.kind).rank_word.capitalize(),
        best_speedup=max(
            (
                speedup
                for record in study.records
                if record.status is TrialStatus.FEASIBLE
                and (speedup := _speedup(record)) is not None
            ),
            default=None,
        ),
        baseline=None if trace is None else _shown(study, trace.metrics, formats),
        front=front,
        figures=figures_view(study, _detailed(study), AS_CAPTURED),
        timeline=timeline_view(study),
        tables=table_sizes(study),
        analysis=analysis_view(study, front.recommended),
        validation=None if study.validation is None else validation_view(study.validation),
    )


def _shown(
    study: StudyResult, metrics: Mapping[str, float], formats: Mapping[str, Metric]
) -> tuple[float | None, ...]:
    return tuple(
        finite(metrics[axis.metric] * formats[axis.metric].scale) for axis in study.objectives
    )


def _details(study: StudyResult) -> tuple[DetailView, ...]:
    found = [detail for record in _detailed(study) if (detail := detail_of(record)) is not None]
    if study.trace is not None:
        found.append(captured_detail(AS_CAPTURED, study.trace))
    return tuple(found)


def _group_of(study: StudyResult) -> str:
    """Returns the parameter that decides colours: the platform, unless there is only one."""
    platforms = {dict(record.parameters).get("platform") for record in study.records}
    if len(platforms) > 1:
        return "platform"
    varied = {
        name
        for record in study.records
        for name, value in record.parameters
        if not isinstance(value, int | float)
    }
    return next((name for name in _COLOURS if name in varied), "platform")


def _trial(
    study: StudyResult, record: TrialRecord, group: str, formats: Mapping[str, Metric]
) -> TrialView:
    values = tuple(
        finite(value * formats[axis.metric].scale)
        for axis, value in zip(study.objectives, record.values, strict=False)
    )
    chosen = dict(record.parameters)
    return TrialView(
        number=record.number,
        status=record.status.value,
        front=record.on_front,
        group=str(chosen.get(group, "")),
        values=values,
        parameters=tuple(
            program_label(str(value)) if name == "program" else value
            for name, value in _shown_parameters(record)
        ),
        reason=quoted(record.reason),
        speedup=_speedup(record),
    )


def _speedup(record: TrialRecord) -> float | None:
    speedup = None if record.prediction is None else record.prediction.metric("speedup", None)
    return None if speedup is None else finite(speedup)


def _shown_parameters(record: TrialRecord) -> list[tuple[str, ParameterValue]]:
    """Returns outer parameters with the network that was taken.

    Placements of tables are left out: the details show them as a plan.
    """
    network = "" if record.prediction is None else record.prediction.network
    return [
        (name, network if network and name == "network" else value)
        for name, value in record.parameters
        if not name.startswith(PLACEMENT_PREFIX)
    ]


def _detailed(study: StudyResult) -> list[TrialRecord]:
    sign = -1.0 if study.objectives[0].maximize else 1.0
    others = sorted(
        (
            record
            for record in study.records
            if record.status is TrialStatus.FEASIBLE and not record.on_front and record.values
        ),
        key=lambda record: (sign * record.values[0], record.number),
    )
    return [*study.front, *others[:_MAX_OTHER_DETAILS]]
