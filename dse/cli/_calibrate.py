"""`dse calibrate`: measure this machine and write it as a platform."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._options import JsonOption
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.calibrate import MachineCalibration
    from dse.microbench import MachineInfo, MeasurementPlan, SessionResult


def calibrate_command(
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option("--device", help="What to measure.")
    ] = "cpu",
    collectives: Annotated[
        Literal["gloo", "nccl"] | None,
        typer.Option(
            "--collectives", help="Measure collectives over the ranks of this machine, too."
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", help="Time for measuring, for example 5min or 90s.")
    ] = "5min",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Platform file to write (.yaml); local_cpu.yaml or local_cuda.yaml."
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", min=1, help="Ranks of this machine; its GPUs, or its cores to 8."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="CPU threads of one rank; an equal share."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the choice of points.")] = 0,
    json_output: JsonOption = False,
) -> None:
    """Measure kernels, host overheads and collectives here; fit them; write a platform.

    Measured points are kept beside the platform: the same command goes on where it ended.
    """
    from dse.calibrate import fit_machine, write_machine
    from dse.documents import UnitKind, parse_quantity
    from dse.microbench import (
        available_cores,
        default_local_ranks,
        default_threads,
        describe_machine,
        make_plan,
    )

    path = out or Path(f"local_{device}.yaml")
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {path}: expected a name that ends in .yaml")
    try:
        budget_s = parse_quantity(budget, UnitKind.TIME)
    except ValueError as error:
        raise ConfigError(f"--budget: {error}") from error
    machine = describe_machine(device)
    count = ranks or default_local_ranks(device, machine.device_count, available_cores())
    plan = make_plan(
        device,
        collectives_backend=collectives,
        local_ranks=count if collectives else 1,
        threads=threads or default_threads(available_cores(), count),
        seed=seed,
    )
    log = path.with_name(f"{path.stem}.points.jsonl")
    result = _measure(plan, log, budget_s, machine, quiet=json_output)
    calibration = fit_machine(path.stem, result, count)
    write_machine(calibration, path)
    _show(calibration, result, path, log, as_json=json_output)


def _measure(
    plan: MeasurementPlan, log: Path, budget_s: float, machine: MachineInfo, *, quiet: bool
) -> SessionResult:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from dse.microbench import run_session

    if quiet:
        return run_session(plan, log, budget_s, machine=machine)
    columns = (
        TextColumn("measuring {task.description:<11}"),
        BarColumn(),
        TextColumn("{task.fields[points]} points"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("host", total=budget_s, points=0)
        return run_session(
            plan,
            log,
            budget_s,
            lambda progress: bar.update(
                task,
                completed=min(progress.elapsed_s, budget_s),
                description=progress.stage,
                points=progress.done,
            ),
            machine=machine,
        )


def _show(
    calibration: MachineCalibration,
    result: SessionResult,
    path: Path,
    log: Path,
    *,
    as_json: bool,
) -> None:
    import json

    from rich.console import Console

    from dse.platforms import CalibrationFile
    from dse.report import calibration_rows, render_calibrations

    rows = calibration_rows(CalibrationFile(calibration.kernels, calibration.collectives))
    skipped = [skipped.reason for skipped in result.skipped]
    if as_json:
        document = {
            "platform": str(path),
            "points": str(log),
            "measured": result.done - len(skipped),
            "planned": result.planned,
            "skipped": skipped,
            "left_out": list(calibration.left_out),
            "models": [row.as_json() for row in rows],
        }
        typer.echo(json.dumps(document, indent=1))
        return
    render_calibrations(rows, Console())
    typer.echo(
        f"{result.done - len(skipped)} of {result.planned} planned points measured, "
        f"{len(skipped)} could not be; the same command measures more of them"
    )
    for line in calibration.left_out:
        typer.echo(f"not fitted: {line}")
    typer.echo(f"platform: {path}")
    typer.echo(
        f"  try: dse predict dlrm_ddp --platform {path} --world-size "
        f"{calibration.ranks} --global-batch-size 2048"
    )
