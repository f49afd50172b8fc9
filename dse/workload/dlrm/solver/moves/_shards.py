"""Movable shards of a plan, as arrays: those on a single rank each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ShardingType
from dse.workload.dlrm.solver._options import PlacementScope
from dse.workload.dlrm.solver.moves._plans import Assignment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._options import ShardingOptions


@dataclass(frozen=True, slots=True)
class MovableShards:
    """Movable shards, and the loads that do not move.

    A load of a rank is the largest of its terms, each a sum over shards: device memory and cache
    work at the same time.

    Attributes:
        table: Table of each shard; shape `(shards,)`.
        offset: Number of the shard within its table; shape `(shards,)`.
        rank: Rank that holds it; shape `(shards,)`.
        node: Node that it may not leave, or -1; shape `(shards,)`.
        loads: Additive terms and, last, bytes; shape `(terms + 1, shards)`.
        fixed: The same of everything that cannot move; shape `(terms + 1, ranks)`.
        load_of: The load that each term belongs to, ascending; shape `(terms,)`.
        allowed: Ranks that each shard may go to; shape `(shards, ranks)`. None for all.
    """

    table: NDArray[np.int64]
    offset: NDArray[np.int64]
    rank: NDArray[np.int64]
    node: NDArray[np.int64]
    loads: NDArray[np.float64]
    fixed: NDArray[np.float64]
    load_of: NDArray[np.int64]
    allowed: NDArray[np.bool_] | None = None

    def total(self) -> NDArray[np.float64]:
        """Returns the terms and bytes of every rank; shape `(terms + 1, ranks)`."""
        total = self.fixed.copy()
        np.add.at(total.T, self.rank, self.loads.T)
        return total

    def load_s(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the cost of the ranks' loads.

        Args:
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.

        Returns:
            Shape `(ranks,)`.
        """
        largest = np.zeros((len(weights), self.fixed.shape[1]))
        np.maximum.at(largest, self.load_of, self.total()[:-1])
        return np.asarray(weights @ largest)

    def moved(self, base: Assignment, rank: NDArray[np.int64]) -> Assignment:
        """Returns the plan with the shards on other ranks."""
        places = list(base.places)
        for index in np.flatnonzero(rank != self.rank).tolist():
            table, offset = int(self.table[index]), int(self.offset[index])
            where = places[table]
            places[table] = (*where[:offset], int(rank[index]), *where[offset + 1 :])
        return Assignment(base.cuts, tuple(places))


def movable_shards(assignment: Assignment, options: ShardingOptions) -> MovableShards:
    """Returns the movable shards of a plan."""
    request, scorer = options.request, options.scorer
    named: list[tuple[int, int, int, int]] = []
    rows: list[int] = []
    allowed: list[NDArray[np.bool_]] = []
    held = np.zeros((options.shard_features.shape[1], request.world_size))
    for table, (number, places) in enumerate(zip(assignment.cuts, assignment.places, strict=True)):
        cut = options.cuts[number]
        if cut.hot >= 0:
            held += options.shard_features[cut.hot][:, None]
        if cut.scope is PlacementScope.ALL:
            held += options.shard_features[cut.rows[0]].T
        elif cut.scope is PlacementScope.NODE:
            reached = options.placed_shards(number, places)
            np.add.at(held.T, reached.ranks, options.shard_features[reached.rows])
        else:
            stays = cut.key.kind is ShardingType.TABLE_COLUMN_WISE
            for offset, rank in enumerate(places):
                node = rank // request.devices_per_node if stays else -1
                named.append((table, offset, rank, node))
            rows += cut.first_rows
            allowed += [cut.allowed] * len(places)
    table_of, offset_of, rank_of, node_of = np.array(named, dtype=np.int64).reshape(-1, 4).T
    load_of = np.array(scorer.term_loads, dtype=np.int64)
    fixed = np.zeros((len(load_of) + 1, request.world_size))
    if held.any():
        # Kernels of other exchange groups add to those of the movable shards, whether these wait
        # for memory or for cache.
        fixed[:-1] = scorer.rank_loads(held)[load_of]
        fixed[-1] = scorer.memory_bytes(held)
    fixed[-1] += scorer.memory_bytes_without_tables
    everywhere = all(mask.all() for mask in {id(mask): mask for mask in allowed}.values())
    return MovableShards(
        table_of,
        offset_of,
        rank_of,
        node_of,
        np.ascontiguousarray(options.shard_terms[rows].T),
        fixed,
        load_of,
        None if everywhere else np.array(allowed),
    )
