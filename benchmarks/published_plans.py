"""Sharding plans that published training programs make for themselves.

Their rules are those of the programs; where the result does not fit the devices' memory, nobody
could have run it, and the caller looks for another plan.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse.sharding import ShardingPlan, ShardingType, TablePlan

if TYPE_CHECKING:
    from dse.model import DlrmModel

#: DeepLearningExamples leaves the first GPU to the bottom MLP where there are more than these.
_SHARED_FIRST_GPU = 4

#: distributed-embeddings cuts tables by columns above this many values (its example's setting).
_COLUMN_SLICE_VALUES = 1280 * 2**20


def first_gpu_free_plan(model: DlrmModel, world_size: int) -> ShardingPlan:
    """Returns DeepLearningExamples' plan: whole tables, as even in number as in size.

    Tables go by falling size to the emptiest rank that does not hold its share of tables yet.
    """
    first = 1 if world_size > _SHARED_FIRST_GPU else 0
    ranks = world_size - first
    most = math.ceil(len(model.tables) / ranks)
    rows, counts = [0] * ranks, [0] * ranks
    chosen: dict[str, int] = {}
    for table in sorted(model.tables, key=lambda table: -table.rows):
        open_ranks = [rank for rank in range(ranks) if counts[rank] < most]
        rank = min(open_ranks, key=rows.__getitem__)
        rows[rank] += table.rows
        counts[rank] += 1
        chosen[table.name] = rank + first
    return _whole_tables(model, world_size, chosen)


def one_rank_plan(model: DlrmModel) -> ShardingPlan:
    """Returns the plan of a program on one device."""
    return _whole_tables(model, 1, dict.fromkeys((table.name for table in model.tables), 0))


def memory_balanced_plan(model: DlrmModel, world_size: int) -> ShardingPlan:
    """Returns distributed-embeddings' memory-balanced plan.

    Tables above a size are cut by columns into a power of two of slices; slices are dealt out by
    falling size, back and forth over the ranks.
    """
    slices: list[tuple[int, str]] = []
    for table in model.tables:
        values, parts = table.rows * table.dim, 1
        while values / parts > _COLUMN_SLICE_VALUES:
            parts *= 2
        parts = min(parts, world_size, table.dim)
        slices += [(values // parts, table.name)] * parts
    slices.sort(key=lambda piece: -piece[0])
    ranks: dict[str, list[int]] = {}
    for index, (_, name) in enumerate(slices):
        place = index % (2 * world_size)
        rank = place if place < world_size else 2 * world_size - 1 - place
        held = ranks.setdefault(name, [])
        # Slices of a table that meet on a rank become one.
        if rank not in held:
            held.append(rank)
    return ShardingPlan(
        world_size,
        tuple(
            TablePlan(
                table.name,
                ShardingType.COLUMN_WISE
                if len(ranks[table.name]) > 1
                else ShardingType.TABLE_WISE,
                tuple(ranks[table.name]),
            )
            for table in model.tables
        ),
    )


def _whole_tables(model: DlrmModel, world_size: int, ranks: dict[str, int]) -> ShardingPlan:
    return ShardingPlan(
        world_size,
        tuple(
            TablePlan(table.name, ShardingType.TABLE_WISE, (ranks[table.name],))
            for table in model.tables
        ),
    )
