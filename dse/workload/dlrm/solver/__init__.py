"""Sharding solver: the best plan for a problem, and a lower bound on all plans."""

from __future__ import annotations

from dse.workload.dlrm.solver._result import ShardingSolution, SolvedPlan
from dse.workload.dlrm.solver._search import planning_request, solve
from dse.workload.dlrm.solver._shard import check_request, find_plan
from dse.workload.dlrm.solver.bound import LowerBound, lower_bound

__all__ = [
    "LowerBound",
    "ShardingSolution",
    "SolvedPlan",
    "check_request",
    "find_plan",
    "lower_bound",
    "planning_request",
    "solve",
]
