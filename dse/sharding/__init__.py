"""Sharding plans: types, geometry, checks, baseline planners, and files."""

from __future__ import annotations

from dse.sharding._check import check_plan
from dse.sharding._constraint_files import (
    ConstraintsDocument,
    parse_allow,
    parse_pin,
    read_constraints,
)
from dse.sharding._constraints import (
    AllowedPlacement,
    TableConstraints,
    check_constraints,
    column_piece_counts,
    placements_allowed,
)
from dse.sharding._diagnose import explain_infeasible, size_words, total_device_bytes
from dse.sharding._files import plan_to_json, plan_to_torchrec, read_plan
from dse.sharding._pieces import Piece, column_widths, pieces_of, row_blocks
from dse.sharding._plan import (
    DEFAULT_CACHE_LOAD_FACTOR,
    ComputeKernel,
    ShardingPlan,
    ShardingType,
    TablePlan,
)
from dse.sharding._planners import PLANNERS, Cut, largest_piece_bytes, plan_greedily
from dse.sharding._request import PlanningRequest
from dse.sharding._storage import PieceStorage, piece_storage, stored_bytes
from dse.sharding._torchrec_export import TORCHREC_MODULE
from dse.sharding._torchrec_objects import from_torchrec, to_torchrec

__all__ = [
    "DEFAULT_CACHE_LOAD_FACTOR",
    "PLANNERS",
    "TORCHREC_MODULE",
    "AllowedPlacement",
    "ComputeKernel",
    "ConstraintsDocument",
    "Cut",
    "Piece",
    "PieceStorage",
    "PlanningRequest",
    "ShardingPlan",
    "ShardingType",
    "TableConstraints",
    "TablePlan",
    "check_constraints",
    "check_plan",
    "column_piece_counts",
    "column_widths",
    "explain_infeasible",
    "from_torchrec",
    "largest_piece_bytes",
    "parse_allow",
    "parse_pin",
    "piece_storage",
    "pieces_of",
    "placements_allowed",
    "plan_greedily",
    "plan_to_json",
    "plan_to_torchrec",
    "read_constraints",
    "read_plan",
    "row_blocks",
    "size_words",
    "stored_bytes",
    "to_torchrec",
    "total_device_bytes",
]
