"""Plans 856 tables by simple rules and by search, and predicts all plans by the same model.

    python examples/meta_856/planners.py --ranks 32

The rules place whole tables, the costliest first, each on the rank that has least so far; they
differ in what they count as cost. The search starts from such plans, cuts tables and moves them.
"""

from __future__ import annotations

import argparse

import dse
from dse.errors import PlanError
from dse.sharding import PLANNERS, ShardingType
from dse.workload import PlanEffort, Prediction, predict_job
from dse.workload.dlrm import DlrmJob, DlrmWorkload
from dse.workload.dlrm.solver import planning_request


def main() -> None:
    """Plans by every rule and by search, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="dlrm_meta2021")
    parser.add_argument("--platform", default="h100_sxm")
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--batch", type=int, default=65536, help="samples of all ranks")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for the search")
    options = parser.parse_args()

    model = dse.load_model(options.model)
    platform = dse.load_platform(options.platform)
    parameters = {
        "world_size": options.ranks,
        "global_batch_size": options.batch,
        "precision": "tf32",
        # What plans are worth shows best without a framework's host time.
        "program": "ideal",
    }
    job = DlrmWorkload(model).job(platform, parameters)
    scorer = job.scorer
    print(f"{len(model.tables)} tables on {options.ranks} × {platform.device.name}")  # noqa: T201
    request = planning_request(scorer, frozenset(ShardingType), 0)
    for name, planner in PLANNERS.items():
        try:
            plan = planner(request)
        except PlanError as error:
            print(f"{name:20} no plan: {error}")  # noqa: T201
            continue
        _show(name, predict_job(DlrmJob.scored(scorer, plan)))
    _show("search", predict_job(job.planned(PlanEffort(time_limit_s=options.seconds))))


def _show(name: str, prediction: Prediction) -> None:
    work = [rank.compute_s for rank in prediction.breakdown]
    uneven = max(work) / (sum(work) / len(work))
    fits = "" if prediction.feasible else ", does not fit"
    print(  # noqa: T201
        f"{name:20} {1e3 * prediction.iteration_time_s:8.2f} ms; busiest rank computes "
        f"{uneven:.2f} times the mean{fits}"
    )


if __name__ == "__main__":
    main()
