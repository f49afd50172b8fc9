"""`dse rank`: plans in order of their predicted iteration time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._complete import models
from dse.cli._exit import ExitCode
from dse.cli._options import JsonOption
from dse.cli.job._options import TRANSFORMER_OPTIONS, describes_job

if TYPE_CHECKING:
    from dse._text.terminal import Console
    from dse.cli.job._request import Request


@describes_job(
    without=("model", "world_size", "plan", "hot_rows", "compute_kernels", *TRANSFORMER_OPTIONS)
)
def rank_command(
    plans: Annotated[list[Path], typer.Argument(metavar="PLAN...", help="Plan files.")],
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="NAME", help="Model name or YAML file.", autocompletion=models
        ),
    ],
    request: Request,
    as_json: JsonOption = False,
) -> None:
    """Order sharding plans by predicted iteration time; plans that do not fit come last.

    Exit code 1 means that none of them fits.
    """
    from dataclasses import replace

    from dse.cli._output import emit
    from dse.cli._progress import progress
    from dse.cli.job._predictions import (
        change_fields,
        change_remarks,
        prediction_fields,
        program_fields,
    )
    from dse.cli.job._request import open_job
    from dse.report.console import line, plural
    from dse.report.terminal import RankingRow, print_ranking
    from dse.workload import compare_jobs, explain_job, predict_job

    # A plan names the ranks of a sharding group; one rank is enough to read it.
    request = replace(request, model=model)
    reader = open_job(request.changed({"world_size": 1, "replicas": None}))
    opened = {1: reader}
    scored = []
    with progress(f"predicting {plural(len(plans), 'plan')}", quiet=as_json):
        for path in plans:
            plan = reader.job.read_plan(path)
            if plan.world_size not in opened:
                ranks = plan.world_size * request.parameters.get("replicas", 1)
                opened[plan.world_size] = open_job(replace(request, world_size=ranks))
            found = opened[plan.world_size]
            job = found.job.with_plan_of(path)
            scored.append((str(path), predict_job(job, found.quote), job))
    scored.sort(key=lambda row: (not row[1].feasible, row[1].iteration_time_s, row[0]))
    best = scored[0][2]
    rows = [
        RankingRow(
            name,
            prediction,
            job.world_size,
            tie=job is not best and compare_jobs(best, job).tie,
        )
        for name, prediction, job in scored
    ]
    ranking = [
        {
            "rank": place,
            "plan": row.name,
            "world_size": row.world_size,
            "tie_with_best": row.tie,
            "bound_by": explain_job(job).bound_by,
            **prediction_fields(row.prediction, job),
        }
        for place, (row, (_, _, job)) in enumerate(zip(rows, scored, strict=True), start=1)
    ]
    document = {
        **program_fields(reader.program),
        **change_fields(reader.changes),
        "ranking": ranking,
    }

    def show(console: Console) -> None:
        print_ranking(rows, console)
        for remark in change_remarks(reader.changes):
            line(console, remark)

    emit(document, show, as_json=as_json)
    if not rows[0].prediction.feasible:
        raise typer.Exit(ExitCode.FAILED)
