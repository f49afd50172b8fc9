"""Layout of a plan: the shards of each rank and the order of values in messages.

Every rank computes the same layout, without torch, and so knows the sizes of all messages except
those of indices, which depend on the batch.

Shards of a rank are ordered by exchange group, then by table, then as in :func:`table_shards`;
indices arrive, outputs leave and gradients return in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dse.sharding import table_shards
from dse.workload.dlrm import ExchangeGroup, exchange_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.model import EmbeddingTable
    from dse.sharding import TableShard
    from dse.validation.dlrm import Candidate


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard of a table on a rank.

    Attributes:
        table: Index of the table in the model.
        group: Collective that transfers its outputs.
        piece: Rows and columns.
        block: Index of its row block and the rows of a full block; None for all rows.
        features: Number of features that look it up.
    """

    table: int
    group: ExchangeGroup
    piece: TableShard
    block: tuple[int, int] | None
    features: int

    @property
    def width(self) -> int:
        """Values per sample."""
        return self.features * self.piece.columns


#: Place of a part of the pooled vectors: table, feature, first column.
Place = tuple[int, int, int]


class PlanLayout:
    """Layout of a checked plan.

    Args:
        candidate: Model, plan, ranks and nodes.
    """

    def __init__(self, candidate: Candidate) -> None:
        self.tables: tuple[EmbeddingTable, ...] = candidate.model.tables
        self.world_size = candidate.world_size
        self.local_size = candidate.node_size
        self.node_count = self.world_size // self.local_size
        self.local_batch_size = candidate.local_batch_size
        self.shards = self._shards(candidate)

    def _shards(self, candidate: Candidate) -> tuple[tuple[Shard, ...], ...]:
        by_rank: list[list[Shard]] = [[] for _ in range(self.world_size)]
        for index, placement in enumerate(candidate.plan.tables):
            table = self.tables[index]
            group = exchange_group(placement.sharding_type)
            parts = {ExchangeGroup.ROW: self.world_size, ExchangeGroup.NODE: self.local_size}
            for number, piece in enumerate(table_shards(placement, table, candidate.node_size)):
                block = None
                if group in parts:
                    count = parts[group]
                    block = (number % count, -(-table.rows // count))
                by_rank[piece.rank].append(Shard(index, group, piece, block, table.feature_count))
        return tuple(tuple(sorted(own, key=lambda one: one.group)) for own in by_rank)

    def of(self, rank: int, group: ExchangeGroup) -> tuple[Shard, ...]:
        """Returns the shards of a rank in one exchange group."""
        return tuple(shard for shard in self.shards[rank] if shard.group is group)

    def fed(self, rank: int) -> tuple[Shard, ...]:
        """Returns the shards of a rank whose indices are sent by other ranks."""
        return tuple(
            shard for shard in self.shards[rank] if shard.group is not ExchangeGroup.REPLICATED
        )

    @cached_property
    def groups(self) -> tuple[ExchangeGroup, ...]:
        """Exchange groups in use."""
        used = {shard.group for own in self.shards for shard in own}
        return tuple(sorted(used))

    def width(self, rank: int, group: ExchangeGroup) -> int:
        """Returns the values per sample of a rank in one group."""
        return sum(shard.width for shard in self.of(rank, group))

    @cached_property
    def by_local_rank(self) -> tuple[int, ...]:
        """Ranks ordered by local rank, then by node.

        Bags of node-wise shards are kept in this order of their samples' ranks, so that a
        reduce-scatter within the node gives each rank what it sends to the other nodes.
        """
        nodes, local = range(self.node_count), range(self.local_size)
        return tuple(node * self.local_size + one for one in local for node in nodes)


def places_of(shards: Sequence[Shard]) -> list[tuple[Place, int]]:
    """Returns place and width of each part of the shards' pooled vectors."""
    return [
        ((shard.table, feature, shard.piece.column_offset), shard.piece.columns)
        for shard in shards
        for feature in range(shard.features)
    ]
