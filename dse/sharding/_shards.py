"""Shards of a table: rows and columns on each rank, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from dse.sharding._plan import ShardingType

if TYPE_CHECKING:
    from dse.model import EmbeddingTable, Optimizer
    from dse.sharding._plan import TablePlan

#: Column shards start at multiples of this many values, so that rows stay 16-byte aligned.
_COLUMN_ALIGNMENT = 4

#: Narrowest column shard that is worth a separate lookup.
MIN_COLUMNS = 16


#: Bytes of a value of optimizer state.
_STATE_BYTES = 4.0

#: Bookkeeping of FBGEMM's cache in device memory: for each row of the table its place, and for
#: each cached row its number and when it was last used.
_PLACE_BYTES = 4.0
_SLOT_BYTES = 16.0


@dataclass(frozen=True, slots=True)
class TableShard:
    """A rectangle of one table on one rank.

    Attributes:
        rank: Rank that holds it.
        row_offset: First row.
        rows: Number of rows.
        column_offset: First column.
        columns: Number of columns.
    """

    rank: int
    row_offset: int
    rows: int
    column_offset: int
    columns: int


def column_widths(dim: int, shards: int) -> tuple[int, ...]:
    """Splits `dim` columns into `shards` widths, as even as aligned starts allow.

    Args:
        dim: Columns of the table.
        shards: Number of widths, at most `dim`.

    Returns:
        Positive widths that add up to `dim`; all but the last few are multiples of four when the
        table is wide enough for that.
    """
    unit = _COLUMN_ALIGNMENT if dim >= shards * _COLUMN_ALIGNMENT else 1
    units, rest = divmod(dim, unit)
    base, extra = divmod(units, shards)
    widths = [unit * (base + (index < extra)) for index in range(shards)]
    widths[-1] += rest
    return tuple(widths)


def row_blocks(rows: int, shards: int) -> tuple[int, ...]:
    """Splits `rows` into `shards` blocks of equal size as TorchRec does; the last may be short.

    Returns:
        Block heights that add up to `rows`; trailing blocks may be empty.
    """
    block = math.ceil(rows / shards)
    full, rest = divmod(rows, block) if block else (0, 0)
    blocks = (block,) * full + ((rest,) if rest else ())
    return blocks + (0,) * (shards - len(blocks))


def table_shards(
    plan: TablePlan, table: EmbeddingTable, devices_per_node: int
) -> tuple[TableShard, ...]:
    """Returns the rectangles of `table` under `plan`.

    Of a table with hot rows these are the rectangles of the other rows, in the order of
    popularity; hot rows are on all ranks besides.

    Args:
        plan: The table's placement; must be valid for the table and the cluster.
        table: The table.
        devices_per_node: Ranks of a full node; row groups of a grid are that long.
    """
    kind, hot, rows = plan.sharding_type, plan.hot_rows, table.rows - plan.hot_rows
    if kind in (ShardingType.TABLE_WISE, ShardingType.DATA_PARALLEL):
        return tuple(TableShard(rank, hot, rows, 0, table.dim) for rank in plan.ranks)
    if kind in (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE):
        return _row_shards(plan.ranks, hot, rows, 0, table.dim)
    if kind in (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE):
        shards = []
        offset = 0
        for rank, width in zip(plan.ranks, column_widths(table.dim, len(plan.ranks)), strict=True):
            shards.append(TableShard(rank, hot, rows, offset, width))
            offset += width
        return tuple(shards)
    row_group = min(devices_per_node, len(plan.ranks))
    column_groups = len(plan.ranks) // row_group
    grid: list[TableShard] = []
    offset = 0
    for group, width in enumerate(column_widths(table.dim, column_groups)):
        ranks = plan.ranks[group * row_group : (group + 1) * row_group]
        grid.extend(_row_shards(ranks, hot, rows, offset, width))
        offset += width
    return tuple(grid)


def shard_columns(plan: TablePlan, dim: int, devices_per_node: int) -> tuple[int, ...]:
    """Returns the columns of each shard of a table, in the order of the plan's ranks.

    Args:
        plan: The table's placement; must be valid for the table and the cluster.
        dim: Columns of the table.
        devices_per_node: Ranks of a full node; row groups of a grid are that long.
    """
    kind, count = plan.sharding_type, len(plan.ranks)
    if kind in (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE):
        return column_widths(dim, count)
    if kind is ShardingType.GRID_SHARD:
        row_group = min(devices_per_node, count)
        widths = column_widths(dim, count // row_group)
        return tuple(width for width in widths for _ in range(row_group))
    return (dim,) * count


def _row_shards(
    ranks: tuple[int, ...], offset: int, rows: int, column_offset: int, columns: int
) -> tuple[TableShard, ...]:
    shards = []
    for rank, height in zip(ranks, row_blocks(rows, len(ranks)), strict=True):
        shards.append(TableShard(rank, offset, height, column_offset, columns))
        offset += height
    return tuple(shards)


@dataclass(frozen=True, slots=True)
class ShardStorage:
    """Bytes of a shard, by place.

    Attributes:
        device_weights_bytes: Weights in device memory, those of a cache included.
        device_state_bytes: Optimizer state in device memory.
        host_bytes: Weights and optimizer state in host memory.
        cache_state_bytes: Bookkeeping of a cache, in device memory.
    """

    device_weights_bytes: float
    device_state_bytes: float
    host_bytes: float
    cache_state_bytes: float = 0.0

    @property
    def device_bytes(self) -> float:
        """Weights, state and bookkeeping in device memory."""
        return self.device_weights_bytes + self.device_state_bytes + self.cache_state_bytes


def stored_bytes(table: EmbeddingTable, optimizer: Optimizer, rows: int, columns: int) -> float:
    """Returns the bytes of weights and optimizer state of a shard of a table."""
    state_values = optimizer.state_values_per_row(columns)
    return rows * (table.data_type.row_bytes(columns) + _STATE_BYTES * state_values)


def shard_storage(
    table: EmbeddingTable,
    optimizer: Optimizer,
    rows: int,
    columns: int,
    cached_share: float | None = None,
) -> ShardStorage:
    """Returns where the weights and the optimizer state of a shard are kept.

    As in FBGEMM, rows in host memory have their state there too, but for state of one value per
    row, which stays on the device. A cache holds copies of rows without their state; its
    bookkeeping takes `rows · (4 + 16 · share)` bytes.

    Args:
        table: The table.
        optimizer: Its update rule.
        rows: Rows of the shard.
        columns: Columns of the shard.
        cached_share: Share of rows in host memory that the device caches; None for a shard that
            is on the device.
    """
    weights_bytes = float(rows * table.data_type.row_bytes(columns))
    state_by_row_bytes = rows * _STATE_BYTES * optimizer.state_values_by_row
    state_by_column_bytes = rows * columns * _STATE_BYTES * optimizer.state_values_by_column
    if cached_share is None:
        return ShardStorage(weights_bytes, state_by_row_bytes + state_by_column_bytes, 0.0)
    cached_rows = min(rows, math.ceil(cached_share * rows))
    cached = cached_rows / rows if rows else 0.0
    book_bytes = _PLACE_BYTES * rows + _SLOT_BYTES * cached_rows if cached_rows else 0.0
    host_bytes = weights_bytes + state_by_column_bytes
    return ShardStorage(cached * weights_bytes, state_by_row_bytes, host_bytes, book_bytes)
