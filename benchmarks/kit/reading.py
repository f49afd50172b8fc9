"""What the kit measured: a platform fitted to it, and predictions beside the timed steps."""

from __future__ import annotations

from collections import Counter
import json
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
from pages import table

from dse.calibration import fit_machine, write_machine
from dse.calibration.microbench import read_session
from dse.errors import DseError
from dse.machine.kernels import STREAMING_OPERATORS
from dse.machine.platforms import load_platform, platform_of_device
from dse.workload import predict_job
from kit import kernels, steps, study, traces
from kit.log import read_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dse.calibration.microbench import KernelMeasurement, SessionResult
    from dse.machine.fits import KernelCalibration
    from dse.machine.platforms import Platform

#: Name of the platform that is fitted, beside the measured points.
MEASURED = "fitted"


def read(out: Path, platform_name: str = "") -> str:
    """Fits, predicts and compares; returns the tables as Markdown.

    Args:
        out: Folder of a run.
        platform_name: Built-in platform to compare with; the one of the measured GPU if empty.

    Raises:
        DseError: The points are too few for a platform, or no built-in one has this device.
    """
    log = out / kernels.FILE
    session = read_session(log)
    machine = session.machine
    own = "cpu" if machine.device == "cpu" else platform_of_device(machine.device_name).name
    shipped = load_platform(platform_name or own)
    lines = [f"# Measured on one {machine.device_name}", ""]
    measured = session.done - len(session.skipped)
    lines += [
        f"{measured} points of {session.planned}; {_versions(session.machine.libraries)}",
        "",
        *_left_out(session),
    ]
    platforms = [shipped]
    fitted: tuple[KernelCalibration, ...] = ()
    try:
        calibration = fit_machine(MEASURED, session, 1)
        platforms.append(write_machine(calibration, out / f"{MEASURED}.yaml"))
        fitted = calibration.kernels
    except DseError as error:
        lines += [f"no platform is fitted: {error}", ""]
    lines += list(_kernel_lines(session.kernels, shipped, fitted))
    lines += list(_step_lines(read_log(out / steps.FILE), platforms))
    lines += list(_study_lines(out / study.FILE))
    lines += list(_trace_lines(read_log(out / traces.FILE)))
    return "\n".join(lines).rstrip()


def _predicted(predicted_s: float, measured_s: float) -> str:
    return f"{1e3 * predicted_s:.3f} ms ({predicted_s / measured_s - 1:+.1%})"


def _left_out(session: SessionResult) -> Iterator[str]:
    """Why points were not measured, and how many of which operators for each reason."""
    reasons: dict[str, Counter[str]] = {}
    for one in session.skipped:
        point = one.point
        name = "host overheads" if point is None else point.op
        if precision := getattr(point, "precision", ""):
            name += f" {precision}"
        reasons.setdefault(one.reason, Counter())[name] += 1
    for reason, names in reasons.items():
        what = ", ".join(f"{count} of {name}" for name, count in sorted(names.items()))
        yield f"* not measured: {what} ({reason})"
    if reasons:
        yield ""


def _versions(libraries: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {version}" for name, version in libraries)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield from table(heads, "l", rows)
    yield ""


def _kernel_lines(
    points: tuple[KernelMeasurement, ...],
    shipped: Platform,
    calibrations: tuple[KernelCalibration, ...],
) -> Iterator[str]:
    """Errors of the built-in platform on all points, and of the fitted one on held-out points."""
    fitted = {
        (one.op, precision): f"{one.held_out.mape:.1%} of {one.held_out.points}"
        for one in calibrations
        for precision in one.precisions or ("",)
    }
    groups: dict[tuple[str, str], list[KernelMeasurement]] = {}
    for point in points:
        groups.setdefault((point.op, point.precision), []).append(point)
    rows = []
    for (op, precision), own in sorted(groups.items()):
        ratios = [_predicted_s(shipped, point) / point.time_s for point in own]
        held_out = fitted.get((op, precision), fitted.get((op, ""), "formula"))
        errors = [abs(ratio - 1) for ratio in ratios]
        rows.append(
            (
                f"{op} {precision}",
                str(len(own)),
                f"{statistics.median(ratios):.2f}",
                f"{statistics.median(errors):.1%}",
                held_out,
            )
        )
    yield f"## Kernels, predicted by {shipped.name} and fitted"
    yield ""
    heads = ("operator", "points", "predicted / measured", "median error", "fitted, held out")
    yield from _table(heads, rows)


def _predicted_s(platform: Platform, point: KernelMeasurement) -> float:
    sizes = dict(point.sizes)
    shape: dict[str, Any] = {name: np.array([value]) for name, value in sizes.items()}
    if point.op in ("gemm", "attention", "interaction_dot"):
        shape["precision"] = point.precision
    if point.op in STREAMING_OPERATORS and "value_bytes" in STREAMING_OPERATORS[point.op].sizes:
        shape["value_bytes"] = np.array([4.0])
    # A call of several tables is several times that of one, whichever library looks them up.
    tables = float(shape.pop("tables", np.ones(1))[0])
    op = point.op.replace("fbgemm_", "embedding_")
    return tables * float(platform.kernel_time(op, **shape)[0])


def _step_lines(rows: list[dict[str, Any]], platforms: list[Platform]) -> Iterator[str]:
    if not rows:
        return
    yield "## Training steps of one device"
    yield ""
    known = {(one.name, one.launch.value): one for one in steps.cases(rows[0]["device"])}
    found = []
    for row in rows:
        case = known[row["case"], row["launch"]]
        if "skipped" in row:
            cells = [f"not run: {row['skipped']}"] + [""] * len(platforms)
        else:
            cells = [f"{1e3 * row['time_s']:.3f} ms"]
            for platform in platforms:
                prediction = predict_job(case.job(platform, row["device"] == "cpu"))
                cells.append(_predicted(prediction.iteration_time_s, row["time_s"]))
        found.append((f"{row['case']}, {row['launch']}", *cells))
    yield from _table(
        ("step", "measured", *(f"on {platform.name}" for platform in platforms)), found
    )


def _study_lines(file: Path) -> Iterator[str]:
    if not file.is_file():
        return
    validation = json.loads(file.read_text(encoding="utf-8"))
    yield "## Plans of a study, rank by rank"
    yield ""
    rows = [
        (
            f"{one['world_size']} ranks, batch {one['global_batch_size']:,}",
            f"{1e3 * one['measured_s']:.3f} ms",
            _predicted(one["predicted_s"], one["measured_s"]),
        )
        for one in validation["candidates"]
    ]
    yield from _table(("plan", "measured", "predicted"), rows)


def _trace_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    yield "## Captured steps"
    yield ""
    found = [
        (
            row["job"],
            f"{1e3 * row['trained_s']:.3f} ms",
            f"{1e3 * row['profiled_s']:.3f} ms",
            f"{row['simulated_s'] / row['profiled_s'] - 1:+.1%}",
            f"{row['replayed_s'] / row['trained_s'] - 1:+.1%}",
            f"{row['replayed_share']:.0%}",
        )
        for row in rows
    ]
    heads = ("job", "trained", "under the profiler", "simulated", "replayed", "operators replayed")
    yield from _table(heads, found)
