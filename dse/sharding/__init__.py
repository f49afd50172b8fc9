"""Sharding plans: types, geometry, checks, constraints, baseline planners, and files."""

from __future__ import annotations

from dse.sharding._check import check_plan
from dse.sharding._files import plan_to_json, plan_to_torchrec, read_plan
from dse.sharding._hot_rows import (
    BagShares,
    bag_shares,
    cold_part,
    hot_part,
    hot_row_counts,
    hot_share,
)
from dse.sharding._infeasible import (
    explain_infeasible,
    format_size,
    total_bytes,
    total_device_bytes,
)
from dse.sharding._kernels import KernelName
from dse.sharding._plan import (
    DEFAULT_CACHE_LOAD_FACTOR,
    SAME_SHARDS,
    ComputeKernel,
    ShardingPlan,
    ShardingType,
    TablePlan,
    parse_sharding_types,
)
from dse.sharding._planners import PLANNERS, Cut, largest_shard_bytes, plan_greedily
from dse.sharding._shards import (
    ShardStorage,
    TableShard,
    column_widths,
    row_blocks,
    shard_columns,
    shard_storage,
    stored_bytes,
    table_shards,
)
from dse.sharding.constraints import (
    AllowedPlacement,
    ConstraintsDocument,
    PlanningRequest,
    TableConstraints,
    TableConstraintsBlock,
    TablePattern,
    check_constraints,
    parse_allow,
    parse_pin,
    placements_allowed,
    read_constraints,
)
from dse.sharding.torchrec import (
    OPTIMIZER_TYPES,
    TORCHREC_MODULE,
    DmpCollection,
    from_torchrec,
    to_torchrec,
)

__all__ = [
    "DEFAULT_CACHE_LOAD_FACTOR",
    "OPTIMIZER_TYPES",
    "PLANNERS",
    "SAME_SHARDS",
    "TORCHREC_MODULE",
    "AllowedPlacement",
    "BagShares",
    "ComputeKernel",
    "ConstraintsDocument",
    "Cut",
    "DmpCollection",
    "KernelName",
    "PlanningRequest",
    "ShardStorage",
    "ShardingPlan",
    "ShardingType",
    "TableConstraints",
    "TableConstraintsBlock",
    "TablePattern",
    "TablePlan",
    "TableShard",
    "bag_shares",
    "check_constraints",
    "check_plan",
    "cold_part",
    "column_widths",
    "explain_infeasible",
    "format_size",
    "from_torchrec",
    "hot_part",
    "hot_row_counts",
    "hot_share",
    "largest_shard_bytes",
    "parse_allow",
    "parse_pin",
    "parse_sharding_types",
    "placements_allowed",
    "plan_greedily",
    "plan_to_json",
    "plan_to_torchrec",
    "read_constraints",
    "read_plan",
    "row_blocks",
    "shard_columns",
    "shard_storage",
    "stored_bytes",
    "table_shards",
    "to_torchrec",
    "total_bytes",
    "total_device_bytes",
]
