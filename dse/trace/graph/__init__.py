"""Execution graph of one traced step: threads, launches, streams, and their dependencies."""

from __future__ import annotations

from dse.trace.graph._step import marked_steps
from dse.trace.graph._trace_graph import trace_graph

__all__ = ["marked_steps", "trace_graph"]
