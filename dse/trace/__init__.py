"""Captured traces: Kineto and PyTorch execution traces of all ranks → checked, linked columns.

Reads what PyTorch 1.8 to 2.13 write, counts what is left out, and refuses what could mislead:
truncated files, broken clocks, ranks of different runs. Links connect operators, calls, device
work, forward and backward, and the kernels that are one collective on several ranks. The execution
graph of a step reproduces its measured time when it is simulated; nothing here simulates.

Names are imported when they are first used: :mod:`dse.trace.capture` runs inside the user's
training process, which must not load numpy and msgspec for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.trace._step_graph import (
        COMPUTING,
        TaskRole,
        TracedStep,
        TraceGraph,
        Unexplained,
    )
    from dse.trace.analyse import (
        CollectiveSummary,
        NamedTotal,
        PathContributor,
        PathPart,
        PathRank,
        PathSummary,
        RankResimulation,
        RankSummary,
        SizeSummary,
        StepSummary,
        StepTimes,
        Straggler,
        StreamSummary,
        TaskFacts,
        TraceSummary,
        TrainingPhase,
        compare_with_measured,
        size_summaries,
        stream_summaries,
        summarise,
        summarise_path,
        task_facts,
    )
    from dse.trace.graph import trace_graph
    from dse.trace.links import (
        ExecutionTraceLinks,
        Links,
        MatchedCollective,
        link,
        link_execution_trace,
        match_collectives,
    )
    from dse.trace.read import (
        Category,
        CollectiveInfo,
        ExecutionTrace,
        FlowKind,
        Flows,
        NodeArguments,
        OperatorInputs,
        ProcessGroup,
        ProfilerStep,
        RankTrace,
        TensorReferences,
        ThreadInfo,
        dtype_bytes,
        dtype_name,
        read_execution_trace,
        read_kineto,
    )

__all__ = [
    "COMPUTING",
    "Category",
    "CollectiveInfo",
    "CollectiveSummary",
    "ExecutionTrace",
    "ExecutionTraceLinks",
    "FlowKind",
    "Flows",
    "Links",
    "MatchedCollective",
    "NamedTotal",
    "NodeArguments",
    "OperatorInputs",
    "PathContributor",
    "PathPart",
    "PathRank",
    "PathSummary",
    "ProcessGroup",
    "ProfilerStep",
    "RankResimulation",
    "RankSummary",
    "RankTrace",
    "SizeSummary",
    "StepSummary",
    "StepTimes",
    "Straggler",
    "StreamSummary",
    "TaskFacts",
    "TaskRole",
    "TensorReferences",
    "ThreadInfo",
    "TraceGraph",
    "TraceSummary",
    "TracedStep",
    "TrainingPhase",
    "Unexplained",
    "compare_with_measured",
    "dtype_bytes",
    "dtype_name",
    "link",
    "link_execution_trace",
    "match_collectives",
    "read_execution_trace",
    "read_kineto",
    "size_summaries",
    "stream_summaries",
    "summarise",
    "summarise_path",
    "task_facts",
    "trace_graph",
]

_PACKAGES = ("read", "_step_graph", "links", "graph", "analyse")


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used."""
    if name in __all__:
        for package in _PACKAGES:
            found = getattr(import_module(f"{__name__}.{package}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted(__all__)
