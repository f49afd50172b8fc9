"""Predicted iterations: one, two side by side, and a ranking of plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse._text.digits import dollars, significant
from dse.report._metrics import format_cost, format_price
from dse.report.console import (
    UNKNOWN,
    Table,
    duration,
    facts,
    figures,
    fit_text,
    gib,
    interval,
    line,
    ms,
    names,
    percent,
    plural,
    rank_names,
    signed_percent,
    texts,
)
from dse.report.terminal._explanation import print_waterfall
from dse.workload import program_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.explanation import Difference
    from dse.simulate import RankBreakdown
    from dse.workload import PairedComparison, Prediction


#: Share of an iteration from which on a rank's time with its host is explained.
_MUCH = 0.2


@dataclass(frozen=True, slots=True)
class PredictionView:
    """One predicted configuration as it is printed.

    Attributes:
        job: Model, devices and batch.
        setup: How the job is set up, such as its plan; may be empty.
        prediction: What the performance model predicts.
        title: Distinguishes it from another one.
        place: What one entry of the breakdown stands for.
        ranks_per_place: Ranks of one entry.
        remarks: Lines below the tables.
    """

    job: str
    setup: str
    prediction: Prediction
    title: str = ""
    place: str = "rank"
    ranks_per_place: int = 1
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankingRow:
    """One plan of a ranking.

    Attributes:
        name: Plan file.
        prediction: What the performance model predicts.
        world_size: Ranks that it needs.
        tie: Whether it cannot be told from the best plan.
    """

    name: str
    prediction: Prediction
    world_size: int
    tie: bool


def print_prediction(view: PredictionView, console: Console) -> None:
    """Prints one prediction: figures, then time and memory of the ranks or pipeline stages."""
    prediction = view.prediction
    if not prediction.feasible:
        line(console, f"does not fit: {prediction.infeasible_reason}", "bold red")
        line(console, "as if it fitted:", "dim")
    line(console, view.job)
    if view.setup:
        line(console, view.setup)
    facts(console, _figures(prediction))
    if view.place == "rank":
        _print_ranks(view, console)
    else:
        _print_places(view, console)
    if any(parts.host_s > _MUCH * prediction.iteration_time_s for parts in prediction.breakdown):
        line(console, "host: includes kernels that run while a rank waits for its host", "dim")
    line(console, usable_memory(prediction))
    for note in prediction.notes:
        line(console, f"note: {note}")
    for remark in view.remarks:
        line(console, remark)


def usable_memory(prediction: Prediction) -> str:
    """Returns the memory that a device has, and which memory the prediction counts."""
    per_device = f"usable memory {gib(prediction.usable_memory_bytes)} per device"
    usable = ", ".join(filter(None, (per_device, fit_text(prediction.fit_probability))))
    held = max((account.host_bytes for account in prediction.memory), default=0.0)
    if held:
        usable += f"; up to {gib(held)} of host memory for each"
    if prediction.peak_allocated_bytes == prediction.peak_memory_bytes:
        return usable
    allocated = gib(prediction.peak_allocated_bytes)
    return f"{usable}; memory is reserved memory, of which at most {allocated} are allocated"


def print_difference(
    views: Sequence[PredictionView],
    paired: PairedComparison,
    difference: Difference,
    console: Console,
) -> None:
    """Prints two predictions side by side, whether they are a tie, and why they differ.

    Args:
        views: The two predictions.
        paired: Their comparison under the same errors of the performance model.
        difference: Where their iteration times differ.
        console: Where to print.
    """
    first, second = views
    table = Table("", names(""), texts(*(view.title for view in views)))
    if any(view.setup for view in views):
        table.add("setup", *(view.setup for view in views))
    before, after = dict(_figures(first.prediction)), dict(_figures(second.prediction))
    # One node needs no network, and one may be without a program.
    longer, shorter = sorted((before, after), key=len, reverse=True)
    for name in longer | shorter:
        table.add(name, before.get(name, "–"), after.get(name, "–"))
    table.add("memory", *(_memory(view.prediction) for view in views))
    console.print()
    table.print(console)
    print_waterfall(second.title, paired, difference, console)


def print_ranking(rows: Sequence[RankingRow], console: Console) -> None:
    """Prints plans in order, fastest first.

    Ranks and price that all plans share stand below the table.
    """
    ranks = [f"{row.world_size:,}" for row in rows]
    prices = [row.prediction.price_usd_per_hour for row in rows]
    shown = [UNKNOWN if price is None else dollars(price, grouped=True) for price in prices]
    alike = len(rows) > 1 and len({*ranks}) == 1 and len({*shown}) == 1
    titles = ["time, ms", "90 % interval", "samples/s", "vs. best", "USD/10⁹"]
    if not alike:
        titles = [*titles[:4], "ranks", "USD/h", *titles[4:]]
    table = Table("", figures(""), names("plan"), figures(*titles))
    best_s = rows[0].prediction.iteration_time_s
    for place, row in enumerate(rows, start=1):
        prediction = row.prediction
        against = signed_percent(prediction.iteration_time_s / best_s - 1) if place > 1 else "best"
        low, high = prediction.iteration_time_p5_s, prediction.iteration_time_p95_s
        cost = prediction.cost_usd_per_billion
        table.add(
            str(place),
            row.name,
            ms(prediction.iteration_time_s),
            f"{ms(low)}–{ms(high)}",
            f"{prediction.throughput_samples_per_s:,.0f}",
            against if prediction.feasible else "too large",
            *(() if alike else (ranks[place - 1], shown[place - 1])),
            UNKNOWN if cost is None else significant(cost),
        )
    table.print(console)
    if alike:
        price = f", {shown[0]} USD/h" if prices[0] is not None else ""
        line(console, f"each on {plural(rows[0].world_size, 'rank')}{price}", "dim")
    line(console, "USD/10⁹: cost of a billion samples", "dim")
    if ties := [row.name for row in rows if row.tie and row.prediction.feasible]:
        line(console, f"tie with the best, run both: {', '.join(ties)}")
    print_bound_by([(row.name, row.prediction) for row in rows], console)
    # All plans of a ranking run under one program.
    if program := rows[0].prediction.program:
        line(console, f"program: {program_label(program)}")
    for row in rows:
        if not row.prediction.feasible:
            line(console, f"{row.name} does not fit: {row.prediction.infeasible_reason}")


def print_bound_by(predictions: Sequence[tuple[str, Prediction]], console: Console) -> None:
    """Prints what binds each of several predictions, those of the same work on one line.

    Args:
        predictions: Names and predictions.
        console: Where to print.
    """
    names_of: dict[str, list[str]] = {}
    for name, prediction in predictions:
        if prediction.bound_by:
            share = percent(prediction.bound_share, 0)
            names_of.setdefault(prediction.bound_by, []).append(f"{name} ({share})")
    for work, found in names_of.items():
        line(console, f"bound by {work}: {', '.join(found)}")


def _utilization(prediction: Prediction, utilization: float) -> str:
    """Returns model FLOPs utilization, with other conventions where they differ."""
    causal = prediction.metric("model_flops_utilization_causal", None)
    hardware = prediction.metric("hardware_flops_utilization", None)
    shown = [f"{percent(utilization)} (without recomputation)"]
    if causal is not None and causal < utilization:
        shown.append(f"{percent(causal)} without masked scores")
    if hardware is not None and hardware > utilization:
        shown.append(f"HFU {percent(hardware)}")
    return ", ".join(shown)


def _figures(prediction: Prediction) -> list[tuple[str, str]]:
    price = prediction.price_usd_per_hour
    rate = f"{prediction.throughput_samples_per_s:,.0f} samples/s"
    mfu = []
    tokens_per_s = prediction.metric("throughput_tokens_per_s", None)
    if tokens_per_s is not None:
        rate = (
            f"{prediction.throughput_samples_per_s:,.2f} samples/s, {tokens_per_s:,.0f} tokens/s"
        )
    utilization = prediction.metric("model_flops_utilization", None)
    if utilization is not None:
        mfu = [("MFU", _utilization(prediction, utilization))]
    return [
        *([("program", program_label(prediction.program))] if prediction.program else []),
        ("iteration time", duration(prediction.iteration_time_s)),
        (
            "90 % interval",
            interval(prediction.iteration_time_p5_s, prediction.iteration_time_p95_s),
        ),
        ("throughput", rate),
        *mfu,
        (
            "cost",
            format_price(price, prediction.rented)
            if price is None
            else f"{format_cost(prediction)} ({format_price(price, prediction.rented)})",
        ),
        *([("network", prediction.network)] if prediction.network else []),
        ("bound by", prediction.bound_text),
        ("feasible", "yes" if prediction.feasible else "no"),
    ]


def _memory(prediction: Prediction) -> str:
    return f"{gib(prediction.peak_memory_bytes)} of {gib(prediction.usable_memory_bytes)}"


def _print_ranks(view: PredictionView, console: Console) -> None:
    """Prints time and memory of the ranks; ranks with equal figures share a row."""
    prediction = view.prediction
    ranks_of = "ranks of a group" if view.ranks_per_place > 1 else "ranks"
    titles = (ranks_of, "compute", "exposed communication", "host", "idle", "memory")
    table = Table("", figures(*titles))
    groups: dict[tuple[str, ...], list[int]] = {}
    shown: dict[tuple[RankBreakdown, float], tuple[str, ...]] = {}
    for rank, known in enumerate(
        zip(prediction.breakdown, prediction.memory_bytes_per_rank, strict=True)
    ):
        if known not in shown:
            parts, size_bytes = known
            shown[known] = (*map(duration, _seconds(parts)), gib(size_bytes))
        groups.setdefault(shown[known], []).append(rank)
    for cells, ranks in groups.items():
        table.add(rank_names(ranks), *cells)
    table.print(console)


def _print_places(view: PredictionView, console: Console) -> None:
    """Prints time and memory of places that stand for several ranks, such as pipeline stages."""
    prediction, ranks = view.prediction, view.ranks_per_place
    parts_of = ("compute", "exposed communication", "host", "bubble")
    times = Table("", figures(view.place, "ranks", *parts_of))
    purposes = (purpose for purpose, _ in prediction.memory[0].parts)
    sizes = Table("memory of a rank, in GiB", figures(view.place, *purposes, "total"))
    for place, (parts, memory) in enumerate(
        zip(prediction.breakdown, prediction.memory, strict=True)
    ):
        times.add(
            str(place),
            rank_names(range(place * ranks, (place + 1) * ranks)),
            *(_part(seconds, prediction.iteration_time_s) for seconds in _seconds(parts)),
        )
        parts_bytes = (size_bytes for _, size_bytes in memory.parts)
        sizes.add(
            str(place), *(f"{each / 2**30:.2f}" for each in (*parts_bytes, memory.total_bytes))
        )
    times.print(console)
    sizes.print(console)


def _part(seconds: float, whole_s: float) -> str:
    """Formats a part of a step in one unit for all parts."""
    return f"{seconds:.3f} s" if whole_s >= 1 else f"{ms(seconds)} ms"


def _seconds(parts: RankBreakdown) -> tuple[float, ...]:
    return (parts.compute_s, parts.exposed_communication_s, parts.host_s, parts.idle_s)
