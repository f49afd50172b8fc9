"""Host profiles: the overheads T1–T5 of a machine's host, per operator and per launch call.

A profile is a YAML file, can be shared between models, and replaces a platform's host in
predictions. :mod:`dse.trace.overheads` extracts profiles from traces.
"""

from __future__ import annotations

from dse.machine.host._document import (
    HostProfileDocument,
    host_profile_from_text,
    host_profile_text,
    load_host_profile,
    platform_host_block,
    write_host_profile,
)
from dse.machine.host._profile import (
    HOST_FIGURES,
    Figure,
    HostProfile,
    LaunchFigures,
    OperatorFigures,
    ProfileSource,
    SharedFigures,
    spread_of,
)

__all__ = [
    "HOST_FIGURES",
    "Figure",
    "HostProfile",
    "HostProfileDocument",
    "LaunchFigures",
    "OperatorFigures",
    "ProfileSource",
    "SharedFigures",
    "host_profile_from_text",
    "host_profile_text",
    "load_host_profile",
    "platform_host_block",
    "spread_of",
    "write_host_profile",
]
