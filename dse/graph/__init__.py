"""Execution graphs: tasks on every rank with dependencies and lanes."""

from __future__ import annotations

from dse.graph._builder import GraphBuilder
from dse.graph._editor import EditedGraph, GraphEditor
from dse.graph._graph import ExecutionGraph, Lane, TaskKind
from dse.graph._intervals import union_length
from dse.graph._order import (
    Followers,
    followers,
    followers_of,
    meeting_members,
    predecessors,
    topological_order,
    wait_counts,
)

__all__ = [
    "EditedGraph",
    "ExecutionGraph",
    "Followers",
    "GraphBuilder",
    "GraphEditor",
    "Lane",
    "TaskKind",
    "followers",
    "followers_of",
    "meeting_members",
    "predecessors",
    "topological_order",
    "union_length",
    "wait_counts",
]
