"""Calibration state of the platforms, and which of them is this machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
import math
from pathlib import Path
from typing import TYPE_CHECKING

from dse._reading import load_json, open_file
from dse.calibration.microbench import PLAN_VERSION
from dse.doctor._findings import Finding, Status, Topic
from dse.errors import ConfigError, DseError
from dse.machine.platforms import list_platforms, load_platform
from dse.trace.whatif import platform_with_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dse.doctor._machine import MachineFacts
    from dse.machine.fits import CollectiveCalibration, KernelCalibration
    from dse.machine.platforms import Platform

_OTHER = "other kernels"
_COLLECTIVES = "collectives"
#: Families of operators; kernels of the dense model other than GEMM are `other kernels`.
FAMILIES = ("gemm", "embedding", "copies", _OTHER, _COLLECTIVES)
_FAMILY_OF_OP = {
    "gemm": "gemm",
    "embedding_forward": "embedding",
    "embedding_backward": "embedding",
    "memcpy_h2d": "copies",
    "memcpy_d2h": "copies",
    "memcpy_d2d": "copies",
}

#: Default output files of `dse calibrate`.
_LOCAL = ("local_cpu.yaml", "local_cuda.yaml")

#: Older calibrations were made with other drivers and libraries.
_MAX_AGE_DAYS = 365

#: Longest first line of a log of points.
_MAX_HEADER_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FamilyFacts:
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


@dataclass(frozen=True, slots=True)
class PlatformFacts:
    """Calibration state of one platform.

    Attributes:
        name: Built-in name or path.
        device: Device name.
        kind: `gpu` or `cpu`.
        families: Families fitted to measurements.
        formulas: Families that fall back to published formulas and datasheets.
        is_here: Whether this machine has that device.
        plan_version: Version of the measurement plan, from the log next to the file; None if
            unknown.
        price_as_of: Date of the newest price; empty without prices.
        problem: Why the file cannot be read; empty if it can.
    """

    name: str
    device: str
    kind: str
    families: tuple[FamilyFacts, ...]
    formulas: tuple[str, ...]
    is_here: bool
    plan_version: int | None
    price_as_of: str
    problem: str = ""


def platform_facts(
    machine: MachineFacts, folder: Path, names: Iterable[str] | None = None
) -> tuple[PlatformFacts, ...]:
    """Returns the calibration state of platforms.

    Args:
        machine: This machine.
        folder: Where files of `dse calibrate` are looked for.
        names: Names or files; the built-in ones and those in the folder if omitted.
    """
    if names is None:
        local = [str(folder / name) for name in _LOCAL if (folder / name).is_file()]
        names = [*local, *list_platforms()]
    return tuple(_facts(name, machine) for name in names)


def platform_findings(
    platforms: Iterable[PlatformFacts], machine: MachineFacts, today: date
) -> Iterator[Finding]:
    """Yields one finding for each platform, and one if none is calibrated for this machine."""
    calibrated_here = False
    for platform in platforms:
        yield _finding(platform, today)
        measured = any(not family.transferred for family in platform.families)
        calibrated_here |= platform.is_here and measured
    if not calibrated_here:
        name = machine.gpus[0].name if machine.gpus else machine.cpu_name
        device, collectives = ("cuda", "nccl") if machine.gpus else ("cpu", "gloo")
        yield Finding(
            Topic.PLATFORMS,
            "this machine",
            Status.WARNING,
            f"no platform is calibrated for {name}",
            f"dse calibrate --device {device} --collectives {collectives} --budget 5min",
        )


def _finding(platform: PlatformFacts, today: date) -> Finding:
    if platform.problem:
        # A user's own file affects only the commands that name it.
        own = Path(platform.name).suffix in (".yaml", ".yml")
        status = Status.WARNING if own else Status.BROKEN
        step = "correct the file" if own else "reinstall dse"
        return Finding(Topic.PLATFORMS, platform.name, status, platform.problem, step)
    fitted = ", ".join(
        f"{family.family}{' of another device' if family.transferred else ''} "
        f"±{100 * family.gmae:.0f} %"
        for family in platform.families
    )
    parts = [f"{platform.device}: {fitted or 'datasheet and formulas, nothing fitted'}"]
    dates = sorted({family.as_of for family in platform.families} - {"unknown"})
    if dates:
        parts.append(f"measured {', '.join(dates)}")
    if platform.families and platform.formulas:
        parts.append(f"by formulas: {', '.join(platform.formulas)}")
    if platform.is_here:
        parts.append("this machine's device")
    outdated = _outdated(platform, dates, today) if platform.is_here else ""
    if outdated:
        parts.append(outdated)
    status, step = Status.OK, ""
    if outdated:
        status, step = Status.WARNING, "measure again with `dse calibrate --force`"
    return Finding(Topic.PLATFORMS, platform.name, status, "; ".join(parts), step)


def _outdated(platform: PlatformFacts, dates: list[str], today: date) -> str:
    """Returns why a calibration of this machine is outdated; empty if it is not."""
    version = platform.plan_version
    if version is not None and version != PLAN_VERSION:
        return f"measured by version {version} of the measurement plan, now {PLAN_VERSION}"
    for text in dates:
        try:
            age_days = (today - date.fromisoformat(text)).days
        except ValueError:  # only a month or a year
            continue
        if age_days > _MAX_AGE_DAYS:
            return f"measured {age_days} days ago"
    return ""


def _facts(name: str, machine: MachineFacts) -> PlatformFacts:
    try:
        platform = load_platform(name)
    except DseError as error:
        problem = str(error).splitlines()[0]
        return PlatformFacts(name, "", "", (), (), False, None, "", problem)
    families = tuple(_families(platform))
    fitted = {family.family for family in families}
    return PlatformFacts(
        name=name,
        device=platform.device.name,
        kind=platform.device.kind,
        families=families,
        formulas=tuple(family for family in FAMILIES if family not in fitted),
        is_here=_is_here(platform, machine),
        plan_version=_plan_version(name),
        price_as_of=max(
            (price.as_of for price in platform.prices if not price.superseded), default=""
        ),
    )


def _families(platform: Platform) -> Iterator[FamilyFacts]:
    models: dict[str, list[KernelCalibration | CollectiveCalibration]] = {}
    for kernel in platform.device.calibrations:
        models.setdefault(_FAMILY_OF_OP.get(kernel.op, _OTHER), []).append(kernel)
    for link in platform.links:
        models.setdefault(_COLLECTIVES, []).extend(link.calibrations)
    for family in FAMILIES:
        if models.get(family):
            yield _family_facts(family, models[family], platform.device.name)


def _family_facts(
    family: str, models: list[KernelCalibration | CollectiveCalibration], device: str
) -> FamilyFacts:
    # One fit may serve several precisions: its error counts once.
    errors = {
        (model.provenance.name, model.op, getattr(model, "ranks", None)): model.held_out
        for model in models
    }.values()
    points = sum(error.points for error in errors)
    # The geometric mean over all points; perfect fits count as 0.01 %.
    logs = sum(error.points * math.log(max(error.gmae, 1e-4)) for error in errors)
    return FamilyFacts(
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


def _is_here(platform: Platform, machine: MachineFacts) -> bool:
    if platform.device.kind == "cpu":
        return platform.device.name == machine.cpu_name
    if not machine.gpus:
        return False
    name = machine.gpus[0].name
    nearest = platform_with_device(name, len(machine.gpus))
    return platform.device.name == name or (
        nearest is not None and nearest.device.name == platform.device.name
    )


def _plan_version(name: str) -> int | None:
    """Returns the version of the measurement plan from the log next to a platform's file."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        return None
    try:
        with open_file(path.with_name(f"{path.stem}.points.jsonl")) as file:
            version = load_json(file.readline(_MAX_HEADER_BYTES))["plan"]["version"]
    except (ConfigError, ValueError, LookupError, TypeError):
        return None
    return version if isinstance(version, int) else None
