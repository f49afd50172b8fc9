"""Moves of the local search: plans, their scores, and how shards and cuts change."""

from __future__ import annotations

from dse.workload.dlrm.solver.moves._annealing import AnnealingBalancer
from dse.workload.dlrm.solver.moves._balance import Balancer
from dse.workload.dlrm.solver.moves._evaluator import OVERFLOW_S, Evaluator, Values, penalized_s
from dse.workload.dlrm.solver.moves._moves import QUICK, THOROUGH, Candidate, Effort, Moves
from dse.workload.dlrm.solver.moves._neighbours import Neighbourhood
from dse.workload.dlrm.solver.moves._plan_arrays import PlanArrays
from dse.workload.dlrm.solver.moves._plans import Assignment, Change, from_plan, to_plan
from dse.workload.dlrm.solver.moves._repack import repack
from dse.workload.dlrm.solver.moves._shards import MovableShards, movable_shards

__all__ = [
    "OVERFLOW_S",
    "QUICK",
    "THOROUGH",
    "AnnealingBalancer",
    "Assignment",
    "Balancer",
    "Candidate",
    "Change",
    "Effort",
    "Evaluator",
    "MovableShards",
    "Moves",
    "Neighbourhood",
    "PlanArrays",
    "Values",
    "from_plan",
    "movable_shards",
    "penalized_s",
    "repack",
    "to_plan",
]
