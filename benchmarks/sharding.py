"""Sharding plans of the usual methods and ours: iteration time over a lower bound, planning time.

Usage: python benchmarks/sharding.py [--tasks N] [--tables 20,50] [--ranks 4,8] [--quick] [--json]
       python benchmarks/sharding.py --marks [--mark-tasks N] [--plot FILE.svg]
       python benchmarks/sharding.py --read FILE.json … [--write docs/performance.md]

Tasks are drawn from the 856 tables of `dlrm_meta2021`, on nodes of 8 devices, with memory as it is
(loose) and reduced until the tables fill 87.5 % of what is free for them (tight). All plans are
scored by the same performance model. TorchRec's planner takes part where TorchRec is installed
(docs/torchrec.md). The full grid takes hours; `--quick` takes a couple of minutes on two cores.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
import json
import math
import os
from pathlib import Path
import statistics
import sys
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pages import replace_section, table, text
from sharding_marks import (
    SECOND_S,
    comparison_marks,
    gap_marks,
    growth_exponent,
    growth_marks,
    large_marks,
    measure_growth,
    measure_large,
    rate_marks,
)
from sharding_page import methods_section
from sharding_tasks import draw_task, ours, run_task, torchrec_installed

from dse._process.memory import collect_rarely

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from marks import Mark
    from sharding_marks import Growth
    from sharding_tasks import TaskResult


@dataclass(frozen=True, slots=True)
class Row:
    """One method on all tasks of one setting.

    Attributes:
        tables: Tables.
        ranks: Ranks.
        platform: Platform.
        memory: `loose` or `tight`.
        method: Method.
        tasks: Tasks.
        feasible: Tasks for which it has a plan that fits.
        median_over_bound: Median of iteration time over lower bound, of its plans that fit; None
            where there is none.
        worst_over_bound: The largest of these.
        planning_time_s: Median.
        cpu_time_s: Median processor time of the same.
        plans_scored: Median.
    """

    tables: int
    ranks: int
    platform: str
    memory: str
    method: str
    tasks: int
    feasible: int
    median_over_bound: float | None
    worst_over_bound: float | None
    planning_time_s: float
    cpu_time_s: float
    plans_scored: int


def rows_of(results: Sequence[TaskResult]) -> list[Row]:
    """Returns one row for each setting and method, in the order in which they were run."""
    settings = dict.fromkeys(result.task.setting for result in results)
    rows = []
    for setting in settings:
        same = [result for result in results if result.task.setting == setting]
        for method in (one.method for one in same[0].outcomes):
            outcomes = [result.outcome(method) for result in same]
            ratios = [
                1.0 + result.gap(method) for result in same if result.outcome(method).feasible
            ]
            row = Row(
                *setting,
                method=method,
                tasks=len(same),
                feasible=len(ratios),
                median_over_bound=statistics.median(ratios) if ratios else None,
                worst_over_bound=max(ratios, default=None),
                planning_time_s=statistics.median(one.planning_time_s for one in outcomes),
                cpu_time_s=statistics.median(one.cpu_time_s for one in outcomes),
                plans_scored=int(statistics.median(one.plans_scored for one in outcomes)),
            )
            rows.append(row)
    return rows


def table_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the rows as a Markdown table."""
    heads = ("tables × ranks", "platform, memory", "method", "median", "worst", "fits", "plan in")
    cells = (
        (
            *(f"{row.tables} × {row.ranks}", f"{row.platform}, {row.memory}", row.method),
            *(_ratio(row.median_over_bound), _ratio(row.worst_over_bound)),
            *(f"{row.feasible} of {row.tasks}", _seconds(row.planning_time_s)),
            *(_seconds(row.cpu_time_s), f"{row.plans_scored:,}" if row.plans_scored else "–"),
        )
        for row in rows
    )
    yield from table((*heads, "processor", "scored"), "lllr", cells)
    if not torchrec_installed():
        yield ""
        yield "TorchRec: not installed."


def mark_lines(marks: Sequence[Mark]) -> Iterator[str]:
    """Yields the marks as the table of docs/performance.md."""
    cells = (
        (mark.name, mark.figure, mark.aim, "reached" if mark.met else "**MISSED**")
        for mark in marks
    )
    yield from table(("what", "measured", "mark", ""), "lrrl", cells)


def growth_lines(points: Sequence[Growth]) -> Iterator[str]:
    """Yields the growth of planning time as a Markdown table."""
    heads = ("tables × ranks", "tables × ranks × log₂ tables", "processor time", "plans scored")
    cells = (
        (
            *(f"{point.tables} × {point.ranks}", f"{point.size:,.0f}"),
            *(_seconds(point.cpu_time_s), f"{point.plans_scored:,}"),
        )
        for point in points
    )
    yield from table(heads, "lr", cells)


