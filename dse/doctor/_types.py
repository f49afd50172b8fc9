"""What a check-up finds, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How something is."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    BROKEN = "broken"


class Topic(StrEnum):
    """What a finding is about; the order of the check-up."""

    MACHINE = "machine"
    PACKAGES = "packages"
    PLATFORMS = "platforms"
    COMMANDS = "commands"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check-up.

    Attributes:
        topic: What it is about.
        subject: Name of the thing.
        status: `missing` is optional and not there; `broken` stops what everybody needs.
        text: What was found.
        next_step: What to do about it; empty when there is nothing to do.
    """

    topic: Topic
    subject: str
    status: Status
    text: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One CUDA device.

    Attributes:
        index: Its number.
        name: As its driver calls it.
        memory_bytes: Its memory; 0 if the driver does not say.
        driver: Version of the driver; empty if unknown.
        compute_capability: Such as `9.0`; empty if unknown.
    """

    index: int
    name: str
    memory_bytes: int
    driver: str
    compute_capability: str


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What this machine has.

    Attributes:
        cpu_name: Model of the processor.
        cores: Logical cores.
        usable_cores: Those that this process may use: by affinity, and by the container's share
            of processor time, which need not be whole.
        memory_bytes: Memory; 0 if unknown.
        usable_memory_bytes: What this process may use of it, by the container's limit.
        gpus: CUDA devices.
        nvlink: NVLinks between the first two GPUs; None if unknown or fewer than two.
        operating_system: System, release and architecture.
    """

    cpu_name: str
    cores: int
    usable_cores: float
    memory_bytes: int
    usable_memory_bytes: int
    gpus: tuple[GpuFacts, ...]
    nvlink: int | None
    operating_system: str


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """One Python package that `dse` uses.

    Attributes:
        name: Its name on the package index; of several that serve, the one that is installed.
        version: Installed version; None if there is none.
        required: Whether `dse` cannot work without.
        wanted: Versions that serve, such as `>=1.26`; empty for any.
        fits: Whether the installed version is one of them.
        needed_for: What uses it.
        install: Command that brings it.
    """

    name: str
    version: str | None
    required: bool
    wanted: str
    fits: bool
    needed_for: str
    install: str

    @property
    def usable(self) -> bool:
        """Whether it is there in a version that serves."""
        return self.version is not None and self.fits


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """Fitted models of one family of operators, or of the collectives, of one platform.

    Attributes:
        family: Such as `gemm` or `collectives`.
        models: Fitted models in it: operators and precisions, or collectives and ranks.
        points: Points of their held-out errors, together.
        gmae: Geometric mean of their absolute relative errors on held-out points.
        worst_gmae: That of the worst model.
        transferred: Whether they were measured on another device.
        as_of: Date of the oldest measurement, as the file has it.
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
    """How well one platform is known.

    Attributes:
        name: Its name, or the path of its file.
        device: Its device.
        kind: `gpu` or `cpu`.
        families: What is fitted to measurements.
        formulas: Families that published formulas and datasheets predict, for want of a fit.
        is_here: Whether this machine has that device.
        plan_version: Version of the plan of measurements, from the log beside the file; None
            without one.
        price_as_of: Date of its newest price; empty without prices.
        problem: Why it cannot be read; empty if it can.
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


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that was looked at.

    Attributes:
        machine: What this machine has.
        packages: Python packages.
        platforms: Platforms.
        findings: The lines, by topic.
    """

    machine: MachineFacts
    packages: tuple[PackageFacts, ...]
    platforms: tuple[PlatformFacts, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether what everybody needs works."""
        return all(finding.status is not Status.BROKEN for finding in self.findings)
