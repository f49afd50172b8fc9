"""Sharding plans."""

from __future__ import annotations

from dse.sharding._plan import ComputeKernel
from dse.sharding._plan import ShardingPlan
from dse.sharding._plan import ShardingType
from dse.sharding._plan import TablePlan

__all__ = ["ComputeKernel", "ShardingPlan", "ShardingType", "TablePlan"]
