"""The neighbourhood of a sharding plan: plans in which one table is cut or placed differently."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ShardingType, stored_bytes
from dse.workload.dlrm.solver._assignment import Change
from dse.workload.dlrm.solver._catalogue import Reach, worth_copying

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._assignment import Assignment
    from dse.workload.dlrm.solver._catalogue import Catalogue, Cut, CutKey
    from dse.workload.dlrm.solver._pieces import Pieces

#: Share of the memory from which on, filled by the tables, some may be better off in host memory.
_CROWDED_SHARE = 0.5

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
        self._cuts: dict[int, list[int]] = {}
        request = catalogue.request
        self._free_bytes = request.embedding_memory_bytes
        self._sizes_bytes = [
            stored_bytes(table, request.optimizer, table.rows, table.dim)
            for table in request.tables
        ]
        filled = sum(self._sizes_bytes) / request.world_size
        self._crowded = filled > _CROWDED_SHARE * self._free_bytes

    def around(self, plan: Assignment, weights: NDArray[np.float64]) -> list[tuple[Change, ...]]:
        """Returns changes of single tables.

        Args:
            plan: The plan.
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
        """
        costs_s = self._costs_s(weights)
        load_s = self._load_s(plan, costs_s)
        order = self._by_promise(plan, costs_s, load_s)
        changes: list[tuple[Change, ...]] = []
        for start in range(0, len(order), 32):
            tables = order[start : start + 32]
            # Features of many cuts at once: asking for one takes nearly as long.
            self._make_cuts(tables)
            for table in tables:
                changes += self._changes(plan, table, self._without(plan, table, costs_s, load_s))
            if len(changes) >= self._max_neighbours:
                break
        return changes[: self._max_neighbours]

    def _make_cuts(self, tables: Sequence[int]) -> None:
        """Makes the cuts of some tables that are worth a try."""
        keys = {table: self._keys(table) for table in tables if table not in self._cuts}
        self._catalogue.ids(key for found in keys.values() for key in found)
        for table, found in keys.items():
            self._cuts[table] = self._catalogue.ids(found)

    def _changes(
        self, plan: Assignment, table: int, load_s: NDArray[np.float64]
    ) -> Iterator[tuple[Change, ...]]:
        """Yields other cuts and places of a table, given the ranks' loads without it."""
        spots = _Spots(load_s, self._request.node_count, self._request.devices_per_node)
        present = (plan.cuts[table], plan.places[table])
        for number in self._cuts[table]:
            for places in self._places(number, spots):
                if (number, places) != present:
                    yield (Change(table, number, places),)

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
        named = [array.tolist() for array in (pieces.table, pieces.offset, pieces.node)]
        of = list(zip(*named, strict=True))
        rank_of = pieces.rank.tolist()
        for rank in order[:_WHOLE_PLACES].tolist():
            moves = [self._moved(plan, pieces, of[part], part, rank) for part in here]
            changes += [(move,) for move in moves if move is not None]
        for other in there.tolist():
            if len(changes) >= limit:
                break
            back = self._moved(plan, pieces, of[other], other, busiest)
            if back is None:
                continue
            for part in here:
                move = self._moved(plan, pieces, of[part], part, rank_of[other])
                if move is not None and move.table != back.table:
                    changes.append((move, back))
        return changes[:limit]

    def _moved(
        self,
        plan: Assignment,
        pieces: Pieces,
        named: tuple[int, int, int],
        part: int,
        rank: int,
    ) -> Change | None:
        """Returns the change that puts a part on a rank, or None where it must not go.

        Args:
            plan: The plan.
            pieces: Its movable parts.
            named: Table of the part, its number there, and the node that it may not leave.
            part: The part.
            rank: The rank.
        """
        table, offset, node = named
        where = plan.places[table]
        if rank in where or (node >= 0 and rank // self._request.devices_per_node != node):
            return None
        if pieces.allowed is not None and not pieces.allowed[part, rank]:
            return None
        return Change(table, plan.cuts[table], (*where[:offset], rank, *where[offset + 1 :]))

    def _keys(self, table: int) -> list[CutKey]:
        keys = self._catalogue.keys_of(table)
        if not self._host_helps(table):
            keys = [key for key in keys if not key.kernel.on_host] or keys
        if worth_copying(self._request, table):
            return keys
        return [key for key in keys if key.kind is not ShardingType.DATA_PARALLEL]

    def _by_promise(
        self, plan: Assignment, costs_s: NDArray[np.float64], load_s: NDArray[np.float64]
    ) -> list[int]:
        """Orders tables: large parts on busy ranks first; moving these is what shortens most."""
        busiest = max(float(load_s.max()), 1e-300)
        cost_s = np.empty(len(plan.cuts))
        heat = np.empty(len(plan.cuts))
        for table, (number, places) in enumerate(zip(plan.cuts, plan.places, strict=True)):
            parts = self._catalogue.reached(number, places)
            cost_s[table] = costs_s[parts.rows].max()
            heat[table] = load_s[parts.ranks].max()
        largest = max(float(cost_s.max()), 1e-300)
        promise = heat / busiest + 0.5 * cost_s / largest
        return [int(table) for table in np.argsort(-promise, kind="stable")]

    def _places(self, number: int, spots: _Spots) -> Iterator[tuple[int, ...]]:
        """Yields places of a cut's parts, the least loaded first."""
        cut = self._catalogue.cuts[number]
        parts = cut.key.parts
        if cut.reach is Reach.ALL:
            yield ()
        elif cut.reach is Reach.NODE:
            nodes = spots.nodes(cut)
            for start in range(min(_PLACES, len(nodes) - parts + 1)):
                yield tuple(nodes[start : start + parts])
        elif cut.key.kind is ShardingType.TABLE_COLUMN_WISE:
            for ranks in spots.ranks_by_node(cut)[:_PLACES]:
                yield tuple(ranks[:parts])
        else:
            spread = spots.ranks(cut)
            tries = _WHOLE_PLACES if parts == 1 else 1
            for start in range(min(tries, len(spread) - parts + 1)):
                yield tuple(spread[start : start + parts])

    def _costs_s(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the cost of every part of every cut made so far; shape `(parts,)`."""
        return np.asarray(self._catalogue.part_costs[:, :-1] @ weights)

    def _load_s(self, plan: Assignment, costs_s: NDArray[np.float64]) -> NDArray[np.float64]:
        reached = [
            self._catalogue.reached(number, places)
            for number, places in zip(plan.cuts, plan.places, strict=True)
        ]
        ranks = np.concatenate([parts.ranks for parts in reached])
        costs = costs_s[np.concatenate([parts.rows for parts in reached])]
        return np.asarray(np.bincount(ranks, costs, self._request.world_size), dtype=np.float64)

    def _without(
        self,
        plan: Assignment,
        table: int,
        costs_s: NDArray[np.float64],
        load_s: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Returns the ranks' loads without a table."""
        parts = self._catalogue.reached(plan.cuts[table], plan.places[table])
        left = load_s.copy()
        if len(parts.rows) == 1:
            left[parts.ranks] -= costs_s[parts.rows]
        else:
            np.subtract.at(left, parts.ranks, costs_s[parts.rows])
        return left

    def _host_helps(self, table: int) -> bool:
        """Says whether memory is scarce; where it is not, host memory is only slower."""
        return self._crowded or 4.0 * self._sizes_bytes[table] > self._free_bytes


class _Spots:
    """Ranks and nodes by their load, the least loaded first.

    Args:
        load_s: Load of every rank; shape `(ranks,)`.
        node_count: Nodes.
        devices_per_node: Ranks of a full node.
    """

    def __init__(
        self, load_s: NDArray[np.float64], node_count: int, devices_per_node: int
    ) -> None:
        self._load_s, self._node_count = load_s, node_count
        self._devices_per_node = devices_per_node
        self._ranks: list[int] = load_s.argsort(kind="stable").tolist()

    def ranks(self, cut: Cut) -> list[int]:
        """Returns the ranks that the parts of a cut may go to."""
        if cut.anywhere:
            return self._ranks
        return [rank for rank in self._ranks if cut.allowed[rank]]

    def nodes(self, cut: Cut) -> list[int]:
        """Returns the nodes that the parts of a cut may go to."""
        if cut.anywhere:
            return self._nodes
        return [node for node in self._nodes if cut.allowed[node]]

    def ranks_by_node(self, cut: Cut) -> list[list[int]]:
        """Returns the ranks that the parts of a cut may go to, for each node that has some."""
        by_node: dict[int, list[int]] = {}
        for rank in self.ranks(cut):
            by_node.setdefault(rank // self._devices_per_node, []).append(rank)
        return [by_node[node] for node in self._nodes if node in by_node]

    @cached_property
    def _nodes(self) -> list[int]:
        by_node = self._load_s.reshape(self._node_count, -1).sum(axis=1)
        order: list[int] = by_node.argsort(kind="stable").tolist()
        return order
