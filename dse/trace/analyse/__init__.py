"""Analyses of traces and of the graphs made from them."""

from __future__ import annotations

from dse.trace.analyse._contents import (
    SizeSummary,
    StreamSummary,
    size_summaries,
    stream_summaries,
)
from dse.trace.analyse._facts import TaskFacts, TrainingPhase, task_facts
from dse.trace.analyse._path import (
    PathContributor,
    PathPart,
    PathRank,
    PathSummary,
    summarise_path,
)
from dse.trace.analyse._resimulate import (
    RankResimulation,
    compare_with_measured,
)
from dse.trace.analyse._summary import summarise
from dse.trace.analyse._summary_types import (
    CollectiveSummary,
    NamedTotal,
    RankSummary,
    StepSummary,
    StepTimes,
    Straggler,
    TraceSummary,
)

__all__ = [
    "CollectiveSummary",
    "NamedTotal",
    "PathContributor",
    "PathPart",
    "PathRank",
    "PathSummary",
    "RankResimulation",
    "RankSummary",
    "SizeSummary",
    "StepSummary",
    "StepTimes",
    "Straggler",
    "StreamSummary",
    "TaskFacts",
    "TraceSummary",
    "TrainingPhase",
    "compare_with_measured",
    "size_summaries",
    "stream_summaries",
    "summarise",
    "summarise_path",
    "task_facts",
]
