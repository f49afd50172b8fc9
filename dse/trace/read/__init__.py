"""Readers of Kineto and PyTorch execution traces: files → checked columns of each rank."""

from __future__ import annotations

from dse.trace.read._collectives import CollectiveInfo, dtype_bytes, dtype_name
from dse.trace.read._execution_trace import (
    ExecutionTrace,
    TensorReferences,
    read_execution_trace,
)
from dse.trace.read._files import documents, file_names, is_execution_trace, is_kineto
from dse.trace.read._kineto import read_kineto
from dse.trace.read._nodes import NodeArguments
from dse.trace.read._rank_trace import (
    CALLS,
    DEVICE_WORK,
    Category,
    FlowKind,
    Flows,
    OperatorInputs,
    ProcessGroup,
    ProfilerStep,
    RankTrace,
    ThreadInfo,
)

__all__ = [
    "CALLS",
    "DEVICE_WORK",
    "Category",
    "CollectiveInfo",
    "ExecutionTrace",
    "FlowKind",
    "Flows",
    "NodeArguments",
    "OperatorInputs",
    "ProcessGroup",
    "ProfilerStep",
    "RankTrace",
    "TensorReferences",
    "ThreadInfo",
    "documents",
    "dtype_bytes",
    "dtype_name",
    "file_names",
    "is_execution_trace",
    "is_kineto",
    "read_execution_trace",
    "read_kineto",
]
