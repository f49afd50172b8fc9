"""Platforms: devices, nodes, links, networks and prices."""

from __future__ import annotations

from dse.machine.platforms._calibration_file import (
    CalibrationFile,
    read_calibrations,
    write_calibrations,
)
from dse.machine.platforms._calibrations import builtin_calibrations
from dse.machine.platforms._derive import (
    DerivedPlatform,
    DerivedPlatformBlock,
    PlatformChoice,
    derive_platform,
)
from dse.machine.platforms._devices import (
    may_be_same_device,
    nearest_platform,
    platform_of_device,
)
from dse.machine.platforms._families import (
    FAMILIES,
    FittedFamily,
    by_formulas,
    fitted_families,
)
from dse.machine.platforms._load import (
    list_platforms,
    load_platform,
    platform_from_text,
)
from dse.machine.platforms._moved_calibrations import transferred_curves
from dse.machine.platforms._override import (
    ChangedFigure,
    Override,
    host_profile_override,
    override_platform,
    override_platforms,
    parse_override,
)
from dse.machine.platforms._platform import Platform
from dse.machine.platforms._provenance import CalibrationSource, PlatformFact
from dse.machine.platforms._schema import PLAIN_NAME, PlatformDocument

__all__ = [
    "FAMILIES",
    "PLAIN_NAME",
    "CalibrationFile",
    "CalibrationSource",
    "ChangedFigure",
    "DerivedPlatform",
    "DerivedPlatformBlock",
    "FittedFamily",
    "Override",
    "Platform",
    "PlatformChoice",
    "PlatformDocument",
    "PlatformFact",
    "builtin_calibrations",
    "by_formulas",
    "derive_platform",
    "fitted_families",
    "host_profile_override",
    "list_platforms",
    "load_platform",
    "may_be_same_device",
    "nearest_platform",
    "override_platform",
    "override_platforms",
    "parse_override",
    "platform_from_text",
    "platform_of_device",
    "read_calibrations",
    "transferred_curves",
    "write_calibrations",
]
