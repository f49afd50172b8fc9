"""Capture of a training loop: Kineto and execution traces of the same iterations, on every rank.

:func:`capture` wraps a loop; :func:`record_command` records a command without changing it. Both
write `rank<r>.pt.trace.json.gz`, `rank<r>.et.json.gz` and `rank<r>.capture.json`. Importing this
package loads no third-party package; recording needs torch only.
"""

from __future__ import annotations

from dse.trace.capture._capture import Capture, CaptureWarning, capture
from dse.trace.capture._command import CommandRecording, ProcessNote, record_command
from dse.trace.capture._files import CapturedFile, CaptureRecord, read_records
from dse.trace.capture._settings import CaptureSettings

__all__ = [
    "Capture",
    "CaptureRecord",
    "CaptureSettings",
    "CaptureWarning",
    "CapturedFile",
    "CommandRecording",
    "ProcessNote",
    "capture",
    "read_records",
    "record_command",
]
