"""The five host overheads of training on a device, from captured traces.

A profile holds them per operator, per function of the runtime and over all operators. It is a YAML
file, can be shared between models, and replaces a platform's host in predictions.
"""

from __future__ import annotations

from dse.trace.overheads._check import HostCheck, check_host_time
from dse.trace.overheads._document import (
    HostProfileDocument,
    host_profile_text,
    load_host_profile,
    platform_host_block,
    write_host_profile,
)
from dse.trace.overheads._extract import extract_overheads
from dse.trace.overheads._merge import merge_profiles
from dse.trace.overheads._types import (
    Figure,
    HostProfile,
    LaunchFigures,
    OperatorFigures,
    ProfileSource,
    SharedFigures,
    spread_of,
)

__all__ = [
    "Figure",
    "HostCheck",
    "HostProfile",
    "HostProfileDocument",
    "LaunchFigures",
    "OperatorFigures",
    "ProfileSource",
    "SharedFigures",
    "check_host_time",
    "extract_overheads",
    "host_profile_text",
    "load_host_profile",
    "merge_profiles",
    "platform_host_block",
    "spread_of",
    "write_host_profile",
]
