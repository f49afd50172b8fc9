"""Neighbourhood of a sharding plan: plans in which one table is cut or placed differently."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ShardingType, stored_bytes
from dse.workload.dlrm.solver._options import PlacementScope, worth_copying
from dse.workload.dlrm.solver.moves._plans import Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._options import Cut, CutKey, ShardingOptions
    from dse.workload.dlrm.solver.moves._plans import Assignment
    from dse.workload.dlrm.solver.moves._shards import MovableShards

#: Share of memory filled by tables beyond which some may be better off in host memory.
_CROWDED_SHARE = 0.5

#: Places to try for one cut, least loaded first.
_PLACES = 3

#: Places to try for a table that stays whole.
_WHOLE_PLACES = 8


class Neighbourhood:
    """Generates neighbours of a plan, most promising first.

    Args:
        options: The cuts.
        max_neighbours: Most neighbours of one plan.
    """

    def __init__(self, options: ShardingOptions, max_neighbours: int) -> None:
        self._options = options
        self._request = options.request
        self._max_neighbours = max_neighbours
        self._cuts: dict[tuple[int, int], list[int]] = {}
        request = options.request
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
            # Features of many cuts at once take hardly longer than those of one.
            cuts = self._make_cuts(plan, tables)
            for table in tables:
                load = self._without(plan, table, costs_s, load_s)
                changes += self._changes(plan, table, cuts[table], load)
            if len(changes) >= self._max_neighbours:
                break
        return changes[: self._max_neighbours]

    def with_hot_rows(self, plan: Assignment) -> list[tuple[Change, ...]]:
        """Returns changes of the hot rows of all tables together, each shard where it is.

        Copies of hot rows share kernels and a collective, which pay only once several tables have
        some.
        """
        tables = [
            (table, self._options.cuts[cut].key, counts)
            for table, cut in enumerate(plan.cuts)
            if len(counts := self._options.hot_rows_of(table)) > 1
            and self._options.cuts[cut].key.kind is not ShardingType.DATA_PARALLEL
        ]
        changes: list[tuple[Change, ...]] = []
        for level in range(max((len(counts) for _, _, counts in tables), default=0)):
            keys = [
                key._replace(hot_rows=counts[min(level, len(counts) - 1)])
                for _, key, counts in tables
            ]
            changed = tuple(
                Change(table, cut, plan.places[table])
                for (table, _, _), cut in zip(tables, self._options.ids(keys), strict=True)
                if cut != plan.cuts[table]
            )
            if changed:
                changes.append(changed)
        return changes

    def _make_cuts(self, plan: Assignment, tables: Sequence[int]) -> dict[int, list[int]]:
        """Returns the cuts of some tables that are worth trying, by table."""
        options = self._options
        # What hot rows are worth trying depends on the present cut.
        places = {
            table: (table, plan.cuts[table] if len(options.hot_rows_of(table)) > 1 else -1)
            for table in tables
        }
        keys = {
            place: self._keys(table, options.cuts[plan.cuts[table]].key)
            for table, place in places.items()
            if place not in self._cuts
        }
        options.ids(key for found in keys.values() for key in found)
        for place, found in keys.items():
            self._cuts[place] = options.ids(found)
        return {table: self._cuts[place] for table, place in places.items()}

    def _changes(
        self, plan: Assignment, table: int, cuts: Sequence[int], load_s: NDArray[np.float64]
    ) -> Iterator[tuple[Change, ...]]:
        """Yields other cuts and places of a table, given the ranks' loads without it."""
        spots = _Spots(load_s, self._request.node_count, self._request.devices_per_node)
        present = (plan.cuts[table], plan.places[table])
        key = self._options.cuts[present[0]].key
        for number in cuts:
            own = self._options.cuts[number].key
            if own.hot_rows != key.hot_rows and own[:4] == key[:4]:
                # Other hot rows of a table whose shards stay where they are.
                yield (Change(table, number, present[1]),)
                continue
            for places in self._places(number, spots):
                if (number, places) != present:
                    yield (Change(table, number, places),)

    def exchanges(
        self, plan: Assignment, shards: MovableShards, weights: NDArray[np.float64], limit: int
    ) -> list[tuple[Change, ...]]:
        """Returns moves of the busiest rank's shards, and exchanges with shards of other ranks.

        The balancer tries these too, but linear loads ignore kernel launches and what a rank
        receives.

        Args:
            plan: The plan.
            shards: Its movable shards.
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
            limit: Most changes.
        """
        order = np.argsort(shards.load_s(weights), kind="stable")
        busiest = int(order[-1])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        here = np.flatnonzero(shards.rank == busiest).tolist()
        there = np.flatnonzero(shards.rank != busiest)
        there = there[np.argsort(place[shards.rank[there]], kind="stable")]
        changes: list[tuple[Change, ...]] = []
        named = [array.tolist() for array in (shards.table, shards.offset, shards.node)]
        of = list(zip(*named, strict=True))
        rank_of = shards.rank.tolist()
        for rank in order[:_WHOLE_PLACES].tolist():
            moves = [self._moved(plan, shards, of[shard], shard, rank) for shard in here]
            changes += [(move,) for move in moves if move is not None]
        for other in there.tolist():
            if len(changes) >= limit:
                break
            back = self._moved(plan, shards, of[other], other, busiest)
            if back is None:
                continue
            for shard in here:
                move = self._moved(plan, shards, of[shard], shard, rank_of[other])
                if move is not None and move.table != back.table:
                    changes.append((move, back))
        return changes[:limit]

    def _moved(
        self,
        plan: Assignment,
        shards: MovableShards,
        named: tuple[int, int, int],
        shard: int,
        rank: int,
    ) -> Change | None:
        """Returns the change that puts a shard on a rank, or None if it may not go there.

        Args:
            plan: The plan.
            shards: Its movable shards.
            named: Table of the shard, its number there, and the node it may not leave.
            shard: The shard.
            rank: The rank.
        """
        table, offset, node = named
        where = plan.places[table]
        if rank in where or (node >= 0 and rank // self._request.devices_per_node != node):
            return None
        if shards.allowed is not None and not shards.allowed[shard, rank]:
            return None
        return Change(table, plan.cuts[table], (*where[:offset], rank, *where[offset + 1 :]))

    def _keys(self, table: int, present: CutKey) -> list[CutKey]:
        """Returns cuts with as many hot rows as the present one, and this one with others."""
        keys = self._options.keys_of(table)
        if not self._host_helps(table):
            keys = [key for key in keys if not key.kernel.on_host] or keys
        if not worth_copying(self._request, table):
            keys = [key for key in keys if key.kind is not ShardingType.DATA_PARALLEL]
        counts = self._options.hot_rows_of(table)
        if len(counts) == 1:
            return keys
        spread = [key for key in keys if key.kind is not ShardingType.DATA_PARALLEL]
        others = spread[:1]
        if present.kind is not ShardingType.DATA_PARALLEL:
            others = [present]
            keys = [
                key._replace(hot_rows=present.hot_rows) if key in spread else key for key in keys
            ]
        more = [key._replace(hot_rows=count) for key in others for count in counts]
        return list(dict.fromkeys([*keys, *more]))

    def _by_promise(
        self, plan: Assignment, costs_s: NDArray[np.float64], load_s: NDArray[np.float64]
    ) -> list[int]:
        """Orders tables: large shards on busy ranks first, since moving these gains most."""
        rows, ranks, starts = self._placed(plan)
        cost_s = np.maximum.reduceat(costs_s[rows], starts)
        heat = np.maximum.reduceat(load_s[ranks], starts)
        busiest = max(float(load_s.max()), 1e-300)
        largest = max(float(cost_s.max()), 1e-300)
        promise = heat / busiest + 0.5 * cost_s / largest
        return [int(table) for table in np.argsort(-promise, kind="stable")]

    def _places(self, number: int, spots: _Spots) -> Iterator[tuple[int, ...]]:
        """Yields places of a cut's shards, the least loaded first."""
        cut = self._options.cuts[number]
        shards = cut.key.shards
        if cut.scope is PlacementScope.ALL:
            yield ()
        elif cut.scope is PlacementScope.NODE:
            nodes = spots.nodes(cut)
            for start in range(min(_PLACES, len(nodes) - shards + 1)):
                yield tuple(nodes[start : start + shards])
        elif cut.key.kind is ShardingType.TABLE_COLUMN_WISE:
            for ranks in spots.ranks_by_node(cut)[:_PLACES]:
                yield tuple(ranks[:shards])
        else:
            spread = spots.ranks(cut)
            tries = _WHOLE_PLACES if shards == 1 else 1
            for start in range(min(tries, len(spread) - shards + 1)):
                yield tuple(spread[start : start + shards])

    def _costs_s(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the cost of every shard of every known cut; shape `(shards,)`."""
        return np.asarray(self._options.shard_costs[:, :-1] @ weights)

    def _load_s(self, plan: Assignment, costs_s: NDArray[np.float64]) -> NDArray[np.float64]:
        rows, ranks, _ = self._placed(plan)
        count = self._request.world_size
        return np.asarray(np.bincount(ranks, costs_s[rows], count), dtype=np.float64)

    def _placed(
        self, plan: Assignment
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns rows and ranks of all shards, and where those of each table begin."""
        reached = [
            self._options.placed_shards(number, places)
            for number, places in zip(plan.cuts, plan.places, strict=True)
        ]
        counts = np.array([len(shards.rows) for shards in reached])
        rows = np.concatenate([shards.rows for shards in reached])
        ranks = np.concatenate([shards.ranks for shards in reached])
        return rows, ranks, np.cumsum(counts) - counts

    def _without(
        self,
        plan: Assignment,
        table: int,
        costs_s: NDArray[np.float64],
        load_s: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Returns the ranks' loads without a table."""
        shards = self._options.placed_shards(plan.cuts[table], plan.places[table])
        left = load_s.copy()
        if len(shards.rows) == 1:
            left[shards.ranks] -= costs_s[shards.rows]
        else:
            np.subtract.at(left, shards.ranks, costs_s[shards.rows])
        return left

    def _host_helps(self, table: int) -> bool:
        """Returns whether memory is scarce; otherwise host memory is only slower."""
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
        """Returns the ranks that the shards of a cut may go to."""
        if cut.anywhere:
            return self._ranks
        return [rank for rank in self._ranks if cut.allowed[rank]]

    def nodes(self, cut: Cut) -> list[int]:
        """Returns the nodes that the shards of a cut may go to."""
        if cut.anywhere:
            return self._nodes
        return [node for node in self._nodes if cut.allowed[node]]

    def ranks_by_node(self, cut: Cut) -> list[list[int]]:
        """Returns the ranks that the shards of a cut may go to, by node."""
        return self._by_node if cut.anywhere else self._grouped(self.ranks(cut))

    def _grouped(self, ranks: list[int]) -> list[list[int]]:
        by_node: dict[int, list[int]] = {}
        for rank in ranks:
            by_node.setdefault(rank // self._devices_per_node, []).append(rank)
        return [by_node[node] for node in self._nodes if node in by_node]

    @cached_property
    def _by_node(self) -> list[list[int]]:
        return self._grouped(self._ranks)

    @cached_property
    def _nodes(self) -> list[int]:
        by_node = self._load_s.reshape(self._node_count, -1).sum(axis=1)
        order: list[int] = by_node.argsort(kind="stable").tolist()
        return order