def _ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3f}"


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def plot_growth(points: Sequence[Growth], file: Path) -> None:
    """Draws planning time over size, with the fitted line; needs matplotlib."""
    import matplotlib as mpl

    mpl.use("svg")
    # The same points give the same file.
    mpl.rcParams["svg.hashsalt"] = "dse"
    import matplotlib.pyplot as plt

    exponent = growth_exponent(points)
    sizes = [point.size for point in points]
    seconds = [point.cpu_time_s for point in points]
    middle_x = math.exp(statistics.fmean(math.log(size) for size in sizes))
    middle_y = math.exp(statistics.fmean(math.log(second) for second in seconds))
    ends = [min(sizes), max(sizes)]
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    axes.loglog(sizes, seconds, "o", color="#1f6f8b")
    axes.loglog(
        ends,
        [middle_y * (end / middle_x) ** exponent for end in ends],
        color="#c2552d",
        label=f"exponent {exponent:.2f}",
    )
    for point in points:
        axes.annotate(
            f"{point.tables} × {point.ranks}",
            (point.size, point.cpu_time_s),
            textcoords="offset points",
            xytext=(5, 4),
            fontsize=8,
        )
    axes.set_xlabel("tables × ranks × log₂(tables)")
    axes.set_ylabel("processor time of the search (s)")
    axes.legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _numbers(words: str) -> tuple[int, ...]:
    return tuple(int(word) for word in words.split(","))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=5, help="draws of each setting")
    parser.add_argument("--tables", type=_numbers, default=(20, 50, 100, 200))
    parser.add_argument("--ranks", type=_numbers, default=(2, 4, 8, 64, 128))
    parser.add_argument("--platforms", default="h100_sxm,a100_sxm_40")
    parser.add_argument("--memory", default="loose,tight")
    parser.add_argument("--limits", default="0.1,1,10", help="seconds of our search")
    parser.add_argument("--no-torchrec", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a small grid, limits 0.1 and 1 s")
    parser.add_argument("--marks", action="store_true", help="the marks, in place of the table")
    parser.add_argument("--mark-tasks", type=int, default=50)
    parser.add_argument("--growth-draws", type=int, default=3)
    parser.add_argument("--no-large", action="store_true", help="leave 856 × 128 out")
    parser.add_argument("--no-growth", action="store_true", help="leave growth of time out")
    parser.add_argument("--plot", type=Path, help="SVG of the growth; needs matplotlib")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--read", type=Path, nargs="+", help="print what --json wrote before")
    parser.add_argument("--write", type=Path, help="page to write the section on methods into")
    return parser.parse_args()


def _table(arguments: argparse.Namespace) -> list[TaskResult]:
    limits = tuple(float(word) for word in arguments.limits.split(","))
    tables, ranks, tasks = arguments.tables, arguments.ranks, arguments.tasks
    platforms, memories = arguments.platforms.split(","), arguments.memory.split(",")
    if arguments.quick:
        tables, ranks, tasks, limits = (20, 50), (4, 8), 2, (0.1, 1.0)
        platforms = platforms[:1]
    results = []
    for count in tables:
        for world_size in ranks:
            for platform in platforms:
                for memory in memories:
                    where = f"{count} × {world_size}, {platform}, {memory}"
                    print(where, file=sys.stderr, flush=True)
                    for number in range(tasks):
                        task = draw_task(
                            count,
                            world_size,
                            platform=platform,
                            tight=memory == "tight",
                            seed=arguments.seed,
                            number=number,
                        )
                        results.append(
                            run_task(task, limits, with_torchrec=not arguments.no_torchrec)
                        )
    return results


def _marks(arguments: argparse.Namespace) -> tuple[list[Mark], list[Growth]]:
    marks = list(rate_marks())
    results = [
        run_task(
            draw_task(100, 8, seed=arguments.seed, number=number),
            (SECOND_S,),
            with_torchrec=not arguments.no_torchrec,
        )
        for number in range(arguments.mark_tasks)
    ]
    marks += gap_marks(results)
    marks += comparison_marks(results, f"ours, {SECOND_S:g} s")
    print(text(mark_lines(marks)), file=sys.stderr, end="", flush=True)
    if not arguments.no_large:
        marks += large_marks(measure_large(arguments.seed))
    points: list[Growth] = []
    if not arguments.no_growth:
        points = measure_growth(arguments.seed, arguments.growth_draws)
        marks += growth_marks(points)
    return marks, points


def read_rows(files: Sequence[Path]) -> list[Row]:
    """Returns the rows that runs with `--json` wrote, in the order of the files."""
    found = [json.loads(file.read_text()) for file in files]
    listed = [one if isinstance(one, list) else one["rows"] for one in found]
    return [Row(**row) for rows in listed for row in rows]


def main() -> None:
    arguments = _arguments()
    if arguments.read:
        rows = read_rows(arguments.read)
        print("\n".join(table_lines(rows)))
        if arguments.write:
            replace_section(arguments.write, methods_section(rows))
        return
    # As in `dse shard`: a collection of all that the tasks hold takes up to 0.2 s.
    collect_rarely()
    # Libraries are loaded once; no method pays for that.
    ours(draw_task(20, 2, seed=arguments.seed), 0.1)
    rows: list[Row] = []
    points: list[Growth] = []
    marks: list[Mark] = []
    if arguments.marks:
        marks, points = _marks(arguments)
    else:
        results = _table(arguments)
        rows = rows_of(results)
        methods = [one.method for one in results[0].outcomes if one.method.startswith("ours")]
        marks = [mark for method in methods for mark in comparison_marks(results, method)]
    if arguments.plot and points:
        plot_growth(points, arguments.plot)
    if arguments.json:
        found = {
            "torchrec": torchrec_installed(),
            "rows": [asdict(row) for row in rows],
            "marks": [
                {
                    "what": mark.name,
                    "measured": mark.figure,
                    "mark": mark.aim,
                    "reached": mark.met,
                }
                for mark in marks
            ],
            "growth": [asdict(point) for point in points],
        }
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    lines = [*table_lines(rows), ""] if rows else []
    lines += mark_lines(marks)
    lines += ["", *growth_lines(points)] if points else []
    print("\n".join(lines))


if __name__ == "__main__":
    main()
