"""Checkup of this machine, the installed packages and the platforms, as `dse doctor` prints it.

Nothing heavy is imported: versions come from package metadata, GPUs from `nvidia-smi`.
"""

from __future__ import annotations

from dse.doctor._checkup import Checkup, PackageFacts, examine
from dse.doctor._findings import Finding, Status, Topic
from dse.doctor._machine import GpuFacts, MachineFacts, System, machine_facts
from dse.doctor._platforms import FAMILIES, FamilyFacts, PlatformFacts, platform_facts

__all__ = [
    "FAMILIES",
    "Checkup",
    "FamilyFacts",
    "Finding",
    "GpuFacts",
    "MachineFacts",
    "PackageFacts",
    "PlatformFacts",
    "Status",
    "System",
    "Topic",
    "examine",
    "machine_facts",
    "platform_facts",
]
