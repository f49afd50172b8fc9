"""Execution graphs: tasks on every rank with dependencies and lanes."""

from __future__ import annotations

from dse.graph._graph import ExecutionGraph
from dse.graph._graph import Lane
from dse.graph._graph import TaskKind

__all__ = ["ExecutionGraph", "Lane", "TaskKind"]
