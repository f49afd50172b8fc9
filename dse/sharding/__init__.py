"""Sharding plans: types, geometry, checks, baseline planners, and files."""

from __future__ import annotations

from dse.sharding._check import check_plan
from dse.sharding._files import plan_to_json
from dse.sharding._files import plan_to_torchrec
from dse.sharding._files import read_plan
from dse.sharding._pieces import Piece
from dse.sharding._pieces import column_widths
from dse.sharding._pieces import pieces_of
from dse.sharding._pieces import row_blocks
from dse.sharding._plan import ComputeKernel
from dse.sharding._plan import ShardingPlan
from dse.sharding._plan import ShardingType
from dse.sharding._plan import TablePlan
from dse.sharding._planners import PLANNERS
from dse.sharding._planners import PlanningRequest
from dse.sharding._planners import column_piece_counts
from dse.sharding._planners import plan_greedily
from dse.sharding._planners import stored_bytes

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
