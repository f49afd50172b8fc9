"""What TorchRec takes for granted of a table's shards and does not check itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.sharding._plan import ShardingType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.sharding._pieces import Piece
    from dse.sharding._plan import TablePlan

_ROWS_ARE_CUT = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)


def order_problem(plan: TablePlan, row_group: int) -> str:
    """Says what is wrong with the order of a table's ranks, or nothing.

    TorchRec gives the next block of rows to the next rank, whatever the placements of the shards
    say, so ranks in another order would be stored but not obeyed.

    Args:
        plan: A table's placement.
        row_group: Ranks that share one column piece of a grid.
    """
    if plan.sharding_type not in _ROWS_ARE_CUT:
        return ""
    step = row_group if plan.sharding_type is ShardingType.GRID_SHARD else len(plan.ranks)
    for start in range(0, len(plan.ranks), step):
        group = plan.ranks[start : start + step]
        if list(group) != sorted(group):
            return (
                f"ranks {list(group)} are not in rising order, but TorchRec gives the blocks of "
                "rows to the ranks in rising order; sort them"
            )
    return ""


def width_problem(pieces: Sequence[Piece]) -> str:
    """Says where one rank holds pieces of a table with different widths, or nothing.

    TorchRec views all pieces that a rank has of a table as one array of the first one's width.
    """
    widths: dict[int, int] = {}
    for piece in pieces:
        width = widths.setdefault(piece.rank, piece.columns)
        if width != piece.columns:
            return (
                f"rank {piece.rank} has pieces of {width} and of {piece.columns} columns, but "
                "TorchRec needs one width for all that a rank has of a table; put them on "
                "different ranks or use a number of pieces that divides the columns evenly"
            )
    return ""


def empty_problem(pieces: Sequence[Piece]) -> str:
    """Says which rank gets no rows of a table, or nothing; for plans on CPUs.

    The lookup kernels for CPUs fail on a block without rows.
    """
    for piece in pieces:
        if piece.rows == 0:
            rows = max(one.row_offset + one.rows for one in pieces)
            return (
                f"rank {piece.rank} gets none of the {rows} rows, and the CPU kernels of TorchRec "
                "fail on an empty block; place so small a table whole or replicated"
            )
    return ""
