"""Log of a session: an append-only file that later sessions continue."""

from __future__ import annotations

from dse.calibration.microbench.log._log import (
    SessionLog,
    SessionResult,
    read_session,
)

__all__ = ["SessionLog", "SessionResult", "read_session"]
