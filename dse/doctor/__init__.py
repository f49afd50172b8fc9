"""A check-up: what this machine has, what is installed, what is calibrated, and what is missing.

Nothing heavy is imported; versions come from the packages' metadata, GPUs from the driver's tool.
"""

from __future__ import annotations

from dse.doctor._checkup import examine
from dse.doctor._machine import System, machine_facts
from dse.doctor._packages import package_facts
from dse.doctor._platforms import FAMILIES, platform_facts
from dse.doctor._types import (
    Checkup,
    FamilyFacts,
    Finding,
    GpuFacts,
    MachineFacts,
    PackageFacts,
    PlatformFacts,
    Status,
    Topic,
)

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
    "package_facts",
    "platform_facts",
]
