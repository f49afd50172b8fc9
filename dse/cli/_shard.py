"""`dse shard`: the best sharding plan, and how far from the best possible it may be."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.sharding import ShardingType, TableConstraints

#: Seconds after which the command shows that it is at work.
_PATIENCE_S = 2.0


def shard_command(
    model: ModelArgument,
    platform: PlatformOption,
    world_size: Annotated[int, typer.Option("--world-size", min=1, help="Number of ranks.")],
    global_batch_size: BatchOption,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan as JSON.")] = None,
    types: Annotated[
        str, typer.Option("--types", help="Sharding types, with commas between; all by default.")
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
            "--time-limit", help="Seconds of search, without the bound; until done if not."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of what is drawn.")] = 0,
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
    """Find the sharding plan with the shortest iteration, with a lower bound and the gap to it."""
    import json

    from dse._files import write_atomically
    from dse.cli._problem import configuration_of
    from dse.errors import InfeasibleError
    from dse.machine.platforms import load_platform
    from dse.model import load_dlrm
    from dse.sharding import plan_to_json
    from dse.workload.dlrm import PlanScorer, predict_plan, problem_of
    from dse.workload.dlrm.solver import find_plan

    demands = _constraints(constraints, pin or [], allow or [])
    allowed_types = _types(types)
    workload = load_dlrm(model)
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
        software_profile=software_profile,
    )
    scorer = PlanScorer(problem_of(workload, machine, configuration))
    try:
        with _patience(f"planning {len(workload.tables):,} tables on {world_size:,} ranks"):
            solution = find_plan(
                scorer,
                allowed_types=allowed_types,
                constraints=demands,
                allow_uvm=allow_uvm,
                time_limit_s=time_limit,
                seed=seed,
            )
    except InfeasibleError as error:
        from dse._terminal import visible

        for line in str(error).splitlines():
            typer.echo(f"infeasible: {visible(line)}", err=True)
        raise typer.Exit(1) from None
    prediction = predict_plan(scorer, solution.plan, None)
    plan_text = plan_to_json(solution.plan, workload.name)
    if out is not None:
        write_atomically(out, plan_text)
    if as_json:
        answer = {
            "model": workload.name,
            "platform": machine.name,
            "world_size": world_size,
            "global_batch_size": global_batch_size,
            "iteration_time_s": solution.iteration_time_s,
            "lower_bound_s": solution.lower_bound_s,
            "gap": solution.gap,
            "planning_time_s": solution.planning_time_s,
            "bound_time_s": solution.bound_time_s,
            "plans_scored": solution.plans_scored,
            "planner": solution.planner,
            "fits": solution.fits,
            "peak_memory_bytes": solution.peak_memory_bytes,
            "memory_bytes_per_rank": list(prediction.memory_bytes_per_rank),
            "host_memory_bytes_per_rank": [memory.host_bytes for memory in prediction.memory],
            "usable_memory_bytes": prediction.usable_memory_bytes,
            "plan": json.loads(plan_text),
        }
        typer.echo(json.dumps(answer, indent=1))
        return
    from dse._terminal import Console
    from dse.report import ShardingView, render_sharding

    console = Console()
    load_s = scorer.rank_load_s(scorer.placements.options_of(solution.plan))
    view = ShardingView(
        solution,
        prediction,
        tuple(load_s.tolist()),
        scorer.problem.cluster.host_memory_bytes,
    )
    render_sharding(view, console)
    if out is not None:
        console.print(f"plan: {out}", markup=False, highlight=False, soft_wrap=True)


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

    words = [word.strip() for word in text.split(",") if word.strip()]
    known = [kind.value for kind in ShardingType]
    for word in words:
        if word not in known:
            raise ConfigError(f"--types: there is no sharding type `{word}`; {hint(word, known)}")
    return frozenset(map(ShardingType, words)) if words else frozenset(ShardingType)


@contextmanager
def _patience(what: str) -> Iterator[None]:
    """Shows on a terminal that work goes on, once it takes longer than a moment."""
    from threading import Timer

    from dse._terminal import Console

    status = Console(stderr=True).status(f"{what} …")
    timer = Timer(_PATIENCE_S, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
