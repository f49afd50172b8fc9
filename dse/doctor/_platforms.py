"""Which platforms are fitted to measurements, how well, and which of them is this machine."""

from __future__ import annotations

from datetime import date
import math
from pathlib import Path
from typing import TYPE_CHECKING

from dse._reading import load_json, open_file
from dse.calibration.microbench import PLAN_VERSION
from dse.doctor._types import FamilyFacts, Finding, PlatformFacts, Status, Topic
from dse.errors import ConfigError, DseError
from dse.machine.platforms import list_platforms, load_platform
from dse.trace.whatif import platform_with_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dse.doctor._types import MachineFacts
    from dse.machine.fits import CollectiveCalibration, HeldOut, KernelCalibration
    from dse.machine.platforms import Platform

#: Operators by family; what is in none is part of the dense model.
_FAMILIES = {
    "gemm": ("gemm",),
    "embedding": ("embedding_forward", "embedding_backward"),
    "copies": ("memcpy_h2d", "memcpy_d2h", "memcpy_d2d"),
}
_OTHER = "other kernels"
_COLLECTIVES = "collectives"
FAMILIES = (*_FAMILIES, _OTHER, _COLLECTIVES)

#: What `dse calibrate` writes if not told otherwise.
_LOCAL = ("local_cpu.yaml", "local_cuda.yaml")

#: Calibrations older than this were made with other drivers and libraries.
_OLD_DAYS = 365

#: Longest first line of a log of points.
_MAX_HEADER_BYTES = 2**20


def platform_facts(
    machine: MachineFacts, folder: Path, names: Iterable[str] | None = None
) -> tuple[PlatformFacts, ...]:
    """Returns how well platforms are known.

    Args:
        machine: This machine.
        folder: Where platforms that `dse calibrate` wrote may lie.
        names: Names or files; the built-in ones and those in the folder if omitted.
    """
    if names is None:
        local = [str(folder / name) for name in _LOCAL if (folder / name).is_file()]
        names = [*local, *list_platforms()]
    return tuple(_facts(name, machine) for name in names)


def platform_findings(
    platforms: Iterable[PlatformFacts], machine: MachineFacts, today: date
) -> Iterator[Finding]:
    """Yields one line for each platform, and whether one of them is this machine."""
    listed = tuple(platforms)
    for platform in listed:
        yield _finding(platform, today)
    if any(_is_measured_here(platform) for platform in listed):
        return
    name = machine.gpus[0].name if machine.gpus else machine.cpu_name
    device = "cuda" if machine.gpus else "cpu"
    collectives = "nccl" if machine.gpus else "gloo"
    yield Finding(
        Topic.PLATFORMS,
        "this machine",
        Status.WARNING,
        f"no platform is calibrated for {name}",
        f"dse calibrate --device {device} --collectives {collectives} --budget 5min",
    )


def _is_measured_here(platform: PlatformFacts) -> bool:
    return platform.is_here and any(not family.transferred for family in platform.families)


def _finding(platform: PlatformFacts, today: date) -> Finding:
    if platform.problem:
        # A file of one's own stops nobody who does not name it.
        own = Path(platform.name).suffix in (".yaml", ".yml")
        return Finding(
            Topic.PLATFORMS,
            platform.name,
            Status.WARNING if own else Status.BROKEN,
            platform.problem,
            "mend the file" if own else "install dse again",
        )
    here = "; this machine's device" if platform.is_here else ""
    if not platform.families:
        text = f"{platform.device}: datasheet and formulas, nothing fitted{here}"
        return Finding(Topic.PLATFORMS, platform.name, Status.OK, text)
    dates = sorted({one.as_of for one in platform.families if one.as_of != "unknown"})
    measured = f"; measured {', '.join(dates)}" if dates else ""
    text = (
        f"{platform.device}: {', '.join(map(_family, platform.families))}"
        f"{measured}{_by_formulas(platform)}{here}"
    )
    problem, step = _outdated(platform, dates, today)
    status = Status.WARNING if problem else Status.OK
    return Finding(Topic.PLATFORMS, platform.name, status, f"{text}{problem}", step)


