"""Sharding plans in TorchRec's terms: for every table a type, its ranks and a compute kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ShardingType(StrEnum):
    """How one table is cut, with TorchRec's spellings."""

    DATA_PARALLEL = "data_parallel"
    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    TABLE_ROW_WISE = "table_row_wise"
    TABLE_COLUMN_WISE = "table_column_wise"
    GRID_SHARD = "grid_shard"


class ComputeKernel(StrEnum):
    """Who looks rows up and updates them, with TorchRec's spellings."""

    DENSE = "dense"
    FUSED = "fused"
    FUSED_UVM = "fused_uvm"
    FUSED_UVM_CACHING = "fused_uvm_caching"


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The placement of one table.

    Attributes:
        table: Table name.
        sharding_type: How it is cut.
        ranks: Where the pieces sit. Table-wise: one rank. Column-wise and table-column-wise: one
            rank per column piece (a rank may hold several). Row-wise and data-parallel: all
            ranks. Table-row-wise: all ranks of one node. Grid: for each column piece in turn,
            all ranks of its node.
        compute_kernel: Kernel family.
    """

    table: str
    sharding_type: ShardingType
    ranks: tuple[int, ...]
    compute_kernel: ComputeKernel = ComputeKernel.FUSED


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """Placements of all tables of a model, in the model's table order."""

    world_size: int
    tables: tuple[TablePlan, ...]
