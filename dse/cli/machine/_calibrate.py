"""`dse calibrate`: measure this machine and write it as a platform."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
import math
from pathlib import Path
import re
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._options import ForceOption, JsonOption, SeedOption, listed, quantity
from dse.errors import CalibrationError, ConfigError, DseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse._text.terminal import Console
    from dse.calibration import MachineCalibration
    from dse.calibration.microbench import MachineInfo, MeasurementPlan, Progress, SessionResult
    from dse.calibration.microbench.plan import CollectivePoint, KernelPoint
    from dse.machine import Precision

#: Fewer points than this are too few for a prediction, unless they were fitted.
_FEW_POINTS = 16

#: Operators without which no prediction is good.
_NEEDED = {"gemm": "GEMM", "memcpy_h2d": "copies from the host"}

#: Share of a budget that operators have beside collectives.
_KERNEL_SHARE = 2 / 3


@dataclass(slots=True)
class _Pace:
    """Time that a session takes for a point of each stage.

    Attributes:
        spent_s: Seconds by stage.
        points: Points by stage.
    """

    spent_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    points: Counter[str] = field(default_factory=Counter)
    _elapsed_s: float = 0.0

    def add(self, at: Progress) -> None:
        """Takes a point into account."""
        self.spent_s[at.stage] += at.elapsed_s - self._elapsed_s
        self.points[at.stage] += 1
        self._elapsed_s = at.elapsed_s

    def seconds(self, points: int, stage: str) -> float:
        """Returns the time for points of a stage; NaN if none was measured in this session."""
        known = self.points[stage]
        return points * self.spent_s[stage] / known if known else math.nan


def calibrate_command(
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option("--device", metavar="KIND", help="What to measure: cpu or cuda."),
    ] = "cpu",
    collectives: Annotated[
        Literal["gloo", "nccl"] | None,
        typer.Option(
            "--collectives",
            metavar="LIBRARY",
            help="Also measure collectives over the ranks of this machine, with gloo or nccl.",
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            "--budget", metavar="TIME", help="Time for measuring, for example 5min or 90s."
        ),
    ] = "5min",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Platform file to write (.yaml); by default local_cpu.yaml or local_cuda.yaml.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            metavar="N",
            min=1,
            help="Ranks of this machine; by default its GPUs, or its cores up to 8.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="N",
            min=1,
            help="CPU threads of one rank; by default an equal share.",
        ),
    ] = None,
    busy_devices: Annotated[
        int | None,
        typer.Option(
            "--busy-devices",
            metavar="N",
            min=1,
            help="Ranks that run each kernel at once; by default all on a CPU, one on GPUs.",
        ),
    ] = None,
    precisions: Annotated[
        str,
        typer.Option(
            "--precisions",
            metavar="TYPES",
            help="Such as fp32,bf16; by default all on GPUs and fp32 on a CPU.",
        ),
    ] = "",
    seed: SeedOption = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure kernels, host overheads and collectives here; fit them; write a platform.

    Measured points are kept next to the platform: the same command continues where it ended.
    """
    from dse._process.system import available_cores
    from dse.calibration import fit_machine, write_machine
    from dse.calibration.microbench import (
        default_local_ranks,
        default_threads,
        describe_machine,
        make_plan,
    )
    from dse.cli._output import emit
    from dse.config import UnitKind
    from dse.machine.platforms import PLAIN_NAME, CalibrationFile
    from dse.report.console import line, plural
    from dse.report.terminal import calibration_rows, print_calibrations

    path = out or Path(f"local_{device}.yaml")
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {path}: expected a name that ends in .yaml")
    if not re.fullmatch(PLAIN_NAME, path.stem):
        raise ConfigError(
            f"--out {path}: the platform is named after its file; expected letters, digits, `_`, "
            f"`-` and `.` before {path.suffix}"
        )
    budget_s = quantity("--budget", budget, UnitKind.TIME)
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
    pace = _Pace()
    try:
        result = _measure(plan, log, budget_s, machine, pace, quiet=as_json)
        try:
            calibration = fit_machine(path.stem, result, count)
        except CalibrationError as error:
            if result.host is None:
                raise
            raise CalibrationError(f"{error}{_enough(plan, result, pace)}") from error
        write_machine(calibration, path)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(log)) from None
    rows = calibration_rows(CalibrationFile(calibration.kernels, calibration.collectives))
    measured = result.done - len(result.skipped)
    document = {
        "platform": path,
        "points": log,
        "measured": measured,
        "planned": result.planned,
        "skipped": [skipped.reason for skipped in result.skipped],
        "left_out": calibration.left_out,
        "models": rows,
    }

    def show(console: Console) -> None:
        print_calibrations(rows, console)
        line(
            console,
            f"{measured} of {result.planned} planned points measured, {len(result.skipped)} could "
            "not be; the same command measures more of them",
        )
        for reason, points in Counter(skipped.reason for skipped in result.skipped).items():
            line(console, f"not measured, {plural(points, 'point')}: {reason}")
        for reason in calibration.left_out:
            line(console, f"not fitted: {reason}")
        line(console, f"platform: {path}")
        line(console, _next_step(calibration, result, path, plan, pace))

    emit(document, show, as_json=as_json)


