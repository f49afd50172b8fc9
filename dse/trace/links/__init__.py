"""Links: operators to launches, backward to forward, nodes to operators, ranks to ranks."""

from __future__ import annotations

from dse.trace.links._execution_trace import ExecutionTraceLinks, link_execution_trace
from dse.trace.links._link import Links, link
from dse.trace.links._matched_collectives import MatchedCollective, match_collectives

__all__ = [
    "ExecutionTraceLinks",
    "Links",
    "MatchedCollective",
    "link",
    "link_execution_trace",
    "match_collectives",
]
