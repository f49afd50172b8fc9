"""Simulators of execution graphs: of one configuration and of thousands, with the same answers."""

from __future__ import annotations

from dse.simulate._alike import AlikeRanks, Meets
from dse.simulate._alike_batched import AlikeSimulator
from dse.simulate._batched import BatchedSimulator
from dse.simulate._breakdown import breakdown, breakdown_of_copies, covered_s
from dse.simulate._critical_path import CriticalPath, critical_path, slack_s
from dse.simulate._schedule import schedule
from dse.simulate._single import simulate
from dse.simulate._timeline import RankBreakdown, Timeline

__all__ = [
    "AlikeRanks",
    "AlikeSimulator",
    "BatchedSimulator",
    "CriticalPath",
    "Meets",
    "RankBreakdown",
    "Timeline",
    "breakdown",
    "breakdown_of_copies",
    "covered_s",
    "critical_path",
    "schedule",
    "simulate",
    "slack_s",
]
