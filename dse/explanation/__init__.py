"""Explanations of how long an execution graph takes, and of differences between graphs."""

from __future__ import annotations

from dse.explanation._difference import compare_explanations
from dse.explanation._explain import FASTER, explain_graph
from dse.explanation._names import resource_names
from dse.explanation._resources import ROW, Resource, TaskResources
from dse.explanation._types import (
    CriticalTask,
    Difference,
    DifferenceStep,
    Explanation,
    Imbalance,
    PathShare,
    RankExplanation,
    Sensitivity,
    WaitedFor,
)

__all__ = [
    "FASTER",
    "ROW",
    "CriticalTask",
    "Difference",
    "DifferenceStep",
    "Explanation",
    "Imbalance",
    "PathShare",
    "RankExplanation",
    "Resource",
    "Sensitivity",
    "TaskResources",
    "WaitedFor",
    "compare_explanations",
    "explain_graph",
    "resource_names",
]
