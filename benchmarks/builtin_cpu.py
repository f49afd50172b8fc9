"""Measures this machine and makes it the built-in platform `cpu`, or checks the one that is there.

Usage: python benchmarks/builtin_cpu.py [--budget 270] [--ranks 2]     # under five minutes in all
       python benchmarks/builtin_cpu.py --check

Two ranks of one thread, all at work while operators are measured. Writes the log of points beside
this program, `platforms/cpu.yaml` and `platforms/calibrations/cpu.json`. A log that is interrupted
goes on with the same command; `--new` throws the one of before away. `--check` fails when the log
is of another version of the plan, of ranks measured alone, or not what the platform was made from.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
import os
from pathlib import Path
import sys
import tempfile
import time
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

from costs import load
from pages import table

from dse.calibration import fit_machine, write_machine
from dse.calibration.microbench import (
    PLAN_VERSION,
    describe_machine,
    make_plan,
    read_session,
    run_session,
)
from dse.errors import DseError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.calibration import MachineCalibration
    from dse.calibration.microbench import Progress, SessionResult

NAME = "cpu"

#: Above the name in the platform's file.
_HEAD = """\
# yaml-language-server: $schema=../docs/schemas/platform.schema.json
# One measured machine; calibrate your own by `dse calibrate --device cpu --collectives gloo`.
"""


@dataclass(frozen=True, slots=True)
class Files:
    """Where the built-in platform lies.

    Attributes:
        log: Measured points.
        platform: Its figures.
        models: Its fitted models.
    """

    log: Path
    platform: Path
    models: Path


def files_in(root: Path) -> Files:
    """Returns the files of a checkout."""
    return Files(
        root / "benchmarks/measurements/cpu_epyc.points.jsonl",
        root / f"platforms/{NAME}.yaml",
        root / f"platforms/calibrations/{NAME}.json",
    )


def ranks_of(result: SessionResult) -> int:
    """Returns the ranks that a log is of."""
    return max((point.ranks for point in result.collectives), default=1)


def contents(calibration: MachineCalibration) -> tuple[str, str]:
    """Returns the texts of the platform's file and of its models."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{NAME}.yaml"
        write_machine(calibration, path)
        beside = path.with_name(f"{NAME}.calibration.json")
        figures = path.read_text().replace(beside.name, NAME)
        return _HEAD + figures, beside.read_text() if beside.exists() else ""


def write(files: Files) -> MachineCalibration:
    """Fits the log and replaces the platform and its models."""
    result = read_session(files.log)
    calibration = fit_machine(NAME, result, ranks_of(result))
    figures, models = contents(calibration)
    files.models.write_text(models)
    files.platform.write_text(figures)
    return calibration


def problems(files: Files, version: int) -> Iterator[str]:
    """Yields what is wrong with the platform that is there.

    Args:
        files: Where it is.
        version: Version of the plan that its log is of.
    """
    result = read_session(files.log)
    ranks = ranks_of(result)
    if version != PLAN_VERSION:
        yield f"measured by version {version} of the plan, now it is {PLAN_VERSION}"
    if result.busy_devices != ranks:
        yield f"operators were measured with {result.busy_devices} of {ranks} ranks at work"
    figures, models = contents(fit_machine(NAME, result, ranks))
    if files.platform.read_text() != figures:
        yield f"{files.platform.name} is not what its log gives"
    if files.models.read_text() != models:
        yield f"{files.models.name} is not what its log gives"


def version_of(log: Path) -> int:
    """Returns the version of the plan that a log is of."""
    import json

    with log.open() as file:
        return int(json.loads(file.readline())["plan"]["version"])


def lines(calibration: MachineCalibration, result: SessionResult) -> Iterator[str]:
    """Yields what was measured and how well it was fitted as a Markdown table."""
    device = calibration.device
    yield (
        f"{result.done} of {result.planned} points, {result.busy_devices} ranks at work; "
        f"{device.peak.fp32_flops_per_s / 1e9:.0f} GFLOP/s, "
        f"{device.memory_bandwidth_bytes_per_s / 1e9:.0f} GB/s a rank"
    )
    yield ""
    held = [
        (model.op, model.held_out) for model in (*calibration.kernels, *calibration.collectives)
    ]
    cells = ((op, one.points, f"{one.gmae:.1%}", f"{one.p90:.1%}") for op, one in held)
    yield from table(
        ("model", "fresh points", "geometric mean error", "90th percentile"), "lr", cells
    )
    for reason in calibration.left_out:
        yield f"not fitted: {reason}"


def _measure(files: Files, ranks: int, budget_s: float) -> None:
    plan = make_plan(NAME, collectives_backend="gloo", local_ranks=ranks, threads=1)

    def show(progress: Progress) -> None:
        if progress.done % 100 == 0:
            print(
                f"{progress.stage}: {progress.done} points, {progress.elapsed_s:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    run_session(plan, files.log, budget_s, show, machine=describe_machine("cpu"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=270.0, help="seconds of measuring")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--new", action="store_true", help="start the log anew")
    parser.add_argument("--check", action="store_true", help="look only")
    arguments = parser.parse_args()
    files = files_in(Path(__file__).resolve().parents[1])
    start_s = time.monotonic()
    try:
        if arguments.check:
            found = list(problems(files, version_of(files.log)))
            print("\n".join(found) or f"{NAME} is what its log gives, all ranks at work")
            return 1 if found else 0
        if arguments.new:
            files.log.unlink(missing_ok=True)
        _measure(files, arguments.ranks, arguments.budget)
        calibration = write(files)
    except DseError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines(calibration, read_session(files.log))))
    print(f"took {time.monotonic() - start_s:.0f} s; {load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
