"""Captured steps: a trace as a workload that can be changed and simulated."""

from __future__ import annotations

from dse.workload._parameters import SAME_PLATFORM
from dse.workload.recorded._changes import (
    changes_document,
    machine_changes,
    optimizations,
    with_captured_platform,
)
from dse.workload.recorded._job import RecordedJob
from dse.workload.recorded._parameters import (
    RecordedParameters,
    is_step_file,
)
from dse.workload.recorded._workload import RecordedWorkload

__all__ = [
    "SAME_PLATFORM",
    "RecordedJob",
    "RecordedParameters",
    "RecordedWorkload",
    "changes_document",
    "is_step_file",
    "machine_changes",
    "optimizations",
    "with_captured_platform",
]
