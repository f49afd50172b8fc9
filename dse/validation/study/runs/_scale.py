"""Scaling a study down to this machine: smaller models, plans folded onto fewer ranks."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.sharding import ShardingPlan, ShardingType, TablePlan, format_size, stored_bytes

if TYPE_CHECKING:
    from dse.model import DlrmModel

#: Tables are not scaled below this number of rows.
_FEWEST_ROWS = 64

#: Bytes of a value in a lookup.
_VALUE_BYTES = 4

_HALVINGS = 60


#: Sharding types within a node, and their equivalents if a node is a single rank.
_ON_ONE_RANK = {
    ShardingType.TABLE_ROW_WISE: ShardingType.TABLE_WISE,
    ShardingType.GRID_SHARD: ShardingType.COLUMN_WISE,
}


def scale_model(
    model: DlrmModel, *, memory_bytes: float, lookup_bytes: float, world_size: int
) -> DlrmModel:
    """Returns a model of the same structure with fewer rows and a smaller batch.

    The rows of all tables are multiplied by the largest common factor up to 1 for which weights
    and optimizer state fit into `memory_bytes`, with at least 64 rows per table. The global batch
    is the largest multiple of `world_size` whose lookups fit into `lookup_bytes`. Everything else
    stays the same, so the order of tables by size and by lookups, which is what plans depend on,
    is preserved.

    Args:
        model: The model.
        memory_bytes: Memory for weights and state of all tables on all ranks.
        lookup_bytes: Size of the rows, in 4-byte values, that one iteration looks up on all ranks.
        world_size: Number of ranks, which divides the batch.

    Raises:
        ConfigError: Even the smallest tables or the smallest batch are too large.
    """
    scaled = _fewer_rows(model, memory_bytes)
    return replace(scaled, global_batch_size=_smaller_batch(model, lookup_bytes, world_size))


def scaling_text(model: DlrmModel, scaled: DlrmModel) -> str:
    """Describes what :func:`scale_model` did."""
    before, after = (sum(table.rows for table in version.tables) for version in (model, scaled))
    return (
        f"rows {before:,} → {after:,} over {len(model.tables)} tables (one factor for all, at "
        f"least {_FEWEST_ROWS} rows a table), global batch {model.global_batch_size:,} → "
        f"{scaled.global_batch_size:,}; widths, pooling factors, index distributions and the "
        "dense part unchanged"
    )


def _with_rows(model: DlrmModel, factor: float) -> DlrmModel:
    tables = tuple(
        replace(table, rows=max(min(table.rows, _FEWEST_ROWS), math.floor(factor * table.rows)))
        for table in model.tables
    )
    return replace(model, tables=tables)


def _fewer_rows(model: DlrmModel, memory_bytes: float) -> DlrmModel:
    def needed_bytes(factor: float) -> float:
        return sum(
            stored_bytes(table, model.sparse_optimizer, table.rows, table.dim)
            for table in _with_rows(model, factor).tables
        )

    if needed_bytes(1.0) <= memory_bytes:
        return model
    if needed_bytes(0.0) > memory_bytes:
        raise ConfigError(
            f"{len(model.tables)} tables of {_FEWEST_ROWS} rows take "
            f"{format_size(needed_bytes(0.0))}, more than the {format_size(memory_bytes)} given; "
            "choose fewer tables or give more memory",
            limit=memory_bytes,
        )
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if needed_bytes(middle) <= memory_bytes else (low, middle)
    return _with_rows(model, low)


def _smaller_batch(model: DlrmModel, lookup_bytes: float, world_size: int) -> int:
    sample_bytes = sum(
        table.lookups_per_sample * table.dim * _VALUE_BYTES for table in model.tables
    )
    most = model.global_batch_size
    if sample_bytes > 0:
        most = min(most, int(lookup_bytes / sample_bytes))
    batch = most // world_size * world_size
    if not batch:
        raise ConfigError(
            f"{world_size} samples look up {format_size(world_size * sample_bytes)}, more than "
            f"the {format_size(lookup_bytes)} given; choose fewer tables or give more"
        )
    return batch


def fold_plan(plan: ShardingPlan, ranks: int, devices_per_node: int) -> ShardingPlan:
    """Merges neighbouring ranks of a plan, for ranks that form one node.

    Each `world_size / ranks` neighbours become one rank with all of their shards. Tables on all
    ranks stay on all ranks. Tables sharded over the ranks of a node are sharded over the ranks
    that the node becomes, or not at all if it becomes one rank.

    Args:
        plan: Plan for nodes of `devices_per_node` ranks.
        ranks: A divisor of the plan's ranks.
        devices_per_node: Ranks of a full node.

    Raises:
        ConfigError: `ranks` is not a divisor, or a table is sharded over one of several nodes that
            become more than one rank each.
    """
    world_size = plan.world_size
    if ranks < 1 or world_size % ranks:
        raise ConfigError(f"{world_size} ranks cannot be folded onto {ranks}; choose a divisor")
    nodes = max(1, world_size // devices_per_node)
    return ShardingPlan(
        ranks, tuple(_folded(table, world_size, ranks, nodes) for table in plan.tables)
    )


def _folded(table: TablePlan, world_size: int, ranks: int, nodes: int) -> TablePlan:
    merged = world_size // ranks
    kind = table.sharding_type
    if kind in (ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL):
        return replace(table, ranks=tuple(range(ranks)))
    if kind not in _ON_ONE_RANK:
        return replace(table, ranks=tuple(rank // merged for rank in table.ranks))
    # All ranks of a node, for one column shard after another.
    per_node = world_size // nodes
    first = table.ranks[::per_node]
    if nodes == 1:
        return replace(table, ranks=tuple(range(ranks)) * len(first))
    if ranks > nodes:
        raise ConfigError(
            f"table `{table.table}` is {kind.value} over one of {nodes} nodes, and this machine "
            f"is one node; run it on {nodes} ranks"
        )
    return replace(
        table, sharding_type=_ON_ONE_RANK[kind], ranks=tuple(rank // merged for rank in first)
    )
