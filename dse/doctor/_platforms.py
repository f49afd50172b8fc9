"""Calibration state of the platforms, and which of them is this machine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dse.doctor._findings import Status, Topic, finding
from dse.errors import DseError
from dse.machine.platforms import (
    by_formulas,
    fitted_families,
    list_platforms,
    load_platform,
    nearest_platform,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import date

    from dse.doctor._findings import Finding
    from dse.doctor._machine import Devices
    from dse.machine.platforms import FittedFamily, Platform

#: Default output files of `dse calibrate`.
_LOCAL = ("local_cpu.yaml", "local_cuda.yaml")

#: Older calibrations were made with other drivers and libraries.
_MAX_AGE = timedelta(days=365)


def is_of(platform: Platform, devices: Devices) -> bool:
    """Returns whether a platform has the devices of this machine."""
    if platform.device.kind == "cpu":
        return platform.device.name == devices.cpu_name
    if not devices.gpus:
        return False
    nearest = nearest_platform(devices.gpu_name, devices.gpus)
    names = (devices.gpu_name, "" if nearest is None else nearest.device.name)
    return platform.device.name in names


def platform_findings(
    devices: Devices,
    folder: Path,
    names: Iterable[str] | None = None,
    today: date | None = None,
) -> Iterator[Finding]:
    """Yields one finding for each platform, and one if none is calibrated for this machine.

    Args:
        devices: Those of this machine.
        folder: Where files of `dse calibrate` are looked for.
        names: Names or files; the built-in ones and those in the folder if omitted.
        today: For the age of calibrations; the current date if omitted.
    """
    if names is None:
        local = [str(folder / name) for name in _LOCAL if (folder / name).is_file()]
        names = [*local, *list_platforms()]
    oldest = ((today or datetime.now(UTC).date()) - _MAX_AGE).isoformat()
    calibrated = False
    for name in names:
        try:
            platform = load_platform(name)
        except DseError as error:
            # A user's own file affects only the commands that name it.
            own = Path(name).suffix in (".yaml", ".yml")
            step = "correct the file" if own else "reinstall dse"
            bad = Status.WARNING if own else Status.BROKEN
            yield finding(Topic.PLATFORMS, name, str(error).splitlines()[0], step, bad)
            continue
        families, here = fitted_families(platform), is_of(platform, devices)
        calibrated |= here and any(not family.transferred for family in families)
        # Of some only the month or the year is known.
        old = here and any(one.as_of < oldest[: len(one.as_of)] for one in families)
        step = "old; measure again with `dse calibrate --force`" if old else ""
        text = _state(platform, families) + ("; this machine's device" if here else "")
        yield finding(Topic.PLATFORMS, name, text, step)
    if not calibrated:
        device, collectives = ("cuda", "nccl") if devices.gpus else ("cpu", "gloo")
        step = f"dse calibrate --device {device} --collectives {collectives} --budget 5min"
        text = f"no platform is calibrated for {devices.gpu_name or devices.cpu_name}"
        yield finding(Topic.PLATFORMS, "this machine", text, step)


def _state(platform: Platform, families: tuple[FittedFamily, ...]) -> str:
    """Returns what a platform's times come from."""
    if not families:
        return f"{platform.device.name}: datasheet and formulas, nothing fitted"
    fitted = ", ".join(
        f"{one.family}{' of another device' if one.transferred else ''} ±{100 * one.gmae:.0f} %"
        for one in families
    )
    dates = ", ".join(sorted({one.as_of for one in families} - {"unknown"}))
    others = ", ".join(by_formulas(families))
    parts = [f"{platform.device.name}: {fitted}"]
    parts += [f"measured {dates}"] if dates else []
    parts += [f"by formulas: {others}"] if others else []
    return "; ".join(parts)
