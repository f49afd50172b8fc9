"""The whole check-up."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
import platform as python_platform
from typing import TYPE_CHECKING

from dse.config import DocumentKind, list_documents
from dse.doctor._commands import command_findings
from dse.doctor._environment import environment_findings
from dse.doctor._machine import System, machine_facts, machine_findings
from dse.doctor._packages import installed_version, package_facts, package_findings
from dse.doctor._platforms import platform_facts, platform_findings
from dse.doctor._thorough import run_python, thorough_findings
from dse.doctor._types import Checkup, Finding, Status, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import date

_RESULTS = Path("results")


def examine(
    *,
    thorough: bool = False,
    system: System | None = None,
    version_of: Callable[[str], str | None] = installed_version,
    python: Callable[[str], tuple[bool, str]] = run_python,
    results: Path = _RESULTS,
    today: date | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Checkup:
    """Looks at this machine, its packages, the platforms, and what works.

    Args:
        thorough: Also import the heavy packages, which takes seconds.
        system: Where facts of the machine come from.
        version_of: Version of an installed package, None if there is none.
        python: Runs code in a process of its own.
        results: Folder that results are written to.
        today: For the age of calibrations; the date of this machine if omitted.
        tell: Told what is done next.
    """
    here = system or System()
    tell("looking at the machine")
    machine = machine_facts(here)
    packages = package_facts(version_of)
    findings = [
        *machine_findings(machine, version_of("torch")),
        *environment_findings(here, results),
        _python(),
        *package_findings(packages),
    ]
    if thorough:
        findings += thorough_findings(packages, machine, python, tell)
    tell("reading platforms")
    platforms = platform_facts(machine, Path())
    findings += _data()
    findings += platform_findings(platforms, machine, today or datetime.now(UTC).date())
    findings += command_findings(packages)
    return Checkup(machine, packages, platforms, tuple(findings))


def _python() -> Finding:
    from dse import __version__

    text = f"dse {__version__}, Python {python_platform.python_version()}"
    return Finding(Topic.PACKAGES, "dse", Status.OK, text)


def _data() -> Iterator[Finding]:
    """Yields whether the files are there that ship with the package."""
    for kind, many in (
        (DocumentKind.MODEL, "models"),
        (DocumentKind.PLATFORM, "platforms"),
        (DocumentKind.SEARCH_SPACE, "search spaces"),
    ):
        found = len(list_documents(kind))
        yield Finding(
            Topic.PLATFORMS if kind is DocumentKind.PLATFORM else Topic.PACKAGES,
            f"built-in {many}",
            Status.OK if found else Status.BROKEN,
            str(found),
            "" if found else "install dse again; its data files are missing",
        )
