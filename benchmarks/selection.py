"""Does the performance model choose the right sharding plan? Predicted order, measured order.

Usage: python benchmarks/selection.py [--trainer torchrec] [--calibrate] [--tasks N] [--seed S]
                                      [--ranks 2] [--log FILE] [--json]

All plans of a task (`selection_tasks.py`) are predicted on the platform `cpu`, or on what
`--calibrate` has just measured, and trained for real over gloo, interleaved in rounds. A task is a
success when the plan that the model likes best is the fastest measured one or within 10 % of it,
the criterion of TPDS'24 (arXiv 2404.12674), whose 20 tasks had 17 successes. Wants a machine that
does nothing else: where the wall clock is far above the processor time of the busiest rank, other
programs were measured, too. Marks are printed for both.

`--trainer torchrec` trains under TorchRec in place of the reference trainer and adds the plan of
TorchRec's own planner. With `--log` finished tasks are kept in a file and not run again, so that
the experiment can be run in several parts.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
import json
import math
import os
from pathlib import Path
import sys
import time
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

from costs import load
import numpy as np
from selection_figures import TOLERANCE, PlanRow, TaskRow, lines, read_rows, summary
from selection_tasks import PLATFORM, draw_model, plans_of, software_of, task_problem

from dse.errors import DseError
from dse.machine.platforms import load_platform
from dse.ranking import kendall_tau, relative_errors, success_within, top1_regret
from dse.validation import (
    TRAINERS,
    Candidate,
    MeasureLimits,
    TrainerOptions,
    find_trainer,
    measure,
)
from dse.workload import predict_job

if TYPE_CHECKING:
    from dse.machine.platforms import Platform
    from dse.workload.dlrm import DlrmRuntime


def run_task(
    number: int,
    seed: int,
    ranks: int,
    megabytes: float,
    limits: MeasureLimits,
    platform: Platform,
    trainer: str,
    software: DlrmRuntime,
) -> TaskRow:
    """Predicts and measures the plans of one task."""
    model = draw_model(number, seed, ranks, megabytes)
    problem = task_problem(model, ranks, platform, software)
    plans = plans_of(problem, number, with_torchrec=trainer == "torchrec")
    candidates = [
        find_trainer(trainer).adopt(Candidate(", ".join(names), problem, plan))
        for plan, names in plans.items()
    ]
    # Its own work may have been measured here.
    candidates = [
        replace(one, problem=replace(one.problem, software=software)) for one in candidates
    ]
    predicted = [predict_job(candidate.job()).iteration_time_s for candidate in candidates]
    measured = measure(
        candidates,
        trainer=trainer,
        threads=1,
        limits=limits,
        options=TrainerOptions(seed=seed, batches=4),
        timeout_s=600.0,
    )
    times = [one.iteration_time_s for one in measured]
    rows = [
        PlanRow(
            tuple(names),
            expected_s,
            one.iteration_time_s,
            one.low_s,
            one.high_s,
            max(one.rank_processor_times_s),
        )
        for names, expected_s, one in zip(plans.values(), predicted, measured, strict=True)
    ]
    ratios = np.log1p(relative_errors(times, predicted))
    tau = kendall_tau(times, predicted) if len(times) > 1 else math.nan
    return TaskRow(
        number=number,
        tables=len(model.tables),
        global_batch_size=model.global_batch_size,
        plans=tuple(sorted(rows, key=lambda row: row.measured_s)),
        success=success_within(times, predicted, tolerance=TOLERANCE),
        top1_regret=top1_regret(times, predicted),
        kendall_tau=None if math.isnan(tau) else tau,
        geomean_time_error=float(np.expm1(np.abs(ratios).mean())),
        scale=float(np.exp(ratios.mean())),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--budget", type=float, default=15.0, help="seconds of measuring a task")
    parser.add_argument(
        "--minutes", type=float, default=14.0, help="time for everything; budgets shrink to it"
    )
    parser.add_argument(
        "--megabytes", type=float, default=32.0, help="rows that an iteration looks up"
    )
    parser.add_argument("--platform", default=PLATFORM, help="a name or a file")
    parser.add_argument(
        "--calibrate",
        type=float,
        nargs="?",
        const=120.0,
        default=0.0,
        metavar="SECONDS",
        help="measure this machine first and predict by that; kept for an hour",
    )
    parser.add_argument("--trainer", default="reference", choices=list(TRAINERS))
    parser.add_argument("--log", type=Path, help="keeps finished tasks, a JSON line each")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    start_s = time.monotonic()
    platform, software = load_platform(arguments.platform), software_of(arguments.trainer)
    if arguments.calibrate:
        from selection_calibrate import calibrated_machine

        platform, software = calibrated_machine(
            arguments.ranks, arguments.calibrate, arguments.trainer
        )
    rows = read_rows(arguments.log) if arguments.log is not None else []
    done = {row.number for row in rows}
    beside_s = 0.0
    for number in range(arguments.tasks):
        if number in done:
            continue
        task_start_s = time.monotonic()
        left_s = 60.0 * arguments.minutes - (task_start_s - start_s)
        share_s = left_s / (arguments.tasks - number) - beside_s
        budget_s = max(1.0, min(arguments.budget, share_s))
        limits = MeasureLimits(budget_s=budget_s, target_half_width=0.015)
        try:
            row = run_task(
                number,
                arguments.seed,
                arguments.ranks,
                arguments.megabytes,
                limits,
                platform,
                arguments.trainer,
                software,
            )
        except DseError as error:
            print(f"task {number}: {error}", file=sys.stderr, flush=True)
            return 1
        rows.append(row)
        if arguments.log is not None:
            with arguments.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        # Starting ranks and making tables; the budget of later tasks leaves time for it.
        beside_s = max(beside_s, time.monotonic() - task_start_s - budget_s)
        print(
            f"task {number}: {'success' if row.success else 'MISS'}, regret "
            f"{row.top1_regret:.1%}, tau {row.kendall_tau}, error {row.geomean_time_error:.1%}",
            file=sys.stderr,
            flush=True,
        )
    if arguments.json:
        print(json.dumps({**summary(rows), "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print("\n".join(lines(rows)))
        print(f"took {time.monotonic() - start_s:.0f} s; {load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
