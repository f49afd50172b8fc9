"""The whole checkup: machine, packages, platforms, and which commands can run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
import json
from pathlib import Path
import platform as python_platform
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from dse.config import DocumentKind, list_documents
from dse.doctor._findings import Finding, Status, Topic
from dse.doctor._machine import MachineFacts, System, machine_facts, machine_findings
from dse.doctor._platforms import PlatformFacts, platform_facts, platform_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import date

#: Commands, and the packages that they need beyond the required ones.
COMMANDS = (
    ("run, predict, shard, report and all others", ()),
    ("calibrate, validate, replay, trace capture", ("torch",)),
    ("run --sampler gp", ("torch",)),
    ("run --executor ray", ("ray",)),
    ("run --storage postgresql://…", ("psycopg",)),
    ("run --storage mysql://…", ("pymysql",)),
    ("dse.sharding.to_torchrec (Python)", ("torch", "torchrec", "fbgemm-gpu")),
)
#: Optional packages and the extra that installs them; None where no extra can.
_EXTRAS = {
    "torch": "validate",
    "ray": "ray",
    "psycopg": "postgresql",
    "pymysql": "mysql",
    "torchrec": None,
    "fbgemm-gpu": None,
}
#: Other distributions that provide the same module.
_ALTERNATIVES = {"xgboost-cpu": "xgboost", "fbgemm-gpu": "fbgemm-gpu-cpu"}

#: What `--thorough` imports: these break when installed next to the wrong CUDA or torch.
_IMPORTED = {
    "torch": "torch",
    "ray": "ray",
    "torchrec": "torchrec",
    "fbgemm-gpu": "fbgemm_gpu",
    "fbgemm-gpu-cpu": "fbgemm_gpu",
    "xgboost": "xgboost",
    "xgboost-cpu": "xgboost",
}
#: The first import after an installation loads gigabytes.
_IMPORT_TIMEOUT_S = 120.0
_TORCH_CODE = """
import json, torch
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
dist = torch.distributed
backends = [name for name in ("gloo", "nccl")
            if dist.is_available() and getattr(dist, f"is_{name}_available")()]
print(json.dumps({"gpus": gpus, "backends": backends}))
"""


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """One Python package that `dse` uses.

    Attributes:
        name: Distribution name; of several alternatives the installed one.
        version: Installed version; None if missing.
        required: Whether `dse` cannot work without it.
        wanted: Accepted versions, such as `>=1.26`; empty for any.
        fits: Whether the installed version is accepted.
        needed_for: What uses it.
        install: Command that installs it.
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
        """Whether it is installed in an accepted version."""
        return self.version is not None and self.fits


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that was looked at.

    Attributes:
        machine: This machine.
        packages: Python packages.
        platforms: Built-in and local platforms.
        findings: One line for each thing that was checked.
    """

    machine: MachineFacts
    packages: tuple[PackageFacts, ...]
    platforms: tuple[PlatformFacts, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether everything that all commands need works."""
        return all(finding.status is not Status.BROKEN for finding in self.findings)


def installed_version(name: str) -> str | None:
    """Returns the version of an installed distribution; None if it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def run_python(code: str) -> tuple[bool, str]:
    """Runs code in a new interpreter; returns success and the output, or the last error line."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"not finished after {_IMPORT_TIMEOUT_S:.0f} s"
    if done.returncode == 0:
        return True, done.stdout
    return False, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def examine(
    *,
    thorough: bool = False,
    system: System | None = None,
    version_of: Callable[[str], str | None] = installed_version,
    requirements: Iterable[str] | None = None,
    python: Callable[[str], tuple[bool, str]] = run_python,
    results: Path = Path("results"),
    today: date | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Checkup:
    """Checks this machine, its packages and the platforms.

    Args:
        thorough: Also import the heavy packages, which takes seconds.
        system: Source of the machine's facts.
        version_of: Returns the version of a distribution, None if it is missing.
        requirements: `dse`'s own requirements; from its metadata if omitted.
        python: Runs code in a new interpreter.
        results: Folder that results are written to.
        today: For the age of calibrations; the current date if omitted.
        on_progress: Called with a short text before each slow part.
    """
    system = system or System()
    on_progress("checking the machine")
    machine = machine_facts(system)
    packages = tuple(
        _packages(version_of, _requirements() if requirements is None else requirements)
    )
    findings = [
        *machine_findings(machine, system, results, version_of("torch")),
        *_package_findings(packages),
    ]
    if thorough:
        findings += _import_findings(packages, machine, python, on_progress)
    on_progress("reading platforms")
    platforms = platform_facts(machine, Path())
    findings += platform_findings(platforms, machine, today or datetime.now(UTC).date())
    findings += _command_findings(packages)
    return Checkup(machine, packages, platforms, tuple(findings))


def _requirements() -> list[str]:
    try:
        return metadata.requires("dse") or []
    except metadata.PackageNotFoundError:  # run from its folder without an installation
        return []


def _packages(
    version_of: Callable[[str], str | None], requirements: Iterable[str]
) -> Iterator[PackageFacts]:
    """Yields the required packages, then the optional ones."""
    wanted: dict[str, str] = {}
    for line in requirements:
        found = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;(.*))?$", line)
        if not found:
            continue
        name, versions, marker = found[1].lower().replace("_", "-"), found[2].strip(), found[3]
        if marker and "extra" in marker:
            wanted.setdefault(name, versions)
        elif name not in _ALTERNATIVES.values():
            yield _package(name, version_of, versions, required=True)
    for name in _EXTRAS:
        yield _package(name, version_of, wanted.get(name, ""), required=False)


