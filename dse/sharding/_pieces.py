"""Cutting tables: which rows and columns of a table sit on which rank."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from dse.sharding._plan import ShardingType

if TYPE_CHECKING:
    from dse.model import EmbeddingTable
    from dse.sharding._plan import TablePlan

#: Column pieces start at multiples of this many values, so that rows stay 16-byte aligned.
_COLUMN_ALIGNMENT = 4

#: Narrowest column piece that is worth a lookup of its own.
MIN_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of one table on one rank.

    Attributes:
        rank: Where it sits.
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


def column_widths(dim: int, pieces: int) -> tuple[int, ...]:
    """Splits `dim` columns into `pieces` widths, as even as aligned starts allow.

    Args:
        dim: Columns of the table.
        pieces: Number of parts, at most `dim`.

    Returns:
        Positive widths that add up to `dim`; all but the last few are multiples of four when the
        table is wide enough for that.
    """
    unit = _COLUMN_ALIGNMENT if dim >= pieces * _COLUMN_ALIGNMENT else 1
    units, rest = divmod(dim, unit)
    base, extra = divmod(units, pieces)
    widths = [unit * (base + (index < extra)) for index in range(pieces)]
    widths[-1] += rest
    return tuple(widths)


def row_blocks(rows: int, pieces: int) -> tuple[int, ...]:
    """Splits `rows` into `pieces` blocks of equal size as TorchRec does; the last may be short.

    Returns:
        Block heights that add up to `rows`; trailing blocks may be empty.
    """
    block = math.ceil(rows / pieces)
    return tuple(max(0, min(block, rows - index * block)) for index in range(pieces))


def pieces_of(plan: TablePlan, table: EmbeddingTable, devices_per_node: int) -> tuple[Piece, ...]:
    """Returns the rectangles of `table` under `plan`.

    Args:
        plan: The table's placement; must be valid for the table and the cluster.
        table: The table.
        devices_per_node: Ranks of a full node; row groups of a grid are that long.
    """
    kind = plan.sharding_type
    if kind in (ShardingType.TABLE_WISE, ShardingType.DATA_PARALLEL):
        return tuple(Piece(rank, 0, table.rows, 0, table.dim) for rank in plan.ranks)
    if kind in (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE):
        return _row_pieces(plan.ranks, table.rows, 0, table.dim)
    if kind in (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE):
        pieces = []
        offset = 0
        for rank, width in zip(plan.ranks, column_widths(table.dim, len(plan.ranks)), strict=True):
            pieces.append(Piece(rank, 0, table.rows, offset, width))
            offset += width
        return tuple(pieces)
    row_group = min(devices_per_node, len(plan.ranks))
    column_groups = len(plan.ranks) // row_group
    grid: list[Piece] = []
    offset = 0
    for group, width in enumerate(column_widths(table.dim, column_groups)):
        ranks = plan.ranks[group * row_group : (group + 1) * row_group]
        grid.extend(_row_pieces(ranks, table.rows, offset, width))
        offset += width
    return tuple(grid)


def _row_pieces(
    ranks: tuple[int, ...], rows: int, column_offset: int, columns: int
) -> tuple[Piece, ...]:
    pieces = []
    offset = 0
    for rank, height in zip(ranks, row_blocks(rows, len(ranks)), strict=True):
        pieces.append(Piece(rank, offset, height, column_offset, columns))
        offset += height
    return tuple(pieces)
