"""The neighbourhood of a sharding plan: plans that differ from it in one or two tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ComputeKernel, ShardingType, TablePlan, column_piece_counts, stored_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dse.prediction import PlanScorer
    from dse.sharding import PlanningRequest
    from dse.workloads import EmbeddingTable

#: A table is worth a copy on every rank only if it takes at most this share of a rank's memory.
_REPLICATED_MEMORY_SHARE = 0.02


class Neighbourhood:
    """Makes neighbours of a plan, most promising first.

    Args:
        scorer: The performance model; says how loaded each rank is.
        request: What may be placed where.
        max_neighbours: Most neighbours of one plan.
    """

    def __init__(self, scorer: PlanScorer, request: PlanningRequest, max_neighbours: int) -> None:
        self._scorer = scorer
        self._request = request
        self._max_neighbours = max_neighbours

    def around(self, options: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns neighbours as option vectors; shape `(neighbours, tables)`."""
        load_s = self._scorer.rank_load_s(options)
        placements = self._scorer.placements
        plan = placements.plan_of(options)
        # Tables of busy ranks first: moving them is what shortens the iteration.
        heat = [max(load_s[rank] for rank in table.ranks) for table in plan.tables]
        order = sorted(range(len(plan.tables)), key=lambda index: (-heat[index], index))
        changes: list[tuple[tuple[int, int], ...]] = []
        for index in order:
            for candidate in self._placements_of(self._request.tables[index], load_s):
                option = placements.option(index, candidate)
                if option != options[index]:
                    changes.append(((index, option),))
            if len(changes) >= self._max_neighbours:
                break
        changes = changes[: self._max_neighbours * 3 // 4]
        changes += self._swaps(plan.tables, load_s, self._max_neighbours - len(changes))
        neighbours = np.repeat(options[None, :], len(changes), axis=0)
        for row, change in enumerate(changes):
            for index, option in change:
                neighbours[row, index] = option
        return neighbours

    def _placements_of(
        self, table: EmbeddingTable, load_s: NDArray[np.float64]
    ) -> Iterator[TablePlan]:
        """Yields placements worth trying for one table, given the ranks' present loads."""
        request = self._request
        lightest = np.argsort(load_s, kind="stable")
        everyone = tuple(range(request.world_size))
        nodes = self._nodes_by_load(load_s)
        for kind in ShardingType:
            if kind not in request.allowed_types:
                continue
            if kind is ShardingType.TABLE_WISE:
                for rank in lightest:
                    yield TablePlan(table.name, kind, (int(rank),))
            elif kind is ShardingType.ROW_WISE:
                yield TablePlan(table.name, kind, everyone)
            elif kind is ShardingType.DATA_PARALLEL:
                if self._worth_replicating(table):
                    yield TablePlan(table.name, kind, everyone, ComputeKernel.DENSE)
            elif kind is ShardingType.TABLE_ROW_WISE:
                for node in nodes:
                    yield TablePlan(table.name, kind, self._ranks_of(node))
            else:
                yield from self._cut_by_columns(table, kind, load_s, nodes)

    def _cut_by_columns(
        self,
        table: EmbeddingTable,
        kind: ShardingType,
        load_s: NDArray[np.float64],
        nodes: list[int],
    ) -> Iterator[TablePlan]:
        lightest = np.argsort(load_s, kind="stable")
        for pieces in column_piece_counts(kind, table, self._request):
            if kind is ShardingType.COLUMN_WISE:
                yield TablePlan(table.name, kind, tuple(int(rank) for rank in lightest[:pieces]))
            elif kind is ShardingType.TABLE_COLUMN_WISE:
                for node in nodes:
                    local = set(self._ranks_of(node))
                    ranks = [int(rank) for rank in lightest if int(rank) in local]
                    yield TablePlan(table.name, kind, tuple(ranks[:pieces]))
            else:
                chosen = nodes[: min(pieces, len(nodes))]
                ranks = [rank for node in chosen for rank in self._ranks_of(node)]
                yield TablePlan(table.name, kind, tuple(ranks))

    def _swaps(
        self, tables: tuple[TablePlan, ...], load_s: NDArray[np.float64], limit: int
    ) -> list[tuple[tuple[int, int], ...]]:
        """Exchanges whole tables of the busiest rank with tables of others, lightest first."""
        placements = self._scorer.placements
        busiest = int(np.argmax(load_s))
        whole = [
            (index, table.ranks[0])
            for index, table in enumerate(tables)
            if table.sharding_type is ShardingType.TABLE_WISE
        ]
        here = [index for index, rank in whole if rank == busiest]
        there = sorted(
            ((index, rank) for index, rank in whole if rank != busiest),
            key=lambda place: (load_s[place[1]], place[0]),
        )
        swaps: list[tuple[tuple[int, int], ...]] = []
        for other, rank in there:
            for index in here:
                if len(swaps) >= limit:
                    return swaps
                moved = TablePlan(tables[index].table, ShardingType.TABLE_WISE, (rank,))
                back = TablePlan(tables[other].table, ShardingType.TABLE_WISE, (busiest,))
                swaps.append(
                    (
                        (index, placements.option(index, moved)),
                        (other, placements.option(other, back)),
                    )
                )
        return swaps

    def _worth_replicating(self, table: EmbeddingTable) -> bool:
        size_bytes = stored_bytes(table, self._request.optimizer, table.rows, table.dim)
        return size_bytes <= _REPLICATED_MEMORY_SHARE * self._request.embedding_memory_bytes

    def _nodes_by_load(self, load_s: NDArray[np.float64]) -> list[int]:
        by_node = load_s.reshape(self._request.node_count, self._request.local_size).sum(axis=1)
        return [int(node) for node in np.argsort(by_node, kind="stable")]

    def _ranks_of(self, node: int) -> tuple[int, ...]:
        start = node * self._request.devices_per_node
        return tuple(range(start, start + self._request.local_size))
