"""`dse shard`: the best sharding plan, with a bound on what is possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._exit import ExitCode
from dse.cli._options import (
    BatchOption,
    JsonOption,
    LaunchOption,
    LinkOption,
    ModelArgument,
    NetworkOption,
    PlatformOption,
    PrecisionOption,
    ProgramOption,
    SeedOption,
    WorldSizeOption,
    listed,
)

if TYPE_CHECKING:
    from dse._terminal import Console
    from dse.sharding import ShardingType, TableConstraints


def shard_command(
    model: ModelArgument,
    platform: PlatformOption,
    world_size: WorldSizeOption,
    global_batch_size: BatchOption,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan as JSON.")] = None,
    types: Annotated[
        str, typer.Option("--types", help="Comma-separated sharding types; all by default.")
    ] = "",
    allow_uvm: Annotated[
        bool, typer.Option("--allow-uvm", help="Tables may live in host memory.")
    ] = False,
    constraints: Annotated[
        Path | None, typer.Option("--constraints", help="YAML or JSON file, by table.")
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option("--pin", metavar="TABLE=RANK", help="Only these ranks; may be repeated."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="TABLE=TYPE,...",
            help="Only these sharding types and compute kernels; may be repeated.",
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", help="Seconds of search, without the bound; unlimited by default."
        ),
    ] = None,
    seed: SeedOption = 0,
    link: LinkOption = "",
    network: NetworkOption = "",
    precision: PrecisionOption = "",
    launch: LaunchOption = "",
    program: ProgramOption = "",
    as_json: JsonOption = False,
) -> None:
    """Find the sharding plan with the shortest iteration, with a lower bound and the gap to it."""
    from dse._files import write_atomically
    from dse.cli._output import emit
    from dse.cli._predictions import dlrm_configuration, prediction_fields, price_usd_per_hour
    from dse.cli._progress import progress
    from dse.cli._request import Request
    from dse.errors import InfeasibleError
    from dse.machine.platforms import load_platform
    from dse.model import load_dlrm
    from dse.report.console import line
    from dse.report.terminal import ShardingView, print_sharding
    from dse.sharding import plan_to_json
    from dse.workload.dlrm import PlanScorer, predict_plan, problem_of
    from dse.workload.dlrm.solver import find_plan

    table_constraints = _constraints(constraints, pin or [], allow or [])
    allowed_types = _types(types)
    workload = load_dlrm(model)
    machine = load_platform(platform)
    request = Request(
        model=model,
        platform=platform,
        world_size=world_size,
        global_batch_size=global_batch_size,
        link=link,
        network=network,
        precision=precision,
        program=program,
        launch=launch,
    )
    configuration = dlrm_configuration(request, workload, machine)
    scorer = PlanScorer(problem_of(workload, machine, configuration))
    try:
        with progress(f"planning {len(workload.tables):,} tables on {world_size:,} ranks"):
            solution = find_plan(
                scorer,
                allowed_types=allowed_types,
                constraints=table_constraints,
                allow_uvm=allow_uvm,
                time_limit_s=time_limit,
                seed=seed,
            )
    except InfeasibleError as error:
        from dse._terminal import visible

        for text in str(error).splitlines():
            typer.echo(f"infeasible: {visible(text)}", err=True)
        raise typer.Exit(ExitCode.FAILED) from None
    prediction = predict_plan(scorer, solution.plan, price_usd_per_hour(machine, world_size))
    plan_text = plan_to_json(solution.plan, workload.name)
    if out is not None:
        write_atomically(out, plan_text)
    document = {
        "model": workload.name,
        "platform": machine.name,
        "world_size": world_size,
        "global_batch_size": global_batch_size,
        "program": program or None,
        **prediction_fields(prediction),
        "iteration_time_s": solution.iteration_time_s,
        "lower_bound_s": solution.lower_bound_s,
        "gap": solution.gap,
        "planning_time_s": solution.planning_time_s,
        "bound_time_s": solution.bound_time_s,
        "plans_scored": solution.plans_scored,
        "planner": solution.planner,
        "fits": solution.fits,
        "peak_memory_bytes": solution.peak_memory_bytes,
        "host_memory_bytes_per_rank": [memory.host_bytes for memory in prediction.memory],
        "plan": json.loads(plan_text),
    }
    load_s = scorer.rank_load_s(scorer.placements.options_of(solution.plan)).tolist()
    host_bytes = scorer.problem.cluster.host_memory_bytes

    def show(console: Console) -> None:
        print_sharding(ShardingView(solution, prediction, tuple(load_s), host_bytes), console)
        if out is not None:
            line(console, f"plan: {out}")

    emit(document, show, as_json=as_json)


def _constraints(
    file: Path | None, pins: list[str], allowed: list[str]
) -> tuple[TableConstraints, ...]:
    from dse.sharding import parse_allow, parse_pin, read_constraints

    written = read_constraints(file) if file is not None else ()
    return (*written, *map(parse_pin, pins), *map(parse_allow, allowed))


def _types(text: str) -> frozenset[ShardingType]:
    from dse._suggest import hint
    from dse.errors import ConfigError
    from dse.sharding import ShardingType

    names, known = listed(text), [kind.value for kind in ShardingType]
    for name in names:
        if name not in known:
            raise ConfigError(f"--types: unknown sharding type `{name}`; {hint(name, known)}")
    return frozenset(map(ShardingType, names or known))
