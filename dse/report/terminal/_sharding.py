"""The answer of a search for a sharding plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.report.console import Table, duration, figures, gib, line, names, percent, plural
from dse.report.terminal._prediction import usable_memory
from dse.workload import program_label

if TYPE_CHECKING:
    from rich.console import Console

    from dse.workload import Prediction
    from dse.workload.dlrm.solver import ShardingSolution


@dataclass(frozen=True, slots=True)
class ShardingView:
    """A plan as it is printed.

    Attributes:
        solution: The plan with its bound.
        prediction: Its prediction.
        lookup_load_s: Time of each rank in lookups and updates.
        host_memory_bytes: Host memory of a node, or None if unknown.
    """

    solution: ShardingSolution
    prediction: Prediction
    lookup_load_s: tuple[float, ...]
    host_memory_bytes: float | None


def print_sharding(view: ShardingView, console: Console) -> None:
    """Prints how good the plan is, the placement of tables, and the extreme ranks."""
    solution = view.solution
    line(console, _headline(solution), "bold")
    prediction = view.prediction
    if prediction.program:
        line(console, f"program: {program_label(prediction.program)}")
    if prediction.network:
        rented = f", {prediction.rented}" if prediction.rented else ""
        line(console, f"nodes connected by {prediction.network}{rented}")
    line(console, f"bound by {prediction.bound_text}")
    if solution.ties:
        line(
            console,
            f"{plural(solution.ties, 'other plan')} that the search began with take as long, "
            "because the host binds; this one has the least work for the devices",
        )
    if solution.time_without_hot_rows_s is not None:
        line(console, _hot_rows(solution, solution.time_without_hot_rows_s))
    _print_kinds(view, console)
    _print_ranks(view, console)
    held_bytes = sum(memory.host_bytes for memory in view.prediction.memory)
    if held_bytes:
        limit = (
            f"{gib(view.host_memory_bytes)} a node"
            if view.host_memory_bytes is not None
            else "not checked, because the platform does not give its size"
        )
        line(console, f"in host memory: {gib(held_bytes)}; {limit}")
    line(
        console,
        f"{solution.plans_scored:,} plans scored in {solution.planning_time_s:.1f} s, bounded in "
        f"{solution.bound_time_s:.1f} s; found by {solution.planner}; "
        f"{usable_memory(view.prediction)}",
    )


def _headline(solution: ShardingSolution) -> str:
    best = f"best {duration(solution.iteration_time_s)}"
    if solution.lower_bound_s is None or solution.gap is None:
        return f"{best}, lower bound unknown"
    return f"{best}, lower bound {duration(solution.lower_bound_s)}, gap ≤ {percent(solution.gap)}"


def _hot_rows(solution: ShardingSolution, without_s: float) -> str:
    """Returns what hot rows bring, against the best plan that was found without them."""
    tables = [table for table in solution.plan.tables if table.hot_rows]
    if not tables:
        return "hot rows: none, because no plan found with them is faster"
    rows = sum(table.hot_rows for table in tables)
    saved_s = without_s - solution.iteration_time_s
    return (
        f"hot rows: {rows:,} rows of {plural(len(tables), 'table')} on every rank save "
        f"{duration(saved_s)} ({percent(saved_s / without_s)}) against the best plan found "
        f"without, {duration(without_s)}"
    )


def _print_kinds(view: ShardingView, console: Console) -> None:
    tables = view.solution.plan.tables
    counts: Counter[tuple[str, str]] = Counter()
    hot: Counter[tuple[str, str]] = Counter()
    for table in tables:
        kind = (table.sharding_type.value, table.compute_kernel.value)
        counts[kind] += 1
        hot[kind] += table.hot_rows
    heads = figures("tables", "hot rows") if hot.total() else figures("tables")
    shown = Table("", names("sharding type", "kernel"), heads)
    for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        shown.add(*kind, *(f"{count:,}", f"{hot[kind]:,}")[: len(heads)])
    shown.print(console)


def _print_ranks(view: ShardingView, console: Console) -> None:
    shards = Counter(rank for table in view.solution.plan.tables for rank in table.ranks)
    ranks = range(len(view.lookup_load_s))
    memory = view.prediction.memory_bytes_per_rank
    chosen = {
        "busiest rank": max(ranks, key=lambda rank: view.lookup_load_s[rank]),
        "least busy rank": min(ranks, key=lambda rank: view.lookup_load_s[rank]),
        "fullest rank": max(ranks, key=lambda rank: memory[rank]),
    }
    table = Table("", names(""), figures("rank", "shards", "lookups and updates", "memory"))
    for name, rank in chosen.items():
        load = duration(view.lookup_load_s[rank])
        table.add(name, str(rank), f"{shards[rank]:,}", load, gib(memory[rank]))
    table.print(console)
