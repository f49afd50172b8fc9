"""Execution graphs: tasks on every rank with dependencies and lanes."""

from __future__ import annotations

from dse.graph._builder import GraphBuilder
from dse.graph._graph import ExecutionGraph, Lane, TaskKind
from dse.graph._order import followers_of, meeting_members, predecessors, topological_order

__all__ = [
    "ExecutionGraph",
    "GraphBuilder",
    "Lane",
    "TaskKind",
    "followers_of",
    "meeting_members",
    "predecessors",
    "topological_order",
]
