"""Checkup of this machine, the installed packages and the platforms, as `dse doctor` prints it.

Nothing heavy is imported: versions come from package metadata, GPUs from `nvidia-smi`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dse.doctor._findings import Finding, Status, Topic
from dse.doctor._machine import Devices, System, machine_findings
from dse.doctor._packages import package_findings
from dse.doctor._platforms import is_of, platform_findings

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Devices",
    "Finding",
    "Status",
    "System",
    "Topic",
    "examine",
    "is_of",
    "platform_findings",
]


def examine(
    *,
    thorough: bool = False,
    system: System | None = None,
    folder: Path = Path(),
    on_progress: Callable[[str], None] = lambda _: None,
) -> tuple[Finding, ...]:
    """Checks this machine, its packages and the platforms; returns one finding for each thing.

    Args:
        thorough: Also import the heavy packages, which takes seconds.
        system: Source of the machine's facts.
        folder: Where commands would run: results go below it, calibrations are looked for in it.
        on_progress: Called with a short text before each slow part.
    """
    system = system or System()
    devices = system.devices()
    on_progress("checking the machine")
    found = [*machine_findings(system, folder / "results")]
    on_progress("importing packages" if thorough else "looking for packages")
    found += package_findings(devices.gpus if thorough else None)
    on_progress("reading platforms")
    return (*found, *platform_findings(devices, folder))
