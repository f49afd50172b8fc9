"""Simulators of execution graphs."""

from __future__ import annotations

from dse.simulate._timeline import RankBreakdown
from dse.simulate._timeline import Timeline

__all__ = ["RankBreakdown", "Timeline"]
