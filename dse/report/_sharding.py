"""The answer of a search for a sharding plan, on a terminal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from dse.report._metrics import gibibytes, milliseconds

if TYPE_CHECKING:
    from rich.console import Console

    from dse.workload.dlrm import Prediction
    from dse.workload.dlrm.solver import ShardingSolution


@dataclass(frozen=True, slots=True)
class ShardingView:
    """What is shown of a solution.

    Attributes:
        solution: The plan with its bound.
        prediction: What the model says of it.
        lookup_load_s: Each rank's time in lookups and updates.
        host_memory_bytes: Host memory of a node, or None when it is not known.
    """

    solution: ShardingSolution
    prediction: Prediction
    lookup_load_s: tuple[float, ...]
    host_memory_bytes: float | None


def render_sharding(view: ShardingView, console: Console) -> None:
    """Prints how good the plan is, what goes where, and the ranks at both ends."""
    console.print(headline(view.solution), markup=False, highlight=False, style="bold")
    console.print(_kinds_table(view))
    console.print(_ranks_table(view))
    held_bytes = sum(memory.host_bytes for memory in view.prediction.memory)
    if held_bytes:
        limit = (
            f"{gibibytes(view.host_memory_bytes)} a node"
            if view.host_memory_bytes is not None
            else "the platform does not say how much there is, so it was not checked"
        )
        console.print(
            f"in host memory: {gibibytes(held_bytes)}; {limit}", markup=False, highlight=False
        )
    solution = view.solution
    console.print(
        f"{solution.plans_scored:,} plans scored in {solution.planning_time_s:.1f} s, bounded in "
        f"{solution.bound_time_s:.1f} s; found by {solution.planner}; usable memory "
        f"{gibibytes(view.prediction.usable_memory_bytes)} per device",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def headline(solution: ShardingSolution) -> str:
    """Returns one line: the best time, the bound, and the gap between them."""
    best = f"best {milliseconds(solution.iteration_time_s)}"
    if solution.lower_bound_s is None or solution.gap is None:
        return f"{best}, lower bound not known"
    bound = f"lower bound {milliseconds(solution.lower_bound_s)}"
    return f"{best}, {bound}, gap ≤ {100 * solution.gap:.1f} %"


def _kinds_table(view: ShardingView) -> Table:
    counts = Counter(
        (table.sharding_type.value, table.compute_kernel.value)
        for table in view.solution.plan.tables
    )
    table = Table(box=None, header_style="bold")
    table.add_column("sharding type")
    table.add_column("kernel")
    table.add_column("tables", justify="right")
    for (kind, kernel), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(kind, kernel, f"{count:,}")
    return table


def _ranks_table(view: ShardingView) -> Table:
    pieces = Counter(rank for table in view.solution.plan.tables for rank in table.ranks)
    ranks = range(len(view.lookup_load_s))
    memory = view.prediction.memory_bytes_per_rank
    chosen = {
        "busiest rank": max(ranks, key=lambda rank: view.lookup_load_s[rank]),
        "lightest rank": min(ranks, key=lambda rank: view.lookup_load_s[rank]),
        "fullest rank": max(ranks, key=lambda rank: memory[rank]),
    }
    table = Table(box=None, header_style="bold")
    table.add_column("")
    for title in ("rank", "pieces", "lookups and updates", "memory"):
        table.add_column(title, justify="right")
    for name, rank in chosen.items():
        table.add_row(
            name,
            str(rank),
            f"{pieces[rank]:,}",
            milliseconds(view.lookup_load_s[rank]),
            gibibytes(memory[rank]),
        )
    return table
