"""Captured traces: Kineto and PyTorch execution traces of all ranks → checked, linked columns.

Readers take what PyTorch 1.8 to 2.13 write, count what they leave out, and refuse what could
mislead: files that are cut off, broken clocks, ranks of different runs. Links say which operator
made which call, which call launched which work of a device, which forward operator a backward
operator belongs to, and which kernels of the ranks are one collective.
Graphs made of them replay to the measured time. Nothing here simulates.
"""

from __future__ import annotations

from dse.trace._collectives import CollectiveInfo, bytes_of, type_of
from dse.trace._et_arguments import NodeArguments
from dse.trace._events import (
    Category,
    FlowKind,
    Flows,
    OperatorInputs,
    ProcessGroup,
    ProfilerStep,
    RankTrace,
    ThreadInfo,
)
from dse.trace._execution_trace import ExecutionTrace, TensorReferences, read_execution_trace
from dse.trace._facts import Phase, TaskFacts, task_facts
from dse.trace._files import MAX_UNPACKED_BYTES
from dse.trace._kineto import read_kineto
from dse.trace._link import Links, link
from dse.trace._link_et import EtLinks, link_execution_trace
from dse.trace._match import CollectiveMeeting, match_collectives
from dse.trace._path_summary import (
    PathContributor,
    PathPart,
    PathRank,
    PathSummary,
    summarise_path,
)
from dse.trace._replay import RankReplay, compare, replay
from dse.trace._replay_types import COMPUTING, Role, TracedStep, TraceGraph, Unexplained
from dse.trace._summary import summarise
from dse.trace._summary_step import (
    LaneSummary,
    SizeSummary,
    lanes_of_step,
    sizes_of_step,
)
from dse.trace._summary_types import (
    CollectiveSummary,
    NamedTotal,
    RankSummary,
    StepSummary,
    StepTimes,
    Straggler,
    TraceSummary,
)
from dse.trace._trace_graph import trace_graph

__all__ = [
    "COMPUTING",
    "MAX_UNPACKED_BYTES",
    "Category",
    "CollectiveInfo",
    "CollectiveMeeting",
    "CollectiveSummary",
    "EtLinks",
    "ExecutionTrace",
    "FlowKind",
    "Flows",
    "LaneSummary",
    "Links",
    "NamedTotal",
    "NodeArguments",
    "OperatorInputs",
    "PathContributor",
    "PathPart",
    "PathRank",
    "PathSummary",
    "Phase",
    "ProcessGroup",
    "ProfilerStep",
    "RankReplay",
    "RankSummary",
    "RankTrace",
    "Role",
    "SizeSummary",
    "StepSummary",
    "StepTimes",
    "Straggler",
    "TaskFacts",
    "TensorReferences",
    "ThreadInfo",
    "TraceGraph",
    "TraceSummary",
    "TracedStep",
    "Unexplained",
    "bytes_of",
    "compare",
    "lanes_of_step",
    "link",
    "link_execution_trace",
    "match_collectives",
    "read_execution_trace",
    "read_kineto",
    "replay",
    "sizes_of_step",
    "summarise",
    "summarise_path",
    "task_facts",
    "trace_graph",
    "type_of",
]
