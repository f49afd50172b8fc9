"""Log of a session: an append-only file that later sessions continue."""

from __future__ import annotations

from dse.calibration.microbench.log._log import (
    SCHEMA_VERSION,
    SessionLog,
    SessionResult,
    read_session,
)

__all__ = ["SCHEMA_VERSION", "SessionLog", "SessionResult", "read_session"]
