"""Calibration state of the platforms, and which of them is this machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
import math
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dse.doctor._findings import Finding, Status, Topic
from dse.errors import DseError
from dse.machine.collectives import curves_in_use
from dse.machine.platforms import list_platforms, load_platform
from dse.trace.whatif import platform_with_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dse.doctor._machine import Devices
    from dse.machine.fits import (
        CollectiveCalibration,
        KernelCalibration,
        NetworkCalibration,
    )
    from dse.machine.platforms import Platform

    _Fitted: TypeAlias = KernelCalibration | CollectiveCalibration | NetworkCalibration

#: Families of operators; other kernels of the dense model are `other kernels`.
FAMILIES = (
    "gemm",
    "attention",
    "experts",
    "embedding",
    "copies",
    "other kernels",
    "collectives",
    "networks",
)
_STARTS = {
    "gemm": "gemm",
    "attention": "attention",
    **dict.fromkeys(("experts", "expert"), "experts"),
    "embedding": "embedding",
    "memcpy": "copies",
}

#: Default output files of `dse calibrate`.
_LOCAL = ("local_cpu.yaml", "local_cuda.yaml")

#: Older calibrations were made with other drivers and libraries.
_MAX_AGE_DAYS = 365


@dataclass(frozen=True, slots=True)
class FittedFamily:
    """Fitted models of one operator family, or of the collectives, of one platform.

    Attributes:
        family: One of `FAMILIES`.
        models: Number of fitted models.
        points: Held-out points of all models.
        gmae: Geometric mean of the absolute relative errors on held-out points.
        worst_gmae: The same for the worst model.
        transferred: Whether all were measured on another device.
        as_of: Date of the oldest measurement, as in the file.
    """

    family: str
    models: int
    points: int
    gmae: float
    worst_gmae: float
    transferred: bool
    as_of: str


def fitted_families(platform: Platform) -> tuple[FittedFamily, ...]:
    """Returns the families of a platform that are fitted to measurements; others use formulas."""
    models: dict[str, list[_Fitted]] = {}
    for kernel in platform.device.calibrations:
        family = _STARTS.get(kernel.op.partition("_")[0], "other kernels")
        models.setdefault(family, []).append(kernel)
    for link in platform.links:
        models.setdefault("collectives", []).extend(curves_in_use(link))
    for network in platform.networks:
        models.setdefault("networks", []).extend(network.calibrations)
    name = platform.device.name
    return tuple(_family(one, models[one], name) for one in FAMILIES if models.get(one))


def _family(family: str, models: list[_Fitted], device: str) -> FittedFamily:
    # One fit may serve several precisions: its error counts once.
    errors = {
        (model.provenance.name, getattr(model, "op", ""), getattr(model, "ranks", 0)): (
            model.held_out
        )
        for model in models
    }.values()
    points = sum(error.points for error in errors)
    # The geometric mean over all points; perfect fits count as 0.01 %.
    logs = sum(error.points * math.log(max(error.gmae, 1e-4)) for error in errors)
    return FittedFamily(
        family=family,
        models=len(models),
        points=points,
        gmae=math.exp(logs / points),
        worst_gmae=max(error.gmae for error in errors),
        transferred=all(
            model.transferred and model.provenance.device != device for model in models
        ),
        as_of=min(model.provenance.as_of for model in models),
    )


def is_of(platform: Platform, devices: Devices) -> bool:
    """Returns whether a platform has the devices of this machine."""
    if platform.device.kind == "cpu":
        return platform.device.name == devices.cpu_name
    if not devices.gpus:
        return False
    nearest = platform_with_device(devices.gpu_name, devices.gpus)
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
    calibrated = False
    for name in names:
        try:
            platform = load_platform(name)
        except DseError as error:
            # A user's own file affects only the commands that name it.
            own = Path(name).suffix in (".yaml", ".yml")
            status = Status.WARNING if own else Status.BROKEN
            step = "correct the file" if own else "reinstall dse"
            problem = str(error).splitlines()[0]
            yield Finding(Topic.PLATFORMS, name, status, problem, step)
            continue
        families, here = fitted_families(platform), is_of(platform, devices)
        calibrated |= here and any(not family.transferred for family in families)
        oldest = today or datetime.now(UTC).date()
        old = here and any(_age_days(one.as_of, oldest) > _MAX_AGE_DAYS for one in families)
        text = _state(platform, families) + ("; this machine's device" if here else "")
        status = Status.WARNING if old else Status.OK
        step = "old; measure again with `dse calibrate --force`" if old else ""
        yield Finding(Topic.PLATFORMS, name, status, text, step)
    if not calibrated:
        device, collectives = ("cuda", "nccl") if devices.gpus else ("cpu", "gloo")
        step = f"dse calibrate --device {device} --collectives {collectives} --budget 5min"
        text = f"no platform is calibrated for {devices.gpu_name or devices.cpu_name}"
        yield Finding(Topic.PLATFORMS, "this machine", Status.WARNING, text, step)


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


def by_formulas(families: tuple[FittedFamily, ...]) -> tuple[str, ...]:
    """Returns the families that are not among the fitted ones."""
    fitted = {one.family for one in families}
    return tuple(family for family in FAMILIES if family not in fitted)


def _age_days(text: str, today: date) -> int:
    try:
        return (today - date.fromisoformat(text)).days
    except ValueError:  # only a month or a year
        return 0
