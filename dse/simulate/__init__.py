"""Simulators of execution graphs: event-driven and batched, with the same answers."""

from __future__ import annotations

from dse.simulate._batched import BatchedSimulator
from dse.simulate._breakdown import breakdown
from dse.simulate._events import simulate
from dse.simulate._timeline import RankBreakdown, Timeline

__all__ = ["BatchedSimulator", "RankBreakdown", "Timeline", "breakdown", "simulate"]
