"""Execution graphs: tasks of every rank, their streams and dependencies."""

from __future__ import annotations

from dse.graph._builder import GraphBuilder
from dse.graph._editor import EditedGraph, GraphEditor
from dse.graph._graph import ExecutionGraph, Stream, TaskKind
from dse.graph._intervals import union_length
from dse.graph._order import (
    StructureKey,
    collective_members,
    followers,
    invert_waits,
    predecessors,
    topological_order,
    wait_counts,
)

__all__ = [
    "EditedGraph",
    "ExecutionGraph",
    "GraphBuilder",
    "GraphEditor",
    "Stream",
    "StructureKey",
    "TaskKind",
    "collective_members",
    "followers",
    "invert_waits",
    "predecessors",
    "topological_order",
    "union_length",
    "wait_counts",
]
