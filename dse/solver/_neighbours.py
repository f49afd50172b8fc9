"""The neighbourhood of a sharding plan: plans in which one table is cut or placed differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ShardingType, stored_bytes
from dse.solver._assignment import Change
from dse.solver._catalogue import Reach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dse.solver._assignment import Assignment
    from dse.solver._catalogue import Catalogue, CutKey
    from dse.solver._pieces import Pieces

#: A table is worth a copy on every rank only if it takes at most this share of a rank's memory.
_REPLICATED_MEMORY_SHARE = 0.02

#: Places tried for one cut, least loaded first.
_PLACES = 3

#: Places tried for a table that stays whole.
_WHOLE_PLACES = 8


class Neighbourhood:
    """Makes neighbours of a plan, most promising first.

    Args:
        catalogue: The cuts.
        max_neighbours: Most neighbours of one plan.
    """

    def __init__(self, catalogue: Catalogue, max_neighbours: int) -> None:
        self._catalogue = catalogue
        self._request = catalogue.request
        self._max_neighbours = max_neighbours

    def around(
        self, plan: Assignment, weights: NDArray[np.float64], skip: int = 0
    ) -> list[tuple[Change, ...]]:
        """Returns changes of single tables.

        Args:
            plan: The plan.
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
            skip: Most promising tables to leave out: they have been tried.
        """
        load_s = self._load_s(plan, weights)
        order = self._by_promise(plan, weights, load_s)[skip:]
        changes: list[tuple[Change, ...]] = []
        for start in range(0, len(order), 32):
            tables = order[start : start + 32]
            keys = {table: self._keys(table) for table in tables}
            # Features of many cuts at once: asking for one takes nearly as long.
            self._catalogue.ids(key for found in keys.values() for key in found)
            for table in tables:
                without = load_s - self._share_s(plan, table, weights)
                for number in self._catalogue.ids(keys[table]):
                    changes += [
                        (Change(table, number, places),)
                        for places in self._places(number, without)
                        if (number, places) != (plan.cuts[table], plan.places[table])
                    ]
            if len(changes) >= self._max_neighbours:
                break
        return changes[: self._max_neighbours]

    def exchanges(
        self, plan: Assignment, pieces: Pieces, weights: NDArray[np.float64], limit: int
    ) -> list[tuple[Change, ...]]:
        """Returns moves of the busiest rank's parts, and exchanges with parts of other ranks.

        Linear loads know of these as well, but not of the launches of a rank's kernels or of what
        a rank receives.

        Args:
            plan: The plan.
            pieces: Its movable parts.
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
            limit: Most changes.
        """
        order = np.argsort(pieces.load_s(weights), kind="stable")
        busiest = int(order[-1])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        here = np.flatnonzero(pieces.rank == busiest).tolist()
        there = np.flatnonzero(pieces.rank != busiest)
        there = there[np.argsort(place[pieces.rank[there]], kind="stable")]
        changes: list[tuple[Change, ...]] = []
        for rank in order[:_WHOLE_PLACES].tolist():
            moves = [self._moved(plan, pieces, part, rank) for part in here]
            changes += [(move,) for move in moves if move is not None]
        for other in there.tolist():
            if len(changes) >= limit:
                break
            back = self._moved(plan, pieces, other, busiest)
            if back is None:
                continue
            for part in here:
                move = self._moved(plan, pieces, part, int(pieces.rank[other]))
                if move is not None and move.table != back.table:
                    changes.append((move, back))
        return changes[:limit]

    def _moved(self, plan: Assignment, pieces: Pieces, part: int, rank: int) -> Change | None:
        """Returns the change that puts a part on a rank, or None where it must not go."""
        table, offset, node = (int(of[part]) for of in (pieces.table, pieces.offset, pieces.node))
        where = plan.places[table]
        if rank in where or (node >= 0 and rank // self._request.devices_per_node != node):
            return None
        return Change(table, plan.cuts[table], (*where[:offset], rank, *where[offset + 1 :]))

    def _keys(self, table: int) -> list[CutKey]:
        keys = self._catalogue.keys_of(table)
        if self._worth_replicating(table):
            return keys
        return [key for key in keys if key.kind is not ShardingType.DATA_PARALLEL]

    def _by_promise(
        self, plan: Assignment, weights: NDArray[np.float64], load_s: NDArray[np.float64]
    ) -> list[int]:
        """Orders tables: large parts on busy ranks first; moving these is what shortens most."""
        busiest = max(float(load_s.max()), 1e-300)
        cost_s = np.empty(len(plan.cuts))
        heat = np.empty(len(plan.cuts))
        for table, (number, places) in enumerate(zip(plan.cuts, plan.places, strict=True)):
            cut = self._catalogue.cuts[number]
            cost_s[table] = float((cut.costs[:, :-1] @ weights).max())
            heat[table] = max(
                float(load_s[self._ranks(cut.reach, place)].max()) for place in places or (0,)
            )
        largest = max(float(cost_s.max()), 1e-300)
        promise = heat / busiest + 0.5 * cost_s / largest
        return [int(table) for table in np.argsort(-promise, kind="stable")]

    def _places(self, number: int, load_s: NDArray[np.float64]) -> Iterator[tuple[int, ...]]:
        """Yields places of a cut's parts, given the ranks' loads without the table."""
        cut = self._catalogue.cuts[number]
        parts = cut.key.parts
        if cut.reach is Reach.ALL:
            yield ()
            return
        nodes = self._nodes_by_load(load_s)
        if cut.reach is Reach.NODE:
            for start in range(min(_PLACES, len(nodes) - parts + 1)):
                yield tuple(nodes[start : start + parts])
        elif cut.key.kind is ShardingType.TABLE_COLUMN_WISE:
            for node in nodes[:_PLACES]:
                ranks = self._ranks(Reach.NODE, node)
                order = np.argsort(load_s[ranks], kind="stable") + ranks.start
                yield tuple(order[:parts].tolist())
        else:
            order = np.argsort(load_s, kind="stable")
            tries = _WHOLE_PLACES if parts == 1 else 1
            for start in range(min(tries, len(order) - parts + 1)):
                yield tuple(order[start : start + parts].tolist())

    def _load_s(self, plan: Assignment, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        load_s = np.zeros(self._request.world_size)
        for table in range(len(plan.cuts)):
            self._add(load_s, plan, table, weights)
        return load_s

    def _share_s(
        self, plan: Assignment, table: int, weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        load_s = np.zeros(self._request.world_size)
        self._add(load_s, plan, table, weights)
        return load_s

    def _add(
        self,
        load_s: NDArray[np.float64],
        plan: Assignment,
        table: int,
        weights: NDArray[np.float64],
    ) -> None:
        cut = self._catalogue.cuts[plan.cuts[table]]
        costs_s = (cut.costs[:, :-1] @ weights).tolist()
        for place, cost_s in zip(plan.places[table] or (0,), costs_s, strict=True):
            load_s[self._ranks(cut.reach, place)] += cost_s

    def _ranks(self, reach: Reach, place: int) -> slice:
        """Ranks that a part reaches."""
        if reach is Reach.RANK:
            return slice(place, place + 1)
        if reach is Reach.ALL:
            return slice(0, self._request.world_size)
        start = place * self._request.devices_per_node
        return slice(start, start + self._request.local_size)

    def _worth_replicating(self, table: int) -> bool:
        found = self._request.tables[table]
        size_bytes = stored_bytes(found, self._request.optimizer, found.rows, found.dim)
        return size_bytes <= _REPLICATED_MEMORY_SHARE * self._request.embedding_memory_bytes

    def _nodes_by_load(self, load_s: NDArray[np.float64]) -> list[int]:
        by_node = load_s.reshape(self._request.node_count, self._request.local_size).sum(axis=1)
        return [int(node) for node in np.argsort(by_node, kind="stable")]
