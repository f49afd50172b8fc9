"""The additive quantities of a rank that a plan decides, and the columns they stand in."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from dse.sharding import ShardingType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Bytes of one bag length on the wire and in memory.
LENGTH_BYTES = 4


class ExchangeGroup(IntEnum):
    """Tables that share a lookup kernel and an exchange pattern.

    POOLED: whole rows on one rank, pooled vectors by all-to-all (table-, column-wise); also
        vectors of single lookups, wherever their rows are, and partial sums of rows over some
        ranks (row-wise on fewer ranks than all).
    ROW: rows over all ranks, partial sums by reduce-scatter (row-wise).
    NODE: rows over a node or several, reduce-scatter inside and all-to-all between
        (table-row-wise, grid).
    REPLICATED: a copy on every rank, gradients by all-reduce (data-parallel, and hot rows of other
        tables, which are in two groups).
    """

    POOLED = 0
    ROW = 1
    NODE = 2
    REPLICATED = 3


_GROUP_OF_TYPE = {
    ShardingType.TABLE_WISE: ExchangeGroup.POOLED,
    ShardingType.COLUMN_WISE: ExchangeGroup.POOLED,
    ShardingType.TABLE_COLUMN_WISE: ExchangeGroup.POOLED,
    ShardingType.ROW_WISE: ExchangeGroup.ROW,
    ShardingType.TABLE_ROW_WISE: ExchangeGroup.NODE,
    ShardingType.GRID_SHARD: ExchangeGroup.NODE,
    ShardingType.DATA_PARALLEL: ExchangeGroup.REPLICATED,
}


def exchange_group(
    sharding_type: ShardingType, *, pooled: bool = True, on_all: bool = True
) -> ExchangeGroup:
    """Returns the exchange group of tables that are sharded in this way.

    Vectors of single lookups are not summed, so whichever rank has a row sends it by all-to-all;
    and so do some ranks that have the rows of a table, with their partial sums.

    Args:
        sharding_type: How a table is cut.
        pooled: Whether its vectors are sums over bags.
        on_all: Whether all ranks have a shard of it.
    """
    group = _GROUP_OF_TYPE[sharding_type]
    summed = pooled and (on_all or group is not ExchangeGroup.ROW)
    return group if summed or group is ExchangeGroup.REPLICATED else ExchangeGroup.POOLED


class GroupFeature(IntEnum):
    """Additive quantities of a rank within one exchange group.

    FORWARD_MEMORY … BACKWARD_CACHE: see `dse.machine.kernels.EmbeddingWork`.
    EXCHANGED: pooled values a sample, or parameters of replicated tables and hot rows.
    """

    FORWARD_MEMORY = 0
    FORWARD_CACHE = 1
    BACKWARD_MEMORY = 2
    BACKWARD_CACHE = 3
    EXCHANGED = 4


class RankFeature(IntEnum):
    """Additive quantities of a rank over all groups, stored behind the groups' blocks.

    WEIGHTS, STATE: stored bytes; bookkeeping of caches is state.
    INPUT: bytes of indices and lengths of the global batch.
    POOLED_OUTPUT: pooled values the rank holds before they are exchanged, over the global batch.
    """

    WEIGHTS = 0
    STATE = 1
    INPUT = 2
    POOLED_OUTPUT = 3


GROUP_BLOCK = len(GroupFeature)
RANK_BLOCK_START = GROUP_BLOCK * len(ExchangeGroup)
FEATURE_COUNT = RANK_BLOCK_START + len(RankFeature)

#: Column behind all others, present only where there are replicas of the tables or tables in host
#: memory: stored bytes that the replicas of a shard average.
SYNCED_COLUMN = FEATURE_COUNT
SYNCED_FEATURE_COUNT = SYNCED_COLUMN + 1

#: Columns behind that, present only once a table lives in host memory: for each group but the
#: replicated one the bytes over the host link of lookups and of updates, then stored bytes, then
#: bytes over the host link that a pipeline fetches ahead of lookups, and for each group again the
#: bytes at device-memory speed that lookups and updates move while they wait for other ranks.
HOST_BLOCK_START = SYNCED_FEATURE_COUNT
HOST_STORED_COLUMN = HOST_BLOCK_START + 2 * (len(ExchangeGroup) - 1)
HOST_PREFETCHED_COLUMN = HOST_STORED_COLUMN + 1
WAITING_BLOCK_START = HOST_PREFETCHED_COLUMN + 1
WIDE_FEATURE_COUNT = WAITING_BLOCK_START + 2 * (len(ExchangeGroup) - 1)


def group_column(group: ExchangeGroup, feature: GroupFeature) -> int:
    """Returns the feature column of a group's quantity."""
    return int(group) * GROUP_BLOCK + int(feature)


def rank_column(feature: RankFeature) -> int:
    """Returns the feature column of a rank's quantity."""
    return RANK_BLOCK_START + int(feature)


def link_column(group: ExchangeGroup, direction: int) -> int:
    """Returns the column of a group's bytes over the host link; 0 lookup, 1 update."""
    return HOST_BLOCK_START + 2 * int(group) + direction


def waiting_column(group: ExchangeGroup, direction: int) -> int:
    """Returns the column of bytes that a group moves while it waits; 0 lookup, 1 update."""
    return WAITING_BLOCK_START + 2 * int(group) + direction


def has_host_columns(features: NDArray[np.float64]) -> bool:
    """Returns whether features hold the columns of tables in host memory."""
    return bool(features.shape[0] > SYNCED_FEATURE_COUNT)
