"""Details of one candidate, and the tables of its model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
import math
from typing import TYPE_CHECKING

from dse.errors import DseError
from dse.report._decision import gap_text
from dse.report._metrics import format_cost, format_price
from dse.report.console import duration, fit_text, interval, percent, rank_runs
from dse.report.page._payload import rounded
from dse.search import stored_workload
from dse.workload import program_label, workload_kind

if TYPE_CHECKING:
    from dse.search import StudyResult, StudyTrace, TrialRecord
    from dse.sharding import ShardingPlan
    from dse.workload import Prediction

#: Rates below this are not written in millions.
_FEW_PER_S = 1e4

#: Parts of an iteration.
BREAKDOWN_PARTS = ("Compute", "Exposed communication", "Host", "Idle")


def memory_purposes(study: StudyResult) -> tuple[str, ...]:
    """Returns the uses of memory of a study's candidates; nothing if they are not known."""
    for record in study.records:
        if record.prediction is not None and record.prediction.memory:
            parts = record.prediction.memory[0].parts
            return tuple(purpose.capitalize() for purpose, _ in parts)
    return ()


@dataclass(frozen=True, slots=True)
class TableView:
    """Placement of one table.

    Attributes:
        name: Table.
        kind: Sharding type.
        kernel: Compute kernel.
        ranks: Its ranks, runs of neighbours as first and last: ``0-7`` or ``1,5``. A table may lie
            on hundreds of ranks, and candidates have hundreds of tables.
    """

    name: str
    kind: str
    kernel: str
    ranks: str


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of one embedding table.

    Attributes:
        name: Table.
        rows: Rows.
        dim: Width.
        size_bytes: Weights of all rows in bytes.
        read_bytes: Bytes of weights that one sample looks up, before caches.
    """

    name: str
    rows: int
    dim: int
    size_bytes: float
    read_bytes: float


@dataclass(frozen=True, slots=True)
class ChangeView:
    """Effect of one change of a captured step.

    Attributes:
        title: The change.
        tasks: Tasks that it affected.
        before_ms: Duration of the step before it.
        after_ms: Duration of the step after it.
    """

    title: str
    tasks: int
    before_ms: float
    after_ms: float


@dataclass(frozen=True, slots=True)
class DetailView:
    """Details of one candidate; what its kind of study does not have is empty.

    Attributes:
        number: Trial number.
        summary: `(label, text)` pairs.
        ranks: Numbers of the ranks, or of the pipeline stages of a transformer.
        breakdown_ms: Time by part, in the order of `ReportView.breakdown_parts`; one list per
            rank.
        memory_gib: Memory by purpose, in the order of `ReportView.memory_purposes`; one list per
            rank.
        usable_gib: Capacity line.
        tables: The plan.
        changes: Changes of a captured step, in order.
        notes: What was assumed.
    """

    number: int
    summary: tuple[tuple[str, str], ...]
    ranks: tuple[int, ...]
    breakdown_ms: tuple[tuple[float, ...], ...]
    memory_gib: tuple[tuple[float, ...], ...] = ()
    usable_gib: float | None = None
    tables: tuple[TableView, ...] = ()
    changes: tuple[ChangeView, ...] = ()
    notes: tuple[str, ...] = ()


def detail_of(record: TrialRecord) -> DetailView | None:
    """Returns the details of a configuration, or None if it was not evaluated."""
    configuration, prediction = record.configuration, record.prediction
    if configuration is None or prediction is None:
        return None
    kind = workload_kind(configuration.kind)
    summary = (
        *kind.details(configuration),
        *_figures(prediction),
        *_plan_rows(record),
    )
    found = prediction_detail(record.number, summary, prediction)
    if configuration.plan is None:
        return found
    return replace(found, tables=_tables(configuration.plan))


def prediction_detail(
    number: int, summary: tuple[tuple[str, str], ...], prediction: Prediction
) -> DetailView:
    """Returns the details of a prediction.

    Args:
        number: Trial number; -1 for a step as captured.
        summary: Labelled facts.
        prediction: The prediction.
    """
    return DetailView(
        number=number,
        summary=summary,
        ranks=tuple(range(max(len(prediction.breakdown), len(prediction.memory)))),
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
            tuple(_gib(size_bytes) for _, size_bytes in memory.parts)
            for memory in prediction.memory
        ),
        usable_gib=_gib(prediction.usable_memory_bytes),
        changes=tuple(
            ChangeView(effect.title, effect.tasks, _milli(effect.before_s), _milli(effect.after_s))
            for effect in prediction.effects
        ),
        notes=prediction.notes,
    )


def captured_detail(number: int, trace: StudyTrace) -> DetailView:
    """Returns the details of the step as captured."""
    machine = f"{trace.world_size} × {trace.platform or 'unknown'}"
    summary = (("Changes", "as captured"), ("Machine", machine), *_figures(trace.baseline))
    return prediction_detail(number, summary, trace.baseline)


def table_sizes(study: StudyResult) -> tuple[TableSize, ...]:
    """Returns the tables of the model that a study keeps; nothing where it keeps none."""
    try:
        tables = stored_workload(study).tables
    except DseError:
        # The plan is shown without sizes: they only help to sort it.
        return ()
    return tuple(
        TableSize(
            table.name,
            table.rows,
            table.dim,
            float(table.weight_bytes),
            float(f"{table.lookups_per_sample * table.data_type.row_bytes(table.dim):.6g}"),
        )
        for table in tables
    )


def _figures(prediction: Prediction) -> list[tuple[str, str]]:
    low_s, high_s = prediction.iteration_time_p5_s, prediction.iteration_time_p95_s
    known = "no interval: one step was captured"
    if not math.isnan(low_s):
        known = f"90 % interval {interval(low_s, high_s)}"
    rows = [("Program", program_label(prediction.program))] if prediction.program else []
    rows.append(("Iteration time", f"{duration(prediction.iteration_time_s)} ({known})"))
    if prediction.bound_by:
        rows.append(("Bound by", prediction.bound_text))
    if not math.isnan(prediction.throughput_samples_per_s):
        rows.append(("Throughput", _throughput(prediction)))
    rows += [
        ("Cost", format_cost(prediction)),
        ("Price", format_price(prediction.price_usd_per_hour, prediction.rented)),
        *([("Network", prediction.network)] if prediction.network else []),
    ]
    if prediction.memory:
        left = percent(prediction.memory_headroom_fraction)
        parts = (f"{left} on the fullest rank", fit_text(prediction.fit_probability))
        rows.append(("Memory left", "; ".join(filter(None, parts))))
    utilization = prediction.metric("model_flops_utilization", None)
    if utilization is not None:
        rows.append(("MFU", percent(utilization)))
    for name, title in (
        ("model_flops_utilization_causal", "MFU, causal"),
        ("hardware_flops_utilization", "HFU"),
    ):
        other = prediction.metric(name, None)
        if other is not None and other != utilization:
            rows.append((title, percent(other)))
    speedup = prediction.metric("speedup", None)
    if speedup is not None:
        rows.append(("Speed-up", f"{speedup:.3f} times the captured throughput"))
    return rows


def _plan_rows(record: TrialRecord) -> list[tuple[str, str]]:
    rows = []
    if record.planner:
        rows.append(("Plan found by", record.planner))
    if record.plan_gap is not None:
        rows.append(("Plan", f"{gap_text(record.plan_gap)} plan under this model"))
    return rows


def _throughput(prediction: Prediction) -> str:
    tokens_per_s = prediction.metric("throughput_tokens_per_s", None)
    if tokens_per_s is not None or prediction.throughput_samples_per_s < _FEW_PER_S:
        tokens = "" if tokens_per_s is None else f", {tokens_per_s:,.0f} tokens/s"
        return f"{prediction.throughput_samples_per_s:,.2f} samples/s{tokens}"
    return f"{prediction.throughput_samples_per_s / 1e6:.3f} M samples/s"


def _tables(plan: ShardingPlan) -> tuple[TableView, ...]:
    return tuple(
        TableView(
            table.table,
            table.sharding_type.value
            + (f", {table.hot_rows:,} hot rows" if table.hot_rows else ""),
            table.compute_kernel.value,
            _runs(table.ranks),
        )
        for table in plan.tables
    )


@lru_cache(maxsize=4096)
def _runs(ranks: tuple[int, ...]) -> str:
    """Formats ranks in their order, consecutive ones as first and last."""
    return ",".join(rank_runs(ranks, "-"))


def _milli(seconds: float) -> float:
    return rounded(1e3 * seconds, 5)


def _gib(size_bytes: float) -> float:
    return rounded(size_bytes / 2**30, 5)
