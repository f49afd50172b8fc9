"""What the selection experiment found: rows of plans and tasks, their figures and marks."""

from __future__ import annotations

from dataclasses import dataclass
import json
import math
import statistics
from typing import TYPE_CHECKING

from marks import Mark
import numpy as np
from pages import table

from dse.ranking import kendall_tau, relative_errors, success_within, top1_regret

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: A choice this much slower than the best is still a success.
TOLERANCE = 0.10

#: Marks by the clock, and the same by processor time for machines that do other things as well.
MARKS = (
    ("success_rate", "≥", 0.85),
    ("mean_top1_regret", "≤", 0.03),
    ("geomean_time_error", "≤", 0.10),
    ("processor_success_rate", "≥", 0.85),
    ("processor_mean_top1_regret", "≤", 0.03),
    ("processor_geomean_time_error", "≤", 0.10),
)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One plan of one task.

    Attributes:
        sharders: Who made it.
        predicted_s: Iteration time by the model.
        measured_s: Median of the rounds.
        low_s: Lower end of its 95 % interval.
        high_s: Upper end.
        processor_s: Processor time of an iteration on the busiest rank.
    """

    sharders: tuple[str, ...]
    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float
    processor_s: float


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task.

    Attributes:
        number: Which draw.
        tables: Tables.
        global_batch_size: Samples of an iteration.
        plans: Different plans, the fastest measured one first.
        success: Whether the choice is within the tolerance of the best.
        top1_regret: Time that the choice loses, over the best.
        kendall_tau: Agreement of the orders; None where all plans are the same.
        geomean_time_error: Geometric mean of the larger of predicted and measured time over the
            smaller, less 1.
        scale: Geometric mean of predicted over measured time.
    """

    number: int
    tables: int
    global_batch_size: int
    plans: tuple[PlanRow, ...]
    success: bool
    top1_regret: float
    kendall_tau: float | None
    geomean_time_error: float
    scale: float


def read_rows(path: Path) -> list[TaskRow]:
    """Returns the tasks of a log, a JSON line each; none if there is no such file."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        plans = tuple(
            PlanRow(**{**plan, "sharders": tuple(plan["sharders"])}) for plan in values["plans"]
        )
        found.append(TaskRow(**{**values, "plans": plans}))
    return sorted(found, key=lambda row: row.number)


def summary(rows: Sequence[TaskRow]) -> dict[str, float]:
    """Returns the figures over all tasks."""
    taus = [row.kendall_tau for row in rows if row.kendall_tau is not None]
    # One factor for all is a matter of calibration; what is left decides the order.
    scale = math.exp(statistics.fmean(math.log(row.scale) for row in rows))
    errors = [
        abs(math.log(plan.predicted_s / plan.measured_s / scale))
        for row in rows
        for plan in row.plans
    ]
    return {
        "tasks": len(rows),
        "success_rate": statistics.fmean(row.success for row in rows),
        "mean_top1_regret": statistics.fmean(row.top1_regret for row in rows),
        "worst_top1_regret": max(row.top1_regret for row in rows),
        "geomean_time_error": math.expm1(
            statistics.fmean(math.log1p(row.geomean_time_error) for row in rows)
        ),
        "predicted_over_measured": scale,
        "geomean_time_error_after_scale": math.expm1(statistics.fmean(errors)),
        "kendall_tau": statistics.fmean(taus) if taus else math.nan,
        "median_half_width": statistics.median(
            0.5 * (plan.high_s - plan.low_s) / plan.measured_s
            for row in rows
            for plan in row.plans
        ),
        # By processor time: what is left of the answer where other programs disturb the clock.
        **{
            f"processor_{name}": value
            for name, value in choice_figures([_processor(row) for row in rows]).items()
        },
        "wall_over_processor": statistics.median(
            plan.measured_s / plan.processor_s for row in rows for plan in row.plans
        ),
    }


def choice_figures(
    tasks: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> dict[str, float]:
    """Returns what is said of choices among plans.

    Args:
        tasks: Measured and predicted times of the plans of each.
    """
    errors = (np.abs(np.log1p(relative_errors(*task))).mean() for task in tasks)
    return {
        "success_rate": statistics.fmean(
            success_within(*task, tolerance=TOLERANCE) for task in tasks
        ),
        "mean_top1_regret": statistics.fmean(top1_regret(*task) for task in tasks),
        "kendall_tau": statistics.fmean(kendall_tau(*task) for task in tasks if len(task[0]) > 1),
        "geomean_time_error": math.expm1(statistics.fmean(map(float, errors))),
    }


def _processor(row: TaskRow) -> tuple[list[float], list[float]]:
    """Processor times of the plans, and their predictions."""
    return [plan.processor_s for plan in row.plans], [plan.predicted_s for plan in row.plans]


def lines(rows: Sequence[TaskRow]) -> Iterator[str]:
    """Yields tasks and their plans as a Markdown table."""
    cells = []
    for row in rows:
        favourite = min(row.plans, key=lambda plan: plan.predicted_s)
        for plan in row.plans:
            chosen = ""
            if plan is favourite:
                chosen = "chosen" if row.success else f"chosen, loses {row.top1_regret:.1%}"
            times = (
                *(f"{1e3 * plan.predicted_s:.2f} ms", f"{1e3 * plan.measured_s:.2f} ms"),
                f"{1e3 * plan.low_s:.2f}–{1e3 * plan.high_s:.2f} ms",
                f"{1e3 * plan.processor_s:.2f} ms",
            )
            task = (row.number, f"{row.tables}, {row.global_batch_size}")
            cells.append((*task, ", ".join(plan.sharders), *times, chosen))
    heads = ("task", "tables, batch", "plan of", "predicted", "measured", "95 % interval")
    yield from table((*heads, "processor", ""), "rllrrlrl", cells)
    yield ""
    figures = summary(rows)
    for name, value in figures.items():
        yield f"{name}: {value:.3g}"
    yield ""
    for name, sign, mark in MARKS:
        yield Mark.of(name, figures[name], sign, mark, "{:.1%}".format).line