def _family(family: FamilyFacts) -> str:
    if family.transferred:
        return f"{family.family} of another device (±{100 * family.gmae:.0f} % there)"
    return f"{family.family} ±{100 * family.gmae:.0f} %"


def _by_formulas(platform: PlatformFacts) -> str:
    return f"; by formulas: {', '.join(platform.formulas)}" if platform.formulas else ""


def _outdated(platform: PlatformFacts, dates: list[str], today: date) -> tuple[str, str]:
    """Returns what is old about a calibration of this machine and what to do; two empty texts."""
    if not platform.is_here:
        return "", ""
    step = "measure again with `dse calibrate --force`"
    version = platform.plan_version
    if version is not None and version != PLAN_VERSION:
        return (
            f"; measured by version {version} of the plan of measurements, now {PLAN_VERSION}",
            step,
        )
    age_days = [(today - day).days for day in map(_day, dates) if day]
    if age_days and max(age_days) > _OLD_DAYS:
        return f"; measured {max(age_days)} days ago", step
    return "", ""


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:  # a month or year, or in words
        return None


def _facts(name: str, machine: MachineFacts) -> PlatformFacts:
    try:
        platform = load_platform(name)
    except DseError as error:
        return PlatformFacts(
            name, "", "", (), (), False, None, "", problem=str(error).splitlines()[0]
        )
    families = tuple(_families(platform))
    known = {family.family for family in families}
    return PlatformFacts(
        name=name,
        device=platform.device.name,
        kind=platform.device.kind,
        families=families,
        formulas=tuple(family for family in FAMILIES if family not in known),
        is_here=_is_here(platform, machine),
        plan_version=_plan_version(name),
        price_as_of=max(
            (price.as_of for price in platform.prices if not price.superseded), default=""
        ),
    )


def _families(platform: Platform) -> Iterator[FamilyFacts]:
    models: dict[str, list[KernelCalibration | CollectiveCalibration]] = {}
    for kernel in platform.device.calibrations:
        family = next((name for name, ops in _FAMILIES.items() if kernel.op in ops), _OTHER)
        models.setdefault(family, []).append(kernel)
    for link in platform.links:
        for collective in link.calibrations:
            models.setdefault(_COLLECTIVES, []).append(collective)
    for family in FAMILIES:
        if family in models:
            yield _family_facts(family, models[family], platform.device.name)


def _family_facts(
    family: str, models: list[KernelCalibration | CollectiveCalibration], device: str
) -> FamilyFacts:
    # The same fit may serve several precisions: its error counts once.
    errors: dict[tuple[str, str], HeldOut] = {
        (model.provenance.name, f"{model.op} {getattr(model, 'ranks', '')}"): model.held_out
        for model in models
    }
    points = sum(error.points for error in errors.values())
    # The geometric mean of all points from those of the models; perfect fits count as 0.01 %.
    logs = sum(error.points * math.log(max(error.gmae, 1e-4)) for error in errors.values())
    return FamilyFacts(
        family=family,
        models=len(models),
        points=points,
        gmae=math.exp(logs / points),
        worst_gmae=max(error.gmae for error in errors.values()),
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
    if platform.device.name == name:
        return True
    nearest = platform_with_device(name, len(machine.gpus))
    return nearest is not None and nearest.device.name == platform.device.name


def _plan_version(name: str) -> int | None:
    """Returns the version of the plan in the first line of the log beside a platform's file."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        return None
    try:
        with open_file(path.with_name(f"{path.stem}.points.jsonl")) as file:
            version = load_json(file.readline(_MAX_HEADER_BYTES))["plan"]["version"]
    except (ConfigError, ValueError, LookupError, TypeError):
        return None
    return version if isinstance(version, int) else None
