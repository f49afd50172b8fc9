"""Simulation of execution graphs: compiled evaluation of many candidates, and a plain oracle."""

from __future__ import annotations

from dse.simulate._breakdown import (
    breakdown,
    breakdown_of_copies,
    covered_s,
    late_launches,
    ranks_of_tasks,
    tasks_by_rank,
)
from dse.simulate._compiled import CompiledGraph
from dse.simulate._critical_path import CriticalPath, critical_path, path_over_copies
from dse.simulate._expanded import expanded, timeline_of_copies
from dse.simulate._schedule import schedule
from dse.simulate._simulate import simulate
from dse.simulate._symmetric import FoldedRanks, SymmetricRanks, SyncScope
from dse.simulate._timeline import RankBreakdown, Timeline

__all__ = [
    "CompiledGraph",
    "CriticalPath",
    "FoldedRanks",
    "RankBreakdown",
    "SymmetricRanks",
    "SyncScope",
    "Timeline",
    "breakdown",
    "breakdown_of_copies",
    "covered_s",
    "critical_path",
    "expanded",
    "late_launches",
    "path_over_copies",
    "ranks_of_tasks",
    "schedule",
    "simulate",
    "tasks_by_rank",
    "timeline_of_copies",
]
