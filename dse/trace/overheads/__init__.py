"""Host overheads T1–T5 of training on a device, extracted from captured traces.

The result is a :class:`~dse.machine.host.HostProfile`: overheads per operator, per function of the
runtime and over all operators.
"""

from __future__ import annotations

from dse.trace.overheads._check import HostCheck, check_host_time
from dse.trace.overheads._extract import extract_overheads
from dse.trace.overheads._merge import merge_profiles

__all__ = ["HostCheck", "check_host_time", "extract_overheads", "merge_profiles"]
