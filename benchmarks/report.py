"""The page of a large study: its size, the time to write it and the time to open it.

Usage: python benchmarks/report.py [--trials N] [--runs N] [--json]

Makes up a study of many trials over eight parameters, with plans of 26 tables on up to 64 ranks,
writes its page and opens it in Chromium from a file, each time in a new browser context, until the
page says that its tables and its first plot are there. Chromium is driven by Playwright; without
it only size and writing are measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
import shutil
import statistics
import tempfile

from costs import processor_s
import numpy as np

from dse.report import write_report
from dse.search import InputFile, StudyResult, TrialRecord, TrialStatus, mark_front
from dse.search.space import Objective
from dse.sharding import ShardingPlan, ShardingType, TablePlan
from dse.simulate import RankBreakdown
from dse.workload import Configuration, MemoryAccount, Prediction

#: Largest page and longest opening that the project allows itself, at 5,000 trials.
LIMIT_BYTES = 5_000_000
LIMIT_S = 2.0

OBJECTIVES = (
    Objective("throughput_samples_per_s", True),
    Objective("cost_usd_per_million_samples", False),
)
PLATFORMS = ("a100_sxm", "h100_sxm", "h200_sxm", "l40s", "mi300x")
WORLDS = (1, 2, 4, 8, 16, 32, 64)
TABLES = 26


_PURPOSES = (
    "embedding weights",
    "embedding optimizer state",
    "dense parameters",
    "activations",
    "indices and pooled embeddings",
    "communication buffers",
)


def synthetic_study(trials: int, seed: int = 0) -> StudyResult:
    """Returns a study whose figures are drawn, not predicted: of 20 trials, 16 are feasible.

    Args:
        trials: Number of trials.
        seed: Of the drawing.
    """
    rng = np.random.default_rng(seed)
    records = mark_front([_record(rng, number) for number in range(trials)], OBJECTIVES)
    return StudyResult(
        name="synthetic",
        model_name="synthetic",
        objectives=OBJECTIVES,
        records=records,
        inputs=(InputFile("space", "synthetic", "synthetic.yaml", "0" * 64, "kind: dlrm\n"),),
        facts=(),
        versions=(),
        seed=seed,
        sampler="nsga2",
        created="2026-01-01",
    )


def _record(rng: np.random.Generator, number: int) -> TrialRecord:
    platform = PLATFORMS[rng.integers(len(PLATFORMS))]
    world = WORLDS[rng.integers(len(WORLDS))]
    batch = 2 ** int(rng.integers(9, 17))
    parameters = (
        ("platform", platform),
        ("world_size", world),
        ("batch_per_rank", batch),
        ("precision", ("fp32", "tf32", "bf16")[rng.integers(3)]),
        ("planner", ("size_greedy", "cost_greedy", "optimal")[rng.integers(3)]),
        ("cache_ratio", round(float(rng.uniform(0.05, 0.5)), 3)),
        ("overlap", bool(rng.integers(2))),
        ("row_wise_above_rows", int(rng.integers(1, 10**7))),
    )
    draw = int(rng.integers(20))
    if draw < 3:
        failed = draw == 0
        return TrialRecord(
            number=number,
            status=TrialStatus.FAILED if failed else TrialStatus.REJECTED,
            reason="ValueError: no plan" if failed else f"{world * 4} USD/h is above 60 USD/h",
            parameters=parameters,
            values=(),
            configuration=None,
            prediction=None,
        )
    feasible = draw > 3
    time_s = float(np.exp(rng.normal(-5, 0.4)))
    throughput = world * batch / time_s
    # Dearer the faster, so that the front is long.
    price = 20 * (throughput / 1e6) ** 1.3 * float(np.exp(rng.normal(0, 0.2)))
    cost = price / 3600 / throughput * 1e6
    reason = "" if feasible else f"out of memory: rank {rng.integers(world)} needs 96.0 GiB"
    return TrialRecord(
        number=number,
        status=TrialStatus.FEASIBLE if feasible else TrialStatus.INFEASIBLE,
        reason=reason,
        parameters=parameters,
        values=(throughput, cost),
        configuration=Configuration(
            kind="dlrm",
            platform=platform,
            world_size=world,
            global_batch_size=batch,
            parameters=parameters,
            plan=_plan(rng, world),
            planner="size_greedy",
        ),
        prediction=_prediction(rng, world, time_s, throughput, price, cost, reason),
    )


def _plan(rng: np.random.Generator, world: int) -> ShardingPlan:
    whole = tuple(range(world))
    tables = [
        TablePlan(f"table_{index:02}", ShardingType.ROW_WISE, whole)
        if index % 3 == 0
        else TablePlan(f"table_{index:02}", ShardingType.TABLE_WISE, (int(rng.integers(world)),))
        for index in range(TABLES)
    ]
    return ShardingPlan(world, tuple(tables))


def _prediction(
    rng: np.random.Generator,
    world: int,
    time_s: float,
    throughput: float,
    price: float,
    cost: float,
    reason: str,
) -> Prediction:
    parts = rng.dirichlet((6, 2, 1, 1), world) * time_s
    sizes = rng.uniform(1e7, 1e10, (world, 6))
    return Prediction(
        iteration_time_s=time_s,
        iteration_time_p5_s=0.9 * time_s,
        iteration_time_p95_s=1.2 * time_s,
        throughput_samples_per_s=throughput,
        price_usd_per_hour=price,
        cost_usd_per_million_samples=cost,
        breakdown=tuple(RankBreakdown(*map(float, row)) for row in parts),
        memory=tuple(
            MemoryAccount(tuple(zip(_PURPOSES, map(float, row), strict=True))) for row in sizes
        ),
        usable_memory_bytes=7.6e10,
        feasible=not reason,
        infeasible_reason=reason,
    )


def chromium() -> str | None:
    """Returns the path of Chromium or Chrome; None when there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