def _package(
    name: str, version_of: Callable[[str], str | None], wanted: str, *, required: bool
) -> PackageFacts:
    version, other = version_of(name), _ALTERNATIVES.get(name)
    if version is None and other is not None and (version := version_of(other)) is not None:
        name, other = other, name
    key = other if name not in _EXTRAS and other in _EXTRAS else name
    users = [command for command, needs in COMMANDS if key in needs]
    if required:
        install = f"pip install '{name}{wanted}'"
    elif extra := _EXTRAS[key]:
        install = f"pip install '.[{extra}]' in the project's folder"
    else:
        install = "see docs/torchrec.md: its versions belong together, and pip needs --no-deps"
    return PackageFacts(
        name=name,
        version=version,
        required=required,
        wanted=wanted,
        fits=version is not None and _fits(version, wanted),
        needed_for="everything" if required else "; ".join(users),
        install=install,
    )


def _fits(version: str, wanted: str) -> bool:
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
        from packaging.version import InvalidVersion
    except ImportError:  # comes with Optuna
        return True
    try:
        # Builds such as 2.13.0+cpu count as the same version.
        return SpecifierSet(wanted).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def _package_findings(packages: Iterable[PackageFacts]) -> Iterator[Finding]:
    from dse import __version__

    packages = tuple(packages)
    text = f"dse {__version__}, Python {python_platform.python_version()}"
    if any(package.required for package in packages):
        yield Finding(Topic.PACKAGES, "dse", Status.OK, text)
    else:
        text += "; not installed, so its requirements are unknown"
        yield Finding(Topic.PACKAGES, "dse", Status.WARNING, text, "pip install .")
    for kind in DocumentKind:
        count = len(list_documents(kind))
        status = Status.OK if count else Status.BROKEN
        step = "" if count else "reinstall dse; its data files are missing"
        subject = f"built-in {kind.value.replace('-', ' ')}s"
        yield Finding(Topic.PACKAGES, subject, status, str(count), step)
    for package in packages:
        if package.version is None:
            status = Status.BROKEN if package.required else Status.MISSING
            text = f"not installed; needed for {package.needed_for}"
        elif not package.fits:
            status = Status.BROKEN if package.required else Status.WARNING
            text = f"{package.version}, wanted {package.wanted}; for {package.needed_for}"
        else:
            status, text = Status.OK, package.version
        step = "" if status is Status.OK else package.install
        yield Finding(Topic.PACKAGES, package.name, status, text, step)


def _command_findings(packages: Iterable[PackageFacts]) -> Iterator[Finding]:
    """Yields for each command which packages it lacks."""
    found = {package.name: package for package in packages}
    found |= {name: found[other] for name, other in _ALTERNATIVES.items() if other in found}
    core = [package for package in found.values() if package.required and not package.usable]
    for command, needs in COMMANDS:
        lacking = [*core, *(found[name] for name in needs if found[name].version is None)]
        status = Status.BROKEN if core else Status.MISSING if lacking else Status.OK
        names = ", ".join(dict.fromkeys(package.name for package in lacking))
        steps = "; ".join(dict.fromkeys(package.install for package in lacking))
        yield Finding(Topic.COMMANDS, command, status, f"lacks {names}" if names else "", steps)


def _import_findings(
    packages: Iterable[PackageFacts],
    machine: MachineFacts,
    python: Callable[[str], tuple[bool, str]],
    on_progress: Callable[[str], None],
) -> Iterator[Finding]:
    """Imports the installed heavy packages, each in a new process."""
    for package in packages:
        module = _IMPORTED.get(package.name)
        if package.version is None or module is None:
            continue
        on_progress(f"importing {package.name}")
        works, text = python(_TORCH_CODE if module == "torch" else f"import {module}")
        status, step = Status.OK, ""
        if not works:
            status = Status.BROKEN if package.required else Status.WARNING
            text, step = text[:300], f"reinstall it: {package.install}"
        elif module == "torch":
            found = json.loads(text.splitlines()[-1])
            text = f"works: {found['gpus']} CUDA devices, backends {', '.join(found['backends'])}"
            if found["gpus"] < len(machine.gpus):
                status = Status.WARNING
                text += f"; the driver has {len(machine.gpus)} GPUs"
                step = "check CUDA_VISIBLE_DEVICES, and that the driver supports torch's CUDA"
        else:
            text = "works"
        yield Finding(Topic.PACKAGES, f"import {module}", status, text, step)
