"""Recording a user's training loop: Kineto and execution traces of the same steps, on every rank.

:func:`capture` goes around a loop; :func:`record_command` does the same to a command that is not
touched. Both write `rank<r>.pt.trace.json.gz`, `rank<r>.et.json.gz` and `rank<r>.capture.json`.
Nothing here imports torch before it is used, and nothing but torch is needed besides Python.
"""

from __future__ import annotations

from dse.trace.capture._capture import Capture, CaptureWarning, capture
from dse.trace.capture._command import CommandRecording, RefusalNote, record_command
from dse.trace.capture._record import CapturedFile, CaptureRecord, read_records
from dse.trace.capture._settings import CaptureSettings

__all__ = [
    "Capture",
    "CaptureRecord",
    "CaptureSettings",
    "CaptureWarning",
    "CapturedFile",
    "CommandRecording",
    "RefusalNote",
    "capture",
    "read_records",
    "record_command",
]
