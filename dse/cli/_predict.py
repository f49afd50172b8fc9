"""`dse predict`: one configuration, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dse.cli._options import (
    BatchOption,
    JsonOption,
    LaunchOption,
    LinkOption,
    ModelArgument,
    NetworkOption,
    PlatformOption,
    PrecisionOption,
)


def predict_command(
    model: ModelArgument,
    platform: PlatformOption,
    world_size: Annotated[int, typer.Option("--world-size", min=1, help="Number of ranks.")],
    global_batch_size: BatchOption,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Plan file; found by search when left out.")
    ] = None,
    link: LinkOption = "",
    network: NetworkOption = "",
    precision: PrecisionOption = "",
    launch: LaunchOption = "eager",
    host_profile: Annotated[
        Path | None,
        typer.Option(
            "--host-profile",
            help="Host overheads from traces, written by `dse trace overheads --out`.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict iteration time, cost and memory of one configuration."""
    import json

    from dse.cli._problem import configuration_of, prediction_json
    from dse.overheads import load_host_profile
    from dse.platforms import load_platform
    from dse.prediction import PlanScorer, predict_plan, problem_of
    from dse.sharding import ShardingType, check_plan, read_plan
    from dse.solver import SolverSettings, solve
    from dse.workloads import load_model

    workload = load_model(model)
    machine = load_platform(platform)
    configuration = configuration_of(
        workload,
        machine,
        world_size,
        global_batch_size=global_batch_size,
        link=link,
        network=network,
        precision=precision,
        launch=launch,
    )
    profile = load_host_profile(host_profile) if host_profile else None
    problem = problem_of(workload, machine, configuration, host_profile=profile)
    scorer = PlanScorer(problem)
    if plan is None:
        solved = solve(scorer, frozenset(ShardingType), SolverSettings(lp_start=True))
        chosen, planner = solved.plan, solved.planner
    else:
        chosen = check_plan(
            read_plan(plan, workload.tables),
            workload.tables,
            world_size,
            problem.cluster.devices_per_node,
        )
        planner = str(plan)
    quote = machine.price_for(world_size)
    prediction = predict_plan(scorer, chosen, quote.usd_per_hour if quote else None)
    if as_json:
        answer = {
            "model": workload.name,
            "platform": machine.name,
            "world_size": world_size,
            "global_batch_size": global_batch_size,
            "precision": problem.precision.value,
            "planner": planner,
            "host_overheads": str(host_profile) if host_profile else machine.name,
            **prediction_json(prediction),
        }
        typer.echo(json.dumps(answer, indent=1))
        return
    from rich.console import Console

    from dse.report import render_prediction

    console = Console()
    console.print(
        f"{workload.name} on {world_size} × {machine.device.name}, "
        f"global batch {global_batch_size:,}, plan: {planner}",
        markup=False,
        highlight=False,
    )
    render_prediction(prediction, console)
    measured = (
        f"measured, profile {profile.name} ({host_profile})"
        if profile
        else f"platform {machine.name}"
    )
    console.print(f"host overheads: {measured}", markup=False, highlight=False)
