"""Sharding plans in TorchRec's terms: type, ranks and compute kernel of every table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dse._text.html import grid_html
from dse._text.suggest import hint
from dse.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable


class ShardingType(StrEnum):
    """How one table is cut, with TorchRec's spellings."""

    DATA_PARALLEL = "data_parallel"
    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    TABLE_ROW_WISE = "table_row_wise"
    TABLE_COLUMN_WISE = "table_column_wise"
    GRID_SHARD = "grid_shard"


def parse_sharding_types(names: str | Iterable[str]) -> frozenset[ShardingType]:
    """Returns sharding types by their names; one name stands for itself.

    Raises:
        UnknownNameError: There is no such type.
    """
    known = [kind.value for kind in ShardingType]
    given = [names] if isinstance(names, str) else list(names)
    for name in given:
        if name not in known:
            raise UnknownNameError(f"unknown sharding type `{name}`; {hint(str(name), known)}")
    return frozenset(map(ShardingType, given))


#: Types with the shards of another type, on other ranks; on a single node both are the same.
SAME_SHARDS = {
    ShardingType.TABLE_COLUMN_WISE: ShardingType.COLUMN_WISE,
    ShardingType.GRID_SHARD: ShardingType.TABLE_ROW_WISE,
}

#: Types that tables without pooling cannot have, as in TorchRec's `EmbeddingCollection`, and the
#: nearest that they can: what these types save is sums over a node, and there are none.
NEAREST_WITHOUT_POOLING = {
    ShardingType.TABLE_COLUMN_WISE: ShardingType.COLUMN_WISE,
    ShardingType.TABLE_ROW_WISE: ShardingType.ROW_WISE,
    ShardingType.GRID_SHARD: ShardingType.COLUMN_WISE,
}


class ComputeKernel(StrEnum):
    """Kernel that looks up and updates rows, with TorchRec's spellings.

    DENSE: a dense gradient and the dense optimizer; for copies on every rank.
    FUSED: rows in device memory, updated by the backward pass.
    FUSED_UVM: rows in host memory, read over the host link.
    FUSED_UVM_CACHING: rows in host memory, and a share of them cached in device memory.
    """

    DENSE = "dense"
    FUSED = "fused"
    FUSED_UVM = "fused_uvm"
    FUSED_UVM_CACHING = "fused_uvm_caching"

    @property
    def on_host(self) -> bool:
        """Whether the rows live in host memory."""
        return self in (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)


#: Default share of a table's rows that `fused_uvm_caching` caches, as in TorchRec.
DEFAULT_CACHE_LOAD_FACTOR = 0.2


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The placement of one table.

    Attributes:
        table: Table name.
        sharding_type: How it is cut.
        ranks: Ranks of the shards. Table-wise: one rank. Column-wise and table-column-wise: one
            rank per column shard (a rank may hold several). Row-wise and data-parallel: all
            ranks. Table-row-wise: all ranks of one node. Grid: for each column shard in turn,
            all ranks of its node. Under programs that cut rows over some ranks, row-wise may
            have any several ranks, and table-row-wise all ranks of several nodes.
        compute_kernel: Kernel family.
        cache_load_factor: For `fused_uvm_caching`, the share of the rows that the device caches;
            `DEFAULT_CACHE_LOAD_FACTOR` when None.
        hot_rows: How many of the most popular rows every rank keeps a copy of, as HugeCTR's hybrid
            embedding does. They are looked up locally, and their gradients are reduced over all
            ranks; only the other rows are sharded.
    """

    table: str
    sharding_type: ShardingType
    ranks: tuple[int, ...]
    compute_kernel: ComputeKernel = ComputeKernel.FUSED
    cache_load_factor: float | None = None
    hot_rows: int = 0

    @property
    def cached_share(self) -> float | None:
        """Share of rows in host memory that the device caches; None for rows on the device."""
        if not self.compute_kernel.on_host:
            return None
        if self.compute_kernel is ComputeKernel.FUSED_UVM:
            return 0.0
        factor = self.cache_load_factor
        return DEFAULT_CACHE_LOAD_FACTOR if factor is None else factor


#: Ranks and tables of a plan that a notebook shows one by one.
_SHOWN_RANKS, _SHOWN_TABLES = 32, 40


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """Placements of all tables of a model, in the model's table order."""

    world_size: int
    tables: tuple[TablePlan, ...]

    def __repr__(self) -> str:
        """Returns the plan in one line."""
        counts = Counter(table.sharding_type.value for table in self.tables)
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        return f"ShardingPlan({len(self.tables)} tables on {self.world_size} ranks: {kinds})"

    def _repr_html_(self) -> str:
        """Shows how many shards of each table are on each rank in a notebook."""
        ranks = range(min(self.world_size, _SHOWN_RANKS))
        rows = (
            (
                f"{table.table}: {table.sharding_type.value}, {table.compute_kernel.value}",
                [str(table.ranks.count(rank) or "") for rank in ranks],
            )
            for table in self.tables[:_SHOWN_TABLES]
        )
        left_out = len(self.tables) > _SHOWN_TABLES or self.world_size > _SHOWN_RANKS
        note = f"the first {_SHOWN_TABLES} tables and {_SHOWN_RANKS} ranks" if left_out else ""
        return grid_html(f"{self!r}: shards by rank", [str(rank) for rank in ranks], rows, note)
