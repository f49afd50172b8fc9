"""Folding a plan onto fewer ranks of one machine."""

from __future__ import annotations

from dataclasses import replace

from dse.errors import ConfigError
from dse.sharding import ShardingPlan, ShardingType, TablePlan

#: What a type of pieces within a node is where a node is a single rank.
_ON_ONE_RANK = {
    ShardingType.TABLE_ROW_WISE: ShardingType.TABLE_WISE,
    ShardingType.GRID_SHARD: ShardingType.COLUMN_WISE,
}


def fold_plan(plan: ShardingPlan, ranks: int, devices_per_node: int) -> ShardingPlan:
    """Returns the plan with neighbouring ranks merged, for ranks that are one node.

    Of `world_size` ranks each `world_size / ranks` neighbours become one that holds what they
    held. What was on all ranks is on all of the fewer; what was cut over the ranks of a node is
    cut over those that the node becomes, and not at all where it becomes one.

    Args:
        plan: For nodes of `devices_per_node` ranks.
        ranks: A divisor of the plan's ranks.
        devices_per_node: Ranks of a full node.

    Raises:
        ConfigError: `ranks` is no divisor, or a table is cut over one of several nodes that
            become more than one rank each: the machine is one node.
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
    # All ranks of a node for each column piece in turn.
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
