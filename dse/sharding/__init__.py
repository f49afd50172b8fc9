"""Sharding plans."""

from __future__ import annotations

from dse.sharding._check import check_plan
from dse.sharding._pieces import Piece
from dse.sharding._pieces import column_widths
from dse.sharding._pieces import pieces_of
from dse.sharding._pieces import row_blocks
from dse.sharding._plan import ComputeKernel
from dse.sharding._plan import ShardingPlan
from dse.sharding._plan import ShardingType
from dse.sharding._plan import TablePlan

__all__ = ["ComputeKernel", "ShardingPlan", "ShardingType", "TablePlan"]
