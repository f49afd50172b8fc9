"""Tables cut by rows: into how many blocks, and which of these are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.indices import lookup_blocks
from dse.sharding import ShardingType, cold_part, row_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.indices import RowBlock
    from dse.machine import Cluster
    from dse.model import EmbeddingTable
    from dse.sharding import TablePlan


_ONE = np.zeros(1, dtype=np.int64)


class RowCut(NamedTuple):
    """A table cut by rows, or whole.

    Attributes:
        blocks: Its blocks, in the order of rows; None alone for a whole table.
        first: The first block of each kind, ascending; shape `(kinds,)`.
        kind_of: Kind of each block; shape `(blocks,)`.
    """

    blocks: tuple[RowBlock | None, ...]
    first: NDArray[np.int64]
    kind_of: NDArray[np.int64]


def row_cut(table: EmbeddingTable, count: int, hot_rows: int) -> RowCut:
    """Returns a table in so many blocks of rows, apart from its hot rows."""
    if count == 1:
        return RowCut((None,), _ONE, _ONE)
    cold = cold_part(table, hot_rows)
    blocks = lookup_blocks(cold.indices, row_blocks(cold.rows, count), cold.name)
    # Equal blocks are one object, and of tens of thousands few differ.
    kinds = np.fromiter(map(id, blocks), dtype=np.int64, count=count)
    _, first, kind_of = np.unique(kinds, return_index=True, return_inverse=True)
    # In the order of rows, whatever addresses they have.
    order = np.argsort(first)
    return RowCut(blocks, first[order], np.argsort(order)[kind_of])


def blocks_of_plan(plan: TablePlan, cluster: Cluster) -> int:
    """Blocks that the rows of a placement are cut into: some ranks or nodes may have them."""
    if plan.sharding_type in (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE):
        return len(plan.ranks)
    return blocks_of_type(plan.sharding_type, cluster)


def blocks_of_type(kind: ShardingType, cluster: Cluster) -> int:
    """Blocks that the rows are cut into where all ranks, or those of one node, have them."""
    if kind is ShardingType.ROW_WISE:
        return cluster.world_size
    if kind in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD):
        return cluster.domain_size
    return 1
