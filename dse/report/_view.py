"""What the page shows, as plain data; tested without a browser.

The page gets one JSON payload. Every trial has a short entry; the full details (breakdown, memory,
plan) are there for the front and the best other feasible ones only, which bounds the file's size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.report._metrics import METRIC_FORMATS, title_with_unit
from dse.search import TrialStatus, group_reasons

if TYPE_CHECKING:
    from dse.prediction import Prediction
    from dse.search import StudyResult, TrialRecord
    from dse.sharding import ShardingPlan

#: Feasible configurations beside the front that get full details.
_MAX_OTHER_DETAILS = 40

#: Reasons shown, most frequent first.
_MAX_REASONS = 12


@dataclass(frozen=True, slots=True)
class AxisView:
    """One objective.

    Attributes:
        title: Name with unit.
        maximize: Direction.
        scale: Factor from SI to the shown unit.
        digits: Decimal places.
    """

    title: str
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
        platform: Platform, for colour and shape.
        values: Objective values in shown units; empty when not evaluated.
        parameters: Values of the outer parameters, in the order of `ReportView.parameters`.
        reason: Why it is not feasible.
    """

    number: int
    status: str
    front: bool
    platform: str
    values: tuple[float | None, ...]
    parameters: tuple[str | int | float | bool, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class TableView:
    """Placement of one table.

    Attributes:
        name: Table.
        kind: Sharding type.
        kernel: Compute kernel.
        ranks: Its ranks.
    """

    name: str
    kind: str
    kernel: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DetailView:
    """Everything about one candidate.

    Attributes:
        number: Trial number.
        summary: `(label, text)` pairs.
        breakdown_ms: Compute, exposed communication, host and idle time; one list per rank.
        memory_gib: Memory by purpose, in the order of `MEMORY_PURPOSES`; one list per rank.
        usable_gib: Capacity line.
        tables: The plan.
    """

    number: int
    summary: tuple[tuple[str, str], ...]
    breakdown_ms: tuple[tuple[float, ...], ...]
    memory_gib: tuple[tuple[float, ...], ...]
    usable_gib: float
    tables: tuple[TableView, ...]


@dataclass(frozen=True, slots=True)
class ReportView:
    """All data of the page.

    Attributes:
        axes: Objectives.
        parameters: Names of the outer parameters.
        trials: All trials by number.
        details: Full details of some.
        reasons: `(reason, status, count)`, most frequent first.
        counts: `(status, count)`.
    """

    axes: tuple[AxisView, ...]
    parameters: tuple[str, ...]
    trials: tuple[TrialView, ...]
    details: tuple[DetailView, ...]
    reasons: tuple[tuple[str, str, int], ...]
    counts: tuple[tuple[str, int], ...]


BREAKDOWN_PARTS = ("Compute", "Exposed communication", "Host", "Idle")
MEMORY_PURPOSES = (
    "Embedding weights",
    "Optimizer state",
    "Dense parameters",
    "Activations",
    "Indices and pooled embeddings",
    "Communication buffers",
)


def build_view(study: StudyResult) -> ReportView:
    """Extracts what the page shows from a study."""
    counts = Counter(record.status for record in study.records)
    return ReportView(
        axes=tuple(
            AxisView(title_with_unit(axis.metric), axis.maximize, form.scale, form.digits)
            for axis in study.objectives
            for form in (METRIC_FORMATS[axis.metric],)
        ),
        parameters=tuple(name for name, _ in study.records[0].parameters) if study.records else (),
        trials=tuple(_trial(study, record) for record in study.records),
        details=tuple(
            detail for record in _detailed(study) if (detail := _detail(record)) is not None
        ),
        reasons=tuple(
            (group.example, group.status.value, group.count)
            for group in group_reasons(study.records)[:_MAX_REASONS]
        ),
        counts=tuple((status.value, counts[status]) for status in TrialStatus),
    )


def _trial(study: StudyResult, record: TrialRecord) -> TrialView:
    values = tuple(
        _finite(value * METRIC_FORMATS[axis.metric].scale)
        for axis, value in zip(study.objectives, record.values, strict=False)
    )
    chosen = dict(record.parameters)
    return TrialView(
        number=record.number,
        status=record.status.value,
        front=record.on_front,
        platform=str(chosen.get("platform", "")),
        values=values,
        parameters=tuple(value for _, value in record.parameters),
        reason=record.reason,
    )


def _finite(value: float) -> float | None:
    """Rounds to six significant digits; JSON has no NaN."""
    return float(f"{value:.6g}") if value == value and abs(value) != float("inf") else None


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


def _detail(record: TrialRecord) -> DetailView | None:
    configuration, prediction = record.configuration, record.prediction
    if configuration is None or prediction is None:
        return None
    return DetailView(
        number=record.number,
        summary=_summary(record, prediction),
        breakdown_ms=tuple(
            (
                _milli(rank.compute_s),
                _milli(rank.exposed_communication_s),
                _milli(rank.host_s),
                _milli(rank.idle_s),
            )
            for rank in prediction.breakdown
        ),
        memory_gib=tuple(
            (
                _gib(rank.embedding_weights_bytes),
                _gib(rank.embedding_optimizer_bytes),
                _gib(rank.dense_parameters_bytes),
                _gib(rank.activations_bytes),
                _gib(rank.embedding_io_bytes),
                _gib(rank.communication_buffers_bytes),
            )
            for rank in prediction.memory
        ),
        usable_gib=_gib(prediction.usable_memory_bytes),
        tables=_tables(configuration.plan),
    )


def _summary(record: TrialRecord, prediction: Prediction) -> tuple[tuple[str, str], ...]:
    price, cost = prediction.price_usd_per_hour, prediction.cost_usd_per_million_samples
    rows = [
        (
            "Iteration time",
            f"{prediction.iteration_time_s * 1e3:.3f} ms (90 % interval "
            f"{prediction.iteration_time_p5_s * 1e3:.3f} to "
            f"{prediction.iteration_time_p95_s * 1e3:.3f} ms)",
        ),
        ("Throughput", f"{prediction.throughput_samples_per_s / 1e6:.3f} M samples/s"),
        ("Cost", "no price" if cost is None else f"{cost:.5f} USD per million samples"),
        ("Price", "no price" if price is None else f"{price:.2f} USD/h"),
        ("Memory left", f"{100 * prediction.memory_headroom_fraction:.1f} % on the fullest rank"),
        ("Plan found by", record.planner),
    ]
    rows += [(name.replace("_", " "), str(value)) for name, value in record.parameters]
    return tuple(rows)


def _tables(plan: ShardingPlan) -> tuple[TableView, ...]:
    return tuple(
        TableView(table.table, table.sharding_type.value, table.compute_kernel.value, table.ranks)
        for table in plan.tables
    )


def _milli(seconds: float) -> float:
    return float(f"{seconds * 1e3:.5g}")


def _gib(size_bytes: float) -> float:
    return float(f"{size_bytes / 2**30:.5g}")
