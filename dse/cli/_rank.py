"""`dse rank`: which of my plans is fastest?"""

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
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: A plan counts as slower than the best one when it is so in at least this share of the samples.
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
    software_profile: Annotated[
        str,
        typer.Option(
            "--software-profile",
            help="Training program: torchrec, deeplearningexamples, hugectr, …; `dse list "
            "software-profiles` has all.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Order sharding plans by predicted iteration time; plans that do not fit come last."""
    import json

    from dse.cli._problem import configuration_of, prediction_json
    from dse.machine.platforms import load_platform
    from dse.model import load_dlrm
    from dse.report import RankingRow
    from dse.sharding import check_plan, read_plan
    from dse.workload.dlrm import PlanScorer, predict_plan, problem_of, sample_iteration_times_s

    workload = load_dlrm(model)
    machine = load_platform(platform)
    scorers: dict[int, PlanScorer] = {}
    scored = []
    for path in plans:
        plan = read_plan(path, workload.tables)
        if plan.world_size not in scorers:
            configuration = configuration_of(
                workload,
                machine,
                plan.world_size,
                global_batch_size=global_batch_size,
                link=link,
                network=network,
                precision=precision,
                launch=launch,
                software_profile=software_profile,
            )
            scorers[plan.world_size] = PlanScorer(problem_of(workload, machine, configuration))
        scorer = scorers[plan.world_size]
        cluster = scorer.problem.cluster
        checked = check_plan(plan, workload.tables, plan.world_size, cluster.devices_per_node)
        quote = machine.quote(plan.world_size)
        prediction = predict_plan(scorer, checked, quote.usd_per_hour if quote else None)
        scored.append((str(path), prediction, sample_iteration_times_s(scorer, checked)))
    scored.sort(key=lambda row: (not row[1].feasible, row[1].iteration_time_s, row[0]))
    best = scored[0][2]
    rows = [
        RankingRow(name, prediction, tie=index > 0 and _is_tie(best, samples))
        for index, (name, prediction, samples) in enumerate(scored)
    ]
    if as_json:
        answer = [
            {
                "rank": index + 1,
                "plan": row.name,
                "tie_with_best": row.tie,
                **prediction_json(row.prediction),
            }
            for index, row in enumerate(rows)
        ]
        typer.echo(json.dumps({"ranking": answer}, indent=1))
        return
    from dse._terminal import Console
    from dse.report import render_ranking

    render_ranking(rows, Console())


def _is_tie(best: NDArray[np.float64], samples: NDArray[np.float64]) -> bool:
    return float((samples > best).mean()) < _CERTAINTY
