"""Does the performance model choose the right sharding plan? Predicted order, measured order.

Usage: python benchmarks/selection.py [--calibrate] [--tasks N] [--seed S] [--ranks 2] [--json]

All plans of a task (`selection_tasks.py`) are predicted on the platform `cpu`, or on what
`--calibrate` has just measured, and trained for real over gloo, interleaved in rounds. A task is a
success when the plan that the model likes best is the fastest measured one or within 10 % of it,
the criterion of TPDS'24 (arXiv 2404.12674), whose 20 tasks had 17 successes. Wants a machine that
does nothing else: where the wall clock is far above the processor time of the busiest rank, other
programs were measured, too. Marks are printed for both.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
import json
import math
import os
import sys
import time
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from selection_figures import TOLERANCE, PlanRow, TaskRow, lines, summary
from selection_tasks import PLATFORM, TRAINER, draw_model, plans_of, task_problem

from dse.errors import DseError
from dse.machine.platforms import load_platform
from dse.ranking import kendall_tau, relative_errors, success_within, top1_regret
from dse.validation import Candidate, MeasureLimits, TrainerOptions, measure
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
    software: DlrmRuntime = TRAINER,
) -> TaskRow:
    """Predicts and measures the plans of one task."""
    model = draw_model(number, seed, ranks, megabytes)
    problem = task_problem(model, ranks, platform, software)
    plans = plans_of(problem, number)
    candidates = [Candidate(", ".join(names), problem, plan) for plan, names in plans.items()]
    predicted = [predict_job(candidate.job()).iteration_time_s for candidate in candidates]
    measured = measure(
        candidates, threads=1, limits=limits, options=TrainerOptions(seed=seed, batches=4)
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
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    start_s = time.monotonic()
    platform, software = load_platform(arguments.platform), TRAINER
    if arguments.calibrate:
        from selection_calibrate import calibrated_machine

        platform, software = calibrated_machine(arguments.ranks, arguments.calibrate)
    rows = []
    beside_s = 0.0
    for number in range(arguments.tasks):
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
                software,
            )
        except DseError as error:
            print(f"task {number}: {error}", file=sys.stderr, flush=True)
            return 1
        rows.append(row)
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
        load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
        print(f"took {time.monotonic() - start_s:.0f} s; load of the machine at the end {load}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
