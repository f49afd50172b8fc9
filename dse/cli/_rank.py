"""`dse rank`: plans in order of their predicted iteration time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import (
    BatchOption,
    JsonOption,
    LaunchOption,
    LinkOption,
    NetworkOption,
    PlatformOption,
    PrecisionOption,
    ProgramOption,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: A plan counts as slower than the best one if it is slower in at least this share of the samples.
_CERTAINTY = 0.95


def rank_command(
    plans: Annotated[list[Path], typer.Argument(metavar="PLAN...", help="Plan files.")],
    model: Annotated[str, typer.Option("--model", help="Model name or YAML file.")],
    platform: PlatformOption,
    global_batch_size: BatchOption,
    link: LinkOption = "",
    network: NetworkOption = "",
    precision: PrecisionOption = "",
    launch: LaunchOption = "",
    program: ProgramOption = "",
    as_json: JsonOption = False,
) -> None:
    """Order sharding plans by predicted iteration time; plans that do not fit come last."""
    from dse.cli._output import emit
    from dse.cli._predictions import dlrm_configuration, prediction_fields, price_usd_per_hour
    from dse.cli._request import Request
    from dse.machine.platforms import load_platform
    from dse.model import load_dlrm
    from dse.report.terminal import RankingRow, print_ranking
    from dse.sharding import check_plan, read_plan
    from dse.workload.dlrm import PlanScorer, predict_plan, problem_of, sample_iteration_times_s

    workload = load_dlrm(model)
    machine = load_platform(platform)
    scorers: dict[int, PlanScorer] = {}
    scored = []
    for path in plans:
        plan = read_plan(path, workload.tables)
        if plan.world_size not in scorers:
            request = Request(
                model=model,
                platform=platform,
                world_size=plan.world_size,
                global_batch_size=global_batch_size,
                link=link,
                network=network,
                precision=precision,
                program=program,
                launch=launch,
            )
            configuration = dlrm_configuration(request, workload, machine)
            scorers[plan.world_size] = PlanScorer(problem_of(workload, machine, configuration))
        scorer = scorers[plan.world_size]
        cluster = scorer.problem.cluster
        checked = check_plan(plan, workload.tables, plan.world_size, cluster.devices_per_node)
        price = price_usd_per_hour(machine, plan.world_size)
        prediction = predict_plan(scorer, checked, price)
        scored.append((str(path), prediction, sample_iteration_times_s(scorer, checked)))
    scored.sort(key=lambda row: (not row[1].feasible, row[1].iteration_time_s, row[0]))
    best = scored[0][2]
    rows = [
        RankingRow(name, prediction, tie=place > 0 and _is_tie(best, samples))
        for place, (name, prediction, samples) in enumerate(scored)
    ]
    ranking = [
        {
            "rank": place,
            "plan": row.name,
            "tie_with_best": row.tie,
            **prediction_fields(row.prediction),
        }
        for place, row in enumerate(rows, start=1)
    ]
    emit({"ranking": ranking}, lambda console: print_ranking(rows, console), as_json=as_json)


def _is_tie(best: NDArray[np.float64], samples: NDArray[np.float64]) -> bool:
    return float((samples > best).mean()) < _CERTAINTY
