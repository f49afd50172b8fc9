"""`dse shard`: the best sharding plan, with a bound on what is possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._complete import SHARDING_TYPES, names
from dse.cli._complete import listed as complete_list
from dse.cli._exit import ExitCode
from dse.cli._options import ForceOption, JsonOption, SeedOption, listed, new_file
from dse.cli.job._options import TRANSFORMER_OPTIONS, describes_job

if TYPE_CHECKING:
    from dse._text.terminal import Console
    from dse.cli.job._request import Request
    from dse.sharding import TableConstraints


@describes_job(without=("plan", *TRANSFORMER_OPTIONS))
def shard_command(
    request: Request,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the plan as JSON.")
    ] = None,
    force: ForceOption = False,
    types: Annotated[
        str,
        typer.Option(
            "--types",
            metavar="TYPES",
            help="Comma-separated sharding types; all by default.",
            autocompletion=complete_list(names(SHARDING_TYPES)),
        ),
    ] = "",
    allow_uvm: Annotated[
        bool, typer.Option("--allow-uvm", help="Allow tables in host memory.")
    ] = False,
    constraints: Annotated[
        Path | None,
        typer.Option(
            "--constraints", metavar="FILE", help="Constraints on tables, as YAML or JSON."
        ),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            "--pin", metavar="TABLE=RANK", help="Keep a table on these ranks; may be repeated."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="TABLE=TYPE,...",
            help="Only these sharding types and compute kernels for a table; may be repeated.",
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            help="Time limit of the search, excluding the bound; none by default.",
        ),
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Find the sharding plan with the shortest iteration, with a lower bound and the gap to it."""
    from dse._io.writing import write_atomically
    from dse.cli._output import emit, to_json
    from dse.cli._progress import progress
    from dse.cli.job._predictions import (
        Predicted,
        asked_fields,
        change_remarks,
        of_every_rank,
    )
    from dse.cli.job._request import open_job
    from dse.errors import InfeasibleError
    from dse.report.console import line
    from dse.report.terminal import ShardingView, print_sharding
    from dse.sharding import plan_to_json
    from dse.workload import predict_job

    new_file("--out", out, force=force)
    table_constraints = _constraints(constraints, pin or [], allow or [])
    allowed_types = listed(types) or None
    opened = open_job(request)
    name, world_size = opened.workload.name, request.world_size
    try:
        with progress(f"planning {name} on {world_size:,} ranks"):
            solution = opened.job.solve(
                allowed_types=allowed_types,
                constraints=table_constraints,
                allow_uvm=allow_uvm,
                time_limit_s=time_limit,
                seed=seed,
            )
    except InfeasibleError as error:
        from dse._text.terminal import visible

        for text in str(error).splitlines():
            typer.echo(f"infeasible: {visible(text)}", err=True)
        if as_json:
            failed = {"feasible": False, "infeasible_reason": str(error)}
            typer.echo(to_json({**asked_fields(request, opened), **failed}))
        raise typer.Exit(ExitCode.FAILED) from None
    job = opened.job.with_plan(solution.plan, solution.planner)
    predicted = Predicted(request, opened, job, predict_job(job, opened.quote))
    with progress(f"explaining {name} on {world_size:,} ranks"):
        prediction, explanation = predicted.prediction, predicted.explanation
    plan_text = plan_to_json(solution.plan, name)
    if out is not None:
        write_atomically(out, plan_text)
    document = {
        **predicted.document(),
        "iteration_time_s": solution.iteration_time_s,
        "lower_bound_s": solution.lower_bound_s,
        "gap": solution.gap,
        "planning_time_s": solution.planning_time_s,
        "bound_time_s": solution.bound_time_s,
        "plans_scored": solution.plans_scored,
        "planner": solution.planner,
        "ties": solution.ties,
        "iteration_time_without_hot_rows_s": solution.time_without_hot_rows_s,
        "fits": solution.fits,
        "peak_memory_bytes": solution.peak_memory_bytes,
        "host_memory_bytes_per_rank": of_every_rank(
            [memory.host_bytes for memory in prediction.memory], job
        ),
        "plan": json.loads(plan_text),
    }
    view = ShardingView(
        solution,
        prediction,
        tuple(rank.movable_s for rank in explanation.ranks),
        opened.platform.cluster(world_size).host_memory_bytes,
    )

    def show(console: Console) -> None:
        print_sharding(view, console)
        for remark in change_remarks(opened.changes):
            line(console, remark)
        if out is not None:
            line(console, f"plan: {out}")

    emit(document, show, as_json=as_json)


def _constraints(
    file: Path | None, pins: list[str], allowed: list[str]
) -> tuple[TableConstraints, ...]:
    from dse.sharding import parse_allow, parse_pin, read_constraints

    written = read_constraints(file) if file is not None else ()
    return (*written, *map(parse_pin, pins), *map(parse_allow, allowed))
