"""Import of a TorchRec plan; checks names, ranks and the geometry of every shard.

A plan is accepted only if its shards are those that dse would cut: a prediction for other shards
would be a prediction for another plan.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dse.errors import PlanError
from dse.indices import Uniform
from dse.model import DataType, EmbeddingTable, PoolingDistribution
from dse.sharding._check import name_problems
from dse.sharding._kernels import kernel_problem
from dse.sharding._plan import ComputeKernel, ShardingPlan, ShardingType, TablePlan
from dse.sharding._shards import TableShard, table_shards
from dse.sharding.torchrec._conventions import model_names, order_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.sharding.torchrec._document import TorchRecParameter, TorchRecPlan, TorchRecShard

_PLACEMENT = re.compile(r"rank:(\d{1,7})/([a-z]+)(?::\d+)?")
_REPLICATED_OR_ROW_WISE = (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE)
_COLUMNS_ARE_CUT = (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE)
_MAX_PROBLEMS_SHOWN = 8


def import_plan(
    foreign: TorchRecPlan,
    tables: Sequence[EmbeddingTable] | None,
    world_size: int | None = None,
) -> ShardingPlan:
    """Converts a TorchRec plan.

    Args:
        foreign: The plan.
        tables: The model's tables; ``None`` skips what needs them (names, rows, columns).
        world_size: Number of ranks, for plans without it.

    Raises:
        PlanError: It is for another model, its kernels or shards cannot be predicted, or the
            number of ranks is unknown. The message names every problem.
    """
    ranks = _world_size(foreign, world_size)
    known = None if tables is None else {table.name: table for table in tables}
    names, problems = model_names(foreign.parameters, known)
    placements = []
    for name, parameter in zip(names, foreign.parameters, strict=True):
        placement, found = _placement(name, parameter, ranks, (known or {}).get(name))
        placements.append(placement)
        problems += found
    plan = ShardingPlan(ranks, tuple(placements))
    if tables is not None:
        problems = name_problems(plan, tables) + problems
    problems += _device_problems(foreign)
    problems += [
        f"table `{placement.table}`: rank {max(placement.ranks)} is outside 0–{ranks - 1}"
        for placement in placements
        if placement.ranks and max(placement.ranks) >= ranks
    ]
    if problems:
        shown, more = problems[:_MAX_PROBLEMS_SHOWN], len(problems) - _MAX_PROBLEMS_SHOWN
        raise PlanError("; ".join(shown) + (f"; and {more} more" if more > 0 else ""))
    return plan


def _world_size(foreign: TorchRecPlan, given: int | None) -> int:
    written = foreign.world_size
    if written is not None and given is not None and written != given:
        raise PlanError(f"the plan says world_size {written}, but {given} ranks were requested")
    known = written if written is not None else given
    if known is not None:
        return known
    complete = [
        max(parameter.ranks) + 1
        for parameter in foreign.parameters
        if parameter.sharding_type in _REPLICATED_OR_ROW_WISE and parameter.ranks
    ]
    if not complete:
        raise PlanError(
            "the plan does not determine the number of ranks, because no table is on all of "
            'them; write "world_size": N next to "plan"'
        )
    return max(complete)


def _placement(
    name: str, parameter: TorchRecParameter, world_size: int, table: EmbeddingTable | None
) -> tuple[TablePlan, list[str]]:
    kind, where = parameter.sharding_type, f"table `{name}` ({parameter.sharding_type.value})"
    # Whole tables are written so beside tables that are cut.
    if kind in _COLUMNS_ARE_CUT and len(parameter.shards or parameter.ranks or ()) == 1:
        kind = ShardingType.TABLE_WISE
    problems = []
    kernel = ComputeKernel.FUSED
    try:
        kernel = ComputeKernel(parameter.compute_kernel)
    except ValueError:
        problems.append(f"{where}: {kernel_problem(parameter.compute_kernel)}")
    caching = kernel is ComputeKernel.FUSED_UVM_CACHING
    cached = parameter.cache_load_factor if caching else None
    if kind is ShardingType.DATA_PARALLEL:
        return TablePlan(name, kind, tuple(range(world_size)), kernel), problems
    placed, rank_problem = _placed_ranks(parameter)
    if rank_problem:
        return TablePlan(name, kind, placed, kernel), [*problems, f"{where}: {rank_problem}"]
    if parameter.shards is None:
        ranks = parameter.ranks
        if ranks is None and kind is ShardingType.ROW_WISE:
            ranks = tuple(range(world_size))
        if not ranks:
            problems.append(f"{where}: neither ranks nor shards are given")
        return TablePlan(name, kind, ranks or (), kernel, cached), problems
    shards = sorted(
        (
            TableShard(rank, shard.row_offset, shard.rows, shard.column_offset, shard.columns)
            for rank, shard in zip(placed, parameter.shards, strict=True)
        ),
        key=lambda shard: (shard.column_offset, shard.row_offset),
    )
    plan = TablePlan(name, kind, tuple(shard.rank for shard in shards), kernel, cached)
    problem = _shape_problem(shards, table) or _geometry_problem(plan, shards, table)
    if problem:
        problems.append(f"{where}: {problem}")
    return plan, problems


def _placed_ranks(parameter: TorchRecParameter) -> tuple[tuple[int, ...], str]:
    """Returns the rank of each shard in the given order, and any problem with them."""
    if parameter.shards is None:
        return parameter.ranks or (), ""
    if not parameter.shards:
        return (), "the list of shards is empty"
    placed = []
    for index, shard in enumerate(parameter.shards):
        match = _PLACEMENT.fullmatch(shard.placement)
        if match is None:
            return (), (
                f"shard {index}: expected a placement such as `rank:3/cuda:1`, found "
                f"`{shard.placement}`"
            )
        placed.append(int(match[1]))
    ranks = tuple(placed)
    # TorchRec itself lists only the first rank of the node of a table-row-wise table.
    first_only = (
        parameter.sharding_type is ShardingType.TABLE_ROW_WISE and parameter.ranks == ranks[:1]
    )
    if parameter.ranks in (None, ranks) or first_only:
        return ranks, ""
    return ranks, f"`ranks` says {list(parameter.ranks or ())}, the placements say {placed}"


def _shape_problem(shards: list[TableShard], table: EmbeddingTable | None) -> str:
    rows, columns = _shape(shards)
    if table is None or (rows, columns) == (table.rows, table.dim):
        return ""
    return (
        f"the plan's shards cover {rows} rows × {columns} columns, the model's table has "
        f"{table.rows} × {table.dim}"
    )


def _geometry_problem(
    plan: TablePlan, shards: list[TableShard], table: EmbeddingTable | None
) -> str:
    """Returns where the shards are not those that dse would cut, or an empty text."""
    columns_of_grid = {shard.column_offset for shard in shards}
    row_group, rest = divmod(len(shards), len(columns_of_grid))
    if plan.sharding_type is ShardingType.GRID_SHARD and rest:
        return f"{len(shards)} shards do not make {len(columns_of_grid)} equal groups of rows"
    # A plan without its model still determines the size of its tables.
    cut = table_shards(plan, table or _table_of(plan.table, shards), row_group)
    for index, (theirs, ours) in enumerate(zip(shards, cut, strict=True)):
        if theirs != ours:
            return (
                f"shard {index} on rank {theirs.rank} is {_rectangle(theirs)} in the plan, but "
                f"only {_rectangle(ours)} can be predicted (columns in even multiples of four, "
                "rows in equal blocks)"
            )
    return order_problem(plan, row_group)


def _shape(shards: list[TableShard]) -> tuple[int, int]:
    return (
        max(shard.row_offset + shard.rows for shard in shards),
        max(shard.column_offset + shard.columns for shard in shards),
    )


def _table_of(name: str, shards: list[TableShard]) -> EmbeddingTable:
    rows, columns = _shape(shards)
    return EmbeddingTable(
        name=name,
        rows=rows,
        dim=columns,
        pooling_factors=(1.0,),
        pooling_distribution=PoolingDistribution.FIXED,
        indices=Uniform(),
        data_type=DataType.FP32,
    )


def _rectangle(shard: TableShard) -> str:
    return (
        f"rows {shard.row_offset}:{shard.row_offset + shard.rows}, "
        f"columns {shard.column_offset}:{shard.column_offset + shard.columns}"
    )


def _device_problems(foreign: TorchRecPlan) -> list[str]:
    kinds = sorted(
        {
            kind
            for parameter in foreign.parameters
            for shard in parameter.shards or ()
            if (kind := _device_kind(shard))
        }
    )
    if len(kinds) < 2:
        return []
    return [f"shards on {' and on '.join(kinds)} in one plan; one kind of device can be predicted"]


def _device_kind(shard: TorchRecShard) -> str:
    match = _PLACEMENT.fullmatch(shard.placement)
    return match[2] if match else ""
