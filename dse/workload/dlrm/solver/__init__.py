"""The inner search: from a problem to a sharding plan."""

from __future__ import annotations

from dse.workload.dlrm.solver._bound import LowerBound, lower_bound
from dse.workload.dlrm.solver._result import ShardingSolution
from dse.workload.dlrm.solver._search import SolvedPlan, SolverSettings, planning_request, solve
from dse.workload.dlrm.solver._shard import find_plan, shard

__all__ = [
    "LowerBound",
    "ShardingSolution",
    "SolvedPlan",
    "SolverSettings",
    "find_plan",
    "lower_bound",
    "planning_request",
    "shard",
    "solve",
]