def opening_s(page: Path, runs: int) -> list[float]:
    """Returns the seconds from the start of the navigation until the page says it is there.

    The page's own clock, so that the start of the browser and of contexts does not count.
    """
    from playwright.sync_api import sync_playwright

    seconds = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for _ in range(runs):
            with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
                tab = context.new_page()
                # Reads the clock when the mark appears, not when the driver hears of it.
                tab.add_init_script(
                    "new MutationObserver(() => { if (document.documentElement?.dataset.ready) "
                    "window.readyAt ??= performance.now(); })"
                    ".observe(document, { attributes: true, subtree: true });"
                )
                tab.goto(page.as_uri())
                tab.wait_for_selector('html[data-ready="1"]', state="attached", timeout=60_000)
                seconds.append(tab.evaluate("window.readyAt") / 1e3)
        browser.close()
    return seconds


def measured(trials: int, runs: int) -> dict[str, object]:
    """Returns size, time of writing and times of opening."""
    study = synthetic_study(trials)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        writing_s = processor_s(lambda: write_report(study, page))
        result: dict[str, object] = {
            "trials": trials,
            "front": len(study.front),
            "size_bytes": page.stat().st_size,
            "writing_cpu_s": writing_s,
        }
        try:
            import playwright  # noqa: F401
        except ImportError:
            return result
        if chromium() is not None:
            result["opening_s"] = opening_s(page, runs)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measured(arguments.trials, arguments.runs)
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    size = result["size_bytes"]
    print(f"{result['trials']} trials, {result['front']} on the front")
    print(
        f"  size            {size / 1e6:8.2f} MB    limit {LIMIT_BYTES / 1e6:g} MB, "
        f"{size / LIMIT_BYTES:.2f} of it"
    )
    print(f"  writing         {result['writing_cpu_s']:8.2f} s of processor time")
    if "opening_s" not in result:
        print("  opening         not measured: it needs Chromium on the PATH and playwright")
        return
    times = result["opening_s"]
    median = statistics.median(times)
    print(
        f"  opening         {median:8.2f} s     limit {LIMIT_S:g} s, "
        f"{median / LIMIT_S:.2f} of it\n"
        f"                  median of {len(times)}, {min(times):.2f} to {max(times):.2f} s"
    )


if __name__ == "__main__":
    main()
