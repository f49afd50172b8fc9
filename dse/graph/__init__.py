"""Execution graphs: tasks on every rank with dependencies and lanes."""

from __future__ import annotations

from dse.graph._builder import GraphBuilder
from dse.graph._graph import ExecutionGraph
from dse.graph._graph import Lane
from dse.graph._graph import TaskKind
from dse.graph._order import predecessors
from dse.graph._order import topological_order

__all__ = [
    "ExecutionGraph",
    "GraphBuilder",
    "Lane",
    "TaskKind",
    "predecessors",
    "topological_order",
]