def _refuse_foreign(path: Path, log: Path) -> None:
    """Refuses to replace files without a log of points next to them."""
    if log.is_file() and log.stat().st_size:
        return
    for file in (path, path.with_name(f"{path.stem}.calibration.json")):
        if file.exists():
            raise ConfigError(
                f"--out {path}: {file} exists and was not written by `dse calibrate` (without "
                f"{log.name}); choose another name, or pass --force to replace it"
            )


def _kept(log: Path) -> str:
    from dse.calibration.microbench import read_session

    try:
        result = read_session(log)
    except DseError:
        return "interrupted before the first point"
    points = result.done - len(result.skipped)
    return f"interrupted; {points} points are kept in {log}, the same command continues from there"


def _measure(
    plan: MeasurementPlan,
    log: Path,
    budget_s: float,
    machine: MachineInfo,
    pace: _Pace,
    *,
    quiet: bool,
) -> SessionResult:
    from dse.calibration.microbench import run_session
    from dse.cli._progress import progress

    with progress("measuring", quiet=quiet, patience_s=0) as display:

        def on_progress(at: Progress) -> None:
            pace.add(at)
            display(
                at.elapsed_s, budget_s, stage=f"measuring {at.stage}", remark=f"{at.done} points"
            )

        return run_session(plan, log, budget_s, on_progress, machine=machine)


def _next_step(
    calibration: MachineCalibration,
    result: SessionResult,
    path: Path,
    plan: MeasurementPlan,
    pace: _Pace,
) -> str:
    """Returns a command to try, or what is missing for it.

    Models that were fitted can predict, and so can those with many points, which were left out
    because the formula is better.
    """
    fitted = {kernel.op for kernel in calibration.kernels}
    measured = Counter(point.op for point in result.kernels)
    few = [op for op in plan.operators if op not in fitted and measured[op] < _FEW_POINTS]
    with_collectives = bool(plan.collectives or result.collectives)
    curves = {(point.op, point.ranks) for point in result.collectives}
    short = len(result.collectives) < _FEW_POINTS * max(1, len(curves))
    without = with_collectives and not calibration.collectives and short
    if without or not _NEEDED.keys().isdisjoint(few):
        names = [_NEEDED.get(op, op) for op in few] + ["collectives"] * without
        return (
            f"  {', '.join(names)} could not be fitted; raise --budget"
            f"{_enough(plan, result, pace)}, then predictions can be trusted"
        )
    # Without collectives the link is assumed: only one rank is known.
    world_size = calibration.ranks if with_collectives else 1
    return (
        f"  try: dse predict dlrm_ddp --platform {path} --world-size {world_size} "
        "--global-batch-size 2048"
    )


def _enough(plan: MeasurementPlan, result: SessionResult, pace: _Pace) -> str:
    """Returns the end of `raise --budget`: to how much, for all that a prediction needs."""
    kernels = _points_left(
        ((point, point.op if point.op in _NEEDED else "") for point in plan.kernels_in_order()),
        result,
    )
    exchanged = _points_left(
        ((point, f"{point.op} on {point.ranks}") for point in plan.collectives), result
    )
    kernels_s, exchanged_s = pace.seconds(kernels, "kernels"), 0.0
    if exchanged:
        stage = "collectives" if pace.points["collectives"] else "kernels"
        exchanged_s = pace.seconds(exchanged, stage)
    if plan.collectives:
        kernels_s /= _KERNEL_SHARE
    needed_s = max(kernels_s, exchanged_s / (1 - _KERNEL_SHARE))
    more = ": the same command measures more points"
    if math.isnan(needed_s):
        return f", to its default at least{more}"
    if not needed_s:
        return more
    amount = f"{math.ceil(needed_s / 60)}min" if needed_s > 60 else f"{math.ceil(needed_s)}s"
    return f" to about {amount}{more}"


def _points_left(
    points: Iterable[tuple[KernelPoint | CollectivePoint, str]], result: SessionResult
) -> int:
    """Returns how many further points it takes until each model has enough to be fitted.

    Args:
        points: Points in the order of measuring, each with its model; empty if it is not needed.
        result: What is measured.
    """
    done: set[object] = {kernel.point for kernel in result.kernels}
    done |= {collective.point for collective in result.collectives}
    done |= {skipped.point for skipped in result.skipped}
    counts: Counter[str] = Counter()
    left = needed = 0
    for point, model in points:
        counts[model] += 1
        left += point not in done
        if model and counts[model] <= _FEW_POINTS:
            needed = left
    return needed


def _precisions(text: str) -> tuple[Precision, ...] | None:
    from dse.calibration.microbench import OPERATORS
    from dse.machine import Precision

    names = listed(text.lower())
    # Products are measured in all that any operator is.
    known = [precision.value for precision in OPERATORS["gemm"].precisions]
    unknown = [name for name in names if name not in known]
    if unknown or (names and Precision.FP32 not in names):
        wrong = f"unknown `{unknown[0]}`" if unknown else "fp32 must be among them"
        raise ConfigError(f"--precisions {text}: {wrong}; expected some of {', '.join(known)}")
    return tuple(Precision(name) for name in names) or None
