"""What the solver is meant to reach, measured: rates, gaps, memory, and growth of its time."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
import math
import multiprocessing
import statistics
from typing import TYPE_CHECKING

from costs import peak_bytes, processor_s
from marks import Mark
import numpy as np
from pages import percent
from sharding_tasks import TaskResult, draw_task, ours, run_task
from speed import best_of, random_options

from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sharding_tasks import Outcome

#: Limit of our search in the marks of one second: it stops between two steps, so a little earlier.
SECOND_S = 0.9

#: The same for the mark of twenty seconds.
LARGE_LIMIT_S = 18.0

#: Tables and ranks whose search runs to its end.
GROWTH_SIZES = ((20, 4), (50, 4), (50, 8), (100, 8), (200, 8), (200, 16), (400, 16), (400, 32))


@dataclass(frozen=True, slots=True)
class Growth:
    """The search to its end on one size.

    Attributes:
        tables: Tables.
        ranks: Ranks.
        cpu_time_s: Processor time of it: one core is used, and other programs matter less.
        plans_scored: Plans scored.
    """

    tables: int
    ranks: int
    cpu_time_s: float
    plans_scored: int

    @property
    def size(self) -> float:
        """Tables × ranks × log₂(tables)."""
        return self.tables * self.ranks * math.log2(self.tables)


@dataclass(frozen=True, slots=True)
class LargeResult:
    """The largest task: every table on 128 ranks, in a process of its own.

    Attributes:
        result: Methods and bound.
        search_peak_bytes: Most memory of the process until the search was through.
        peak_bytes: The same with the bound.
    """

    result: TaskResult
    search_peak_bytes: int
    peak_bytes: int


def rate_marks() -> Iterator[Mark]:
    """Yields marks of plans scored a second, on one core."""
    for name, ranks, plans, least, hot_rows in (
        ("dlrm_dcnv2", 8, 20_000, 300_000, False),
        ("dlrm_dcnv2", 8, 20_000, 300_000, True),
        ("dlrm_meta2021", 128, 500, 2_000, False),
    ):
        model = load_model(name)
        cluster = load_platform("h100_sxm").cluster(ranks)
        batch = model.global_batch_size // ranks * ranks
        scorer = PlanScorer(DlrmProblem(model, cluster, batch, model.precision, DlrmRuntime()))
        options = random_options(scorer, plans, seed=0, hot_rows=hot_rows)
        scorer.score_options(options[:64])
        clocked_s: list[float] = []
        score = partial(scorer.score_options, options)
        wall_s = best_of(5, lambda work=score, to=clocked_s: to.append(processor_s(work)))
        # One core does it, so other programs on it are left out of the verdict.
        rate = plans / min(clocked_s)
        sizes = f"{len(model.tables)} tables × {ranks} ranks"
        what = f"plans scored per second on one core, {sizes}"
        what += ", hot rows" if hot_rows else ""
        measured = f"{rate:,.0f} ({plans / wall_s:,.0f} by the clock)"
        yield Mark(what, measured, f"≥ {least:,}", rate >= least)


def gap_marks(results: Sequence[TaskResult]) -> Iterator[Mark]:
    """Yields marks of our search within a second on tasks of 100 tables × 8 ranks."""
    name = f"ours, {SECOND_S:g} s"
    gaps = [result.gap(name) for result in results]
    outcomes = [result.outcome(name) for result in results]
    of = f"{len(results)} tasks of 100 tables × 8 ranks"
    median, worst = statistics.median(gaps), max(gaps)
    yield Mark(f"gap, median of {of}", percent(median), "≤ 2 %", median <= 0.02)
    where = f"{percent(worst)} (task {results[gaps.index(worst)].task.number})"
    yield Mark(f"gap, worst of {of}", where, "≤ 5 %", worst <= 0.05)
    longest = max(outcomes, key=lambda one: one.planning_time_s)
    yield _time_mark(f"planning time, longest of {of}", longest, 1.0)


def _time_mark(what: str, run: Outcome, most_s: float) -> Mark:
    seconds = run.planning_time_s
    measured = f"{seconds:.2f} s, {run.cpu_time_s:.2f} s of them on the processor"
    return Mark(what, measured, f"≤ {most_s:g} s", seconds <= most_s)


def large_marks(large: LargeResult) -> Iterator[Mark]:
    """Yields marks of the largest task."""
    name = f"ours, {LARGE_LIMIT_S:g} s"
    where = "856 tables × 128 ranks"
    gap, run = large.result.gap(name), large.result.outcome(name)
    yield Mark(f"gap, {where}", percent(gap), "≤ 5 %", gap <= 0.05)
    yield _time_mark(f"planning time, {where}", run, 20.0)
    for what, peak in (
        ("of the search", large.search_peak_bytes),
        ("with the bound", large.peak_bytes),
    ):
        words = f"{peak / 2**30:.2f} GiB"
        yield Mark(f"memory {what}, {where}", words, "< 2 GiB", peak < 2 * 2**30)


def comparison_marks(results: Sequence[TaskResult], method: str) -> Iterator[Mark]:
    """Yields marks against all other methods, for one of our time limits."""
    usable = [result for result in results if np.isfinite(result.others_best_s)]
    worse = [
        result
        for result in usable
        if result.outcome(method).iteration_time_s > result.others_best_s * (1 + 1e-9)
    ]
    most = max(
        (result.outcome(method).iteration_time_s / result.others_best_s - 1 for result in worse),
        default=0.0,
    )
    measured = f"{len(worse)} of {len(usable)} tasks"
    if worse:
        measured += f", by up to {percent(most)}"
    yield Mark(f"{method}: worse than the best other method", measured, "0", not worse)
    lost = sum(not result.outcome(method).feasible for result in usable)
    what = f"{method}: no plan where another method has one"
    yield Mark(what, f"{lost} of {len(usable)} tasks", "0", not lost)


def growth_exponent(points: Sequence[Growth]) -> float:
    """Returns the slope of log(time) over log(tables × ranks × log₂(tables))."""
    x = np.log([point.size for point in points])
    y = np.log([point.cpu_time_s for point in points])
    return float(np.polyfit(x, y, 1)[0])


def growth_marks(points: Sequence[Growth]) -> Iterator[Mark]:
    """Yields the mark of how time grows."""
    exponent = growth_exponent(points)
    what = "processor time ~ (tables × ranks × log₂ tables)^a, search to its end"
    yield Mark(what, f"a = {exponent:.2f}", "a ≤ 1", exponent <= 1.0)


def measure_growth(seed: int, draws: int) -> list[Growth]:
    """Runs the search to its end; the median of some draws for each size."""
    points = []
    for tables, ranks in GROWTH_SIZES:
        runs = [
            ours(draw_task(tables, ranks, seed=seed, number=number), None)
            for number in range(draws)
        ]
        seconds = statistics.median(run.cpu_time_s for run in runs)
        scored = int(statistics.median(run.plans_scored for run in runs))
        points.append(Growth(tables, ranks, seconds, scored))
    return points


def measure_large(seed: int) -> LargeResult:
    """Runs the largest task in a fresh process, whose memory nothing else is in."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_large, seed).result()


def _large(seed: int) -> LargeResult:
    task = draw_task(856, 128, seed=seed)
    ours(task, LARGE_LIMIT_S)
    search_peak_bytes = peak_bytes()
    result = run_task(task, (LARGE_LIMIT_S,), with_torchrec=False)
    return LargeResult(result, search_peak_bytes, peak_bytes())
