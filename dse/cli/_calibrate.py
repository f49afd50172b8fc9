"""`dse calibrate`: measure this machine and write it as a platform."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._options import JsonOption
from dse.errors import ConfigError, DseError

if TYPE_CHECKING:
    from dse.calibration import MachineCalibration
    from dse.calibration.microbench import MachineInfo, MeasurementPlan, SessionResult
    from dse.machine import Precision

#: Fewer points than this are no ground for a prediction, unless they were fitted.
_FEW_POINTS = 16


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
    busy_devices: Annotated[
        int | None,
        typer.Option(
            "--busy-devices",
            min=1,
            help="Ranks that run each kernel at the same time; all of a CPU, one GPU.",
        ),
    ] = None,
    precisions: Annotated[
        str,
        typer.Option(
            "--precisions", help="Such as fp32,bf16; by default all on GPUs and fp32 on a CPU."
        ),
    ] = "",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the choice of points.")] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that `dse calibrate` did not write.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Measure kernels, host overheads and collectives here; fit them; write a platform.

    Measured points are kept beside the platform: the same command goes on where it ended.
    """
    from dse.calibration import fit_machine, write_machine
    from dse.calibration.microbench import (
        available_cores,
        default_local_ranks,
        default_threads,
        describe_machine,
        make_plan,
    )
    from dse.config import UnitKind, parse_quantity

    path = out or Path(f"local_{device}.yaml")
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {path}: expected a name that ends in .yaml")
    try:
        budget_s = parse_quantity(budget, UnitKind.TIME)
    except ValueError as error:
        raise ConfigError(f"--budget: {error}") from error
    log = path.with_name(f"{path.stem}.points.jsonl")
    if not force:
        _refuse_foreign(path, log)
    machine = describe_machine(device)
    count = ranks or default_local_ranks(device, machine.device_count, available_cores())
    plan = make_plan(
        device,
        collectives=collectives is not None,
        collectives_backend=collectives,
        local_ranks=count,
        threads=threads or default_threads(available_cores(), count),
        seed=seed,
        precisions=_precisions(precisions),
        busy_devices=busy_devices,
    )
    try:
        result = _measure(plan, log, budget_s, machine, quiet=json_output)
        calibration = fit_machine(path.stem, result, count)
        write_machine(calibration, path)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_what_is_kept(log)) from None
    if json_output:
        _show_json(calibration, result, path, log)
    else:
        _show(calibration, result)
        typer.echo(f"platform: {path}")
        with_collectives = bool(plan.collectives or result.collectives)
        typer.echo(_next_step(calibration, result, path, with_collectives=with_collectives))


def _refuse_foreign(path: Path, log: Path) -> None:
    """Refuses to replace files without a log of points beside them."""
    if log.is_file() and log.stat().st_size:
        return
    for file in (path, path.with_name(f"{path.stem}.calibration.json")):
        if file.exists():
            raise ConfigError(
                f"--out {path}: {file} exists and was not written by `dse calibrate`, there is no "
                f"{log.name} beside it; choose another name, or pass --force to replace it"
            )


def _what_is_kept(log: Path) -> str:
    from dse.calibration.microbench import read_session

    try:
        result = read_session(log)
    except DseError:
        return "interrupted before the first point"
    points = result.done - len(result.skipped)
    return f"interrupted; {points} points are kept in {log}, the same command goes on from there"


def _measure(
    plan: MeasurementPlan, log: Path, budget_s: float, machine: MachineInfo, *, quiet: bool
) -> SessionResult:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from dse._terminal import Console
    from dse.calibration.microbench import run_session

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


def _show_json(
    calibration: MachineCalibration, result: SessionResult, path: Path, log: Path
) -> None:
    import json

    from dse.machine.platforms import CalibrationFile
    from dse.report import calibration_rows

    rows = calibration_rows(CalibrationFile(calibration.kernels, calibration.collectives))
    document = {
        "platform": str(path),
        "points": str(log),
        "measured": result.done - len(result.skipped),
        "planned": result.planned,
        "skipped": [skipped.reason for skipped in result.skipped],
        "left_out": list(calibration.left_out),
        "models": [row.as_json() for row in rows],
    }
    typer.echo(json.dumps(document, indent=1))


def _show(calibration: MachineCalibration, result: SessionResult) -> None:
    from dse._terminal import Console, visible
    from dse.machine.platforms import CalibrationFile
    from dse.report import calibration_rows, render_calibrations

    rows = calibration_rows(CalibrationFile(calibration.kernels, calibration.collectives))
    render_calibrations(rows, Console())
    typer.echo(
        f"{result.done - len(result.skipped)} of {result.planned} planned points measured, "
        f"{len(result.skipped)} could not be; the same command measures more of them"
    )
    for line in calibration.left_out:
        typer.echo(f"not fitted: {visible(line)}")


def _next_step(
    calibration: MachineCalibration, result: SessionResult, path: Path, *, with_collectives: bool
) -> str:
    """Returns a command to try, or what is missing for one.

    What was fitted can be predicted with, and so can what has many points: it was left out
    because the formula is better.
    """
    fitted = {kernel.op for kernel in calibration.kernels}
    measured = [point.op for point in result.kernels]
    missing = [
        name
        for op, name in (("gemm", "GEMM"), ("memcpy_h2d", "copies from the host"))
        if op not in fitted and measured.count(op) < _FEW_POINTS
    ]
    curves = {(point.op, point.ranks) for point in result.collectives}
    few = len(result.collectives) < _FEW_POINTS * max(1, len(curves))
    if with_collectives and not calibration.collectives and few:
        missing.append("collectives")
    if missing:
        return (
            f"  {', '.join(missing)} could not be fitted; raise --budget: the same command "
            "measures more points, then predictions can be trusted"
        )
    # Without collectives the link is assumed: only one rank is known.
    world_size = calibration.ranks if with_collectives else 1
    return (
        f"  try: dse predict dlrm_ddp --platform {path} --world-size {world_size} "
        "--global-batch-size 2048"
    )


def _precisions(text: str) -> tuple[Precision, ...] | None:
    from dse.machine import Precision

    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in set(Precision)]
    if unknown or (names and Precision.FP32 not in names):
        wrong = f"`{unknown[0]}` is none" if unknown else "fp32 has to be among them"
        raise ConfigError(f"--precisions {text}: {wrong}; expected some of {', '.join(Precision)}")
    return tuple(Precision(name) for name in names) or None
