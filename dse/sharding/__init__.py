"""Sharding plans: types, geometry, checks, baseline planners, and files."""

from __future__ import annotations

from dse.sharding._check import check_plan
from dse.sharding._files import plan_to_json, plan_to_torchrec, read_plan
from dse.sharding._pieces import Piece, column_widths, pieces_of, row_blocks
from dse.sharding._plan import ComputeKernel, ShardingPlan, ShardingType, TablePlan
from dse.sharding._planners import (
    PLANNERS,
    PlanningRequest,
    column_piece_counts,
    plan_greedily,
    stored_bytes,
)

__all__ = [
    "PLANNERS",
    "ComputeKernel",
    "Piece",
    "PlanningRequest",
    "ShardingPlan",
    "ShardingType",
    "TablePlan",
    "check_plan",
    "column_piece_counts",
    "column_widths",
    "pieces_of",
    "plan_greedily",
    "plan_to_json",
    "plan_to_torchrec",
    "read_plan",
    "row_blocks",
    "stored_bytes",
]
