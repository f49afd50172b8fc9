"""Details of one candidate, and the tables of its model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.errors import DseError
from dse.report.console import duration, interval, percent
from dse.report.page._payload import rounded
from dse.search import change_words, stored_model
from dse.search.space import WorkloadKind
from dse.workload.dlrm import PLACEMENT_PREFIX
from dse.workload.transformer import StepConfiguration, parallelism_words

if TYPE_CHECKING:
    from dse.search import StudyResult, TracePrediction, TrialRecord
    from dse.sharding import ShardingPlan
    from dse.workload import MemoryAccount, Prediction

_PARTS = ("Compute", "Exposed communication", "Host", "Idle")

#: Parts of an iteration; the host of a captured step runs next to the device.
BREAKDOWN_PARTS = {
    WorkloadKind.DLRM: _PARTS,
    WorkloadKind.TRANSFORMER: _PARTS,
    WorkloadKind.TRACE: ("Compute", "Exposed communication", "Idle"),
}

#: Uses of memory; traces do not contain them.
MEMORY_PURPOSES = {
    WorkloadKind.DLRM: (
        "Embedding weights",
        "Optimizer state",
        "Dense parameters",
        "Activations",
        "Indices and pooled embeddings",
        "Communication buffers",
    ),
    WorkloadKind.TRANSFORMER: (
        "Weights",
        "Gradients",
        "Optimizer state",
        "Activations",
        "Communication buffers",
    ),
    WorkloadKind.TRACE: (),
}


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
    if record.trace is not None:
        return trace_detail(record.number, change_words(record), record.trace)
    configuration, prediction = record.configuration, record.prediction
    if configuration is None or prediction is None:
        return None
    return DetailView(
        number=record.number,
        summary=_summary(record, prediction),
        ranks=tuple(range(len(prediction.breakdown))),
        breakdown_ms=tuple(
            (
                _milli(rank.compute_s),
                _milli(rank.exposed_communication_s),
                _milli(rank.host_s),
                _milli(rank.idle_s),
            )
            for rank in prediction.breakdown
        ),
        memory_gib=tuple(_memory_gib(memory) for memory in prediction.memory),
        usable_gib=_gib(prediction.usable_memory_bytes),
        tables=() if isinstance(configuration, StepConfiguration) else _tables(configuration.plan),
    )


def _memory_gib(memory: MemoryAccount) -> tuple[float, ...]:
    """Returns sizes in the order of the purposes of that kind of workload."""
    return tuple(_gib(size_bytes) for _, size_bytes in memory.parts)


def table_sizes(study: StudyResult) -> tuple[TableSize, ...]:
    """Returns the tables of the model that a study keeps; nothing where it keeps none."""
    if study.kind is not WorkloadKind.DLRM:
        return ()
    try:
        model = stored_model(study)
    except DseError:
        # The plan is shown without sizes: they only help to sort it.
        return ()
    return tuple(
        TableSize(
            table.name,
            table.rows,
            table.dim,
            float(table.weight_bytes),
            float(f"{table.lookups_per_sample * table.dim * table.data_type.value_bytes:.6g}"),
        )
        for table in model.tables
    )


def trace_detail(number: int, changes: str, answer: TracePrediction) -> DetailView:
    """Returns the details of a changed step.

    Args:
        number: Trial number; -1 for the step as captured.
        changes: What was changed.
        answer: Result of the simulation.
    """
    return DetailView(
        number=number,
        summary=_trace_summary(changes, answer),
        ranks=tuple(rank.rank for rank in answer.ranks),
        breakdown_ms=tuple(
            (
                _milli(rank.compute_s),
                _milli(rank.exposed_communication_s),
                _milli(rank.idle_s),
            )
            for rank in answer.ranks
        ),
        changes=tuple(
            ChangeView(effect.title, effect.tasks, _milli(effect.before_s), _milli(effect.after_s))
            for effect in answer.effects
        ),
        notes=answer.notes,
    )


def _trace_summary(changes: str, answer: TracePrediction) -> tuple[tuple[str, str], ...]:
    platform = answer.platform or "unknown"
    rows = [
        ("Changes", changes),
        ("Step", f"{answer.iteration_time_s * 1e3:.3f} ms (no interval: one step was captured)"),
        ("Speed-up", f"{answer.speedup:.3f} times the captured throughput"),
        ("Machine", f"{answer.world_size} × {platform}"),
    ]
    if answer.throughput_samples_per_s is not None:
        rows.append(("Throughput", f"{answer.throughput_samples_per_s:,.0f} samples/s"))
    if answer.price_usd_per_hour is not None:
        rows.append(("Price", f"{answer.price_usd_per_hour:.2f} USD/h"))
    if answer.cost_usd_per_million_samples is not None:
        rows.append(("Cost", f"{answer.cost_usd_per_million_samples:.5f} USD per million samples"))
    return tuple(rows)


def _summary(record: TrialRecord, prediction: Prediction) -> tuple[tuple[str, str], ...]:
    price, cost = prediction.price_usd_per_hour, prediction.cost_usd_per_million_samples
    rows = [
        (
            "Iteration time",
            f"{duration(prediction.iteration_time_s)} (90 % interval "
            f"{interval(prediction.iteration_time_p5_s, prediction.iteration_time_p95_s)})",
        ),
        ("Throughput", _throughput(prediction)),
        ("Cost", "no price" if cost is None else f"{_cost(cost)} USD per million samples"),
        ("Price", "no price" if price is None else f"{price:.2f} USD/h"),
        ("Memory left", f"{percent(prediction.memory_headroom_fraction)} on the fullest rank"),
    ]
    utilization = prediction.metric("model_flops_utilization")
    if utilization is not None:
        rows.append(("MFU", percent(utilization)))
    if isinstance(record.configuration, StepConfiguration):
        rows.append(("Parallelism", parallelism_words(record.configuration.parallelism)))
    if record.planner:
        rows.append(("Plan found by", record.planner))
    if record.plan_gap is not None:
        gap = f"at most {percent(record.plan_gap)} slower than the best possible plan"
        rows.append(("Plan", f"{gap} under this model"))
    rows += [
        (name.replace("_", " "), str(value))
        for name, value in record.parameters
        if not name.startswith(PLACEMENT_PREFIX)
    ]
    return tuple(rows)


def _cost(usd: float) -> str:
    return f"{usd:,.0f}" if usd >= 1000 else f"{usd:.5g}"


def _throughput(prediction: Prediction) -> str:
    tokens_per_s = prediction.metric("throughput_tokens_per_s")
    if tokens_per_s is not None:
        return (
            f"{prediction.throughput_samples_per_s:,.2f} samples/s, {tokens_per_s:,.0f} tokens/s"
        )
    return f"{prediction.throughput_samples_per_s / 1e6:.3f} M samples/s"


def _tables(plan: ShardingPlan) -> tuple[TableView, ...]:
    return tuple(
        TableView(
            table.table,
            table.sharding_type.value,
            table.compute_kernel.value,
            _runs(table.ranks),
        )
        for table in plan.tables
    )


@lru_cache(maxsize=4096)
def _runs(ranks: tuple[int, ...]) -> str:
    """Formats ranks in their order, consecutive ones as first and last."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def _milli(seconds: float) -> float:
    return rounded(1e3 * seconds, 5)


def _gib(size_bytes: float) -> float:
    return rounded(size_bytes / 2**30, 5)
