"""Sharding options: the ways to cut each table, and what every shard costs its rank.

A cut is independent of places: on other ranks it has the same shards. So the model computes the
features of a cut once, and the search moves its shards around freely.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.sharding import (
    SAME_SHARDS,
    ComputeKernel,
    ShardingType,
    TablePlan,
    placements_allowed,
    stored_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dse.sharding import AllowedPlacement, PlanningRequest
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.scoring._cut_shards import CutShards

#: Cuts whose features are expanded at once, times ranks; bounds memory.
_CHUNK_RANKS = 32_768

#: A table is worth a copy on every rank only if it takes at most this share of a rank's memory.
_COPIED_MEMORY_SHARE = 0.02

#: Placed cuts whose shards are cached; bounds memory.
_REMEMBERED = 200_000


class PlacementScope(IntEnum):
    """Where a shard of a cut is placed: on one rank, on all ranks of a node, or on all ranks."""

    RANK = 0
    NODE = 1
    ALL = 2


_SCOPE = {
    ShardingType.TABLE_WISE: PlacementScope.RANK,
    ShardingType.COLUMN_WISE: PlacementScope.RANK,
    ShardingType.TABLE_COLUMN_WISE: PlacementScope.RANK,
    ShardingType.TABLE_ROW_WISE: PlacementScope.NODE,
    ShardingType.GRID_SHARD: PlacementScope.NODE,
    ShardingType.ROW_WISE: PlacementScope.ALL,
    ShardingType.DATA_PARALLEL: PlacementScope.ALL,
}


class CutKey(NamedTuple):
    """Identifies a cut: table number, type, number of shards to place, kernel, and hot rows."""

    table: int
    kind: ShardingType
    shards: int
    kernel: ComputeKernel
    hot_rows: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to cut one table.

    Attributes:
        key: Identifies it.
        scope: Where a shard is placed.
        groups: Exchange groups as bits of the layout.
        costs: Additive loads of a shard on a rank, as the mean of the ranks that it reaches, and,
            last, its bytes; shape `(shards, loads + 1)`.
        rows: Row of each shard on each rank that it reaches, in the arrays of all shards: a shard
            over several ranks has a block of rows on each. Shape `(shards, ranks reached)`.
        first_rows: Row of each shard on the first of them.
        even: Whether a shard is the same on all its ranks.
        hot: Row of the copy of its hot rows that every rank has besides, equal for all cuts with
            the same hot rows of the table; -1 without.
        allowed: Ranks, or nodes, that its shards may go to; shape `(ranks,)` or `(nodes,)`, empty
            for cuts on all ranks.
        anywhere: Whether these are all.
    """

    key: CutKey
    scope: PlacementScope
    groups: int
    costs: NDArray[np.float64]
    rows: NDArray[np.int64]
    first_rows: tuple[int, ...]
    even: bool
    hot: int
    allowed: NDArray[np.bool_]
    anywhere: bool


class CutArrays(NamedTuple):
    """What plans as arrays need of all cuts; shape `(cuts,)` each but the last.

    Attributes:
        groups: Exchange groups as bits of the layout.
        place_counts: Ranks or nodes that have to be named: none for cuts on all ranks.
        reached: Ranks that a shard on one of these reaches.
        starts: Where the rows of its shards begin in `rows`.
        uneven: Whether it is on all ranks, which are not alike.
        copied: Row of what all ranks have alike; -1 for cuts on some ranks, and uneven ones.
        hot: Row of the copy of its hot rows that every rank has besides; -1 without.
        rows: Rows of all shards on every rank that they reach, one shard after the other; none of
            cuts on all ranks.
    """

    groups: NDArray[np.int64]
    place_counts: NDArray[np.int64]
    reached: NDArray[np.int64]
    starts: NDArray[np.int64]
    uneven: NDArray[np.bool_]
    copied: NDArray[np.int64]
    hot: NDArray[np.int64]
    rows: NDArray[np.int64]


class PlacedShards(NamedTuple):
    """Shards of a placed cut on all their ranks.

    Attributes:
        rows: Rows of the arrays of all shards; shape `(placed,)`.
        ranks: Rank of each; shape `(placed,)`.
    """

    rows: NDArray[np.int64]
    ranks: NDArray[np.int64]


class ShardingOptions:
    """The cuts of one problem, created on first use.

    They are what :func:`dse.sharding.placements_allowed` allows, so they respect constraints on
    single tables and on host memory.

    Args:
        scorer: The performance model.
        request: What may be placed where.

    Attributes:
        cuts: All cuts created so far, by number.
        shard_features: Placement features of the different shards of all cuts on one rank each;
            shape `(rows, features)`.
        columns: Features that some of them have; shape `(columns,)`.
        shard_values: These features of all of them; shape `(rows, columns)`.
        shard_costs: Their loads and bytes; shape `(rows, loads + 1)`.
        shard_terms: What adds up within a rank, and bytes; shape `(rows, terms + 1)`.
    """

    def __init__(self, scorer: PlanScorer, request: PlanningRequest) -> None:
        self.scorer = scorer
        self.request = request
        self.cuts: list[Cut] = []
        self.shard_features = np.zeros((0, 0))
        self.columns = np.zeros(0, dtype=np.int64)
        self.shard_values = np.zeros((0, 0))
        self.shard_costs = np.zeros((0, 0))
        self.shard_terms = np.zeros((0, 0))
        self._ids: dict[CutKey, int] = {}
        self._hot: dict[tuple[int, int], int] = {}
        self._placements: dict[int, tuple[AllowedPlacement, ...]] = {}
        self._keys: dict[int, list[CutKey]] = {}
        self._hot_rows: dict[int, tuple[int, ...]] = {}
        self._masks: dict[object, tuple[NDArray[np.bool_], bool]] = {}
        self._placed: dict[tuple[int, tuple[int, ...]], PlacedShards] = {}
        self._arrays: CutArrays | None = None
        self._every = np.arange(request.world_size)
        self._single = list(self._every.reshape(-1, 1))
        if request.may_use_host:
            scorer.placements.include_host_columns()

    def ids(self, keys: Iterable[CutKey]) -> list[int]:
        """Returns the numbers of cuts; new ones are created together."""
        wanted = list(keys)
        new = [key for key in dict.fromkeys(wanted) if key not in self._ids]
        chunk = max(1, _CHUNK_RANKS // self.request.world_size)
        for start in range(0, len(new), chunk):
            self._make(new[start : start + chunk])
        return [self._ids[key] for key in wanted]

    def keys_of(self, table: int) -> list[CutKey]:
        """Returns the cuts of a table that are worth trying, each of equal ones once.

        They have the fewest hot rows that are allowed; see :meth:`hot_rows_of` for others.
        """
        found = self._keys.get(table)
        if found is None:
            found = self._keys[table] = list(self._all_keys(table))
        return list(found)

    def _all_keys(self, table: int) -> Iterator[CutKey]:
        placements = self.placements_of(table)
        for placement in placements:
            kind, kernel = placement.sharding_type, placement.compute_kernel
            twin = SAME_SHARDS.get(kind)
            if self.request.node_count == 1 and any(
                (other.sharding_type, other.compute_kernel) == (twin, kernel)
                for other in placements
            ):
                continue
            for shards in placement.column_shards:
                yield CutKey(table, kind, shards, kernel, placement.hot_rows[0])

    def hot_rows_of(self, table: int) -> tuple[int, ...]:
        """Returns the numbers of hot rows that a table may have, fewest first."""
        found = self._hot_rows.get(table)
        if found is None:
            offered = (placement.hot_rows for placement in self.placements_of(table))
            found = self._hot_rows[table] = max(offered, key=len)
        return found

    def placements_of(self, table: int) -> tuple[AllowedPlacement, ...]:
        """Returns the allowed placements of a table."""
        found = self._placements.get(table)
        if found is None:
            found = self._placements[table] = placements_allowed(table, self.request)
        return found

    @property
    def arrays(self) -> CutArrays:
        """The cuts created so far as arrays."""
        if self._arrays is None:
            self._arrays = self._in_arrays()
        return self._arrays

    def _in_arrays(self) -> CutArrays:
        everywhere = PlacementScope.ALL
        rows, counts, reached, uneven, copied = [], [], [], [], []
        for cut in self.cuts:
            chosen: Sequence[int] = cut.first_rows
            if cut.scope is PlacementScope.NODE:
                shape = len(cut.rows), self.request.local_size
                chosen = np.broadcast_to(cut.rows, shape).ravel().tolist()
            elif cut.scope is everywhere:
                chosen = ()
            rows.append(chosen)
            counts.append(0 if cut.scope is everywhere else cut.key.shards)
            reached.append(self.request.local_size if cut.scope is PlacementScope.NODE else 1)
            uneven.append(cut.scope is everywhere and not cut.even)
            copied.append(cut.first_rows[0] if cut.scope is everywhere and cut.even else -1)
        lengths = np.array([len(chosen) for chosen in rows], dtype=np.int64)
        return CutArrays(
            groups=np.array([cut.groups for cut in self.cuts], dtype=np.int64),
            place_counts=np.array(counts, dtype=np.int64),
            reached=np.array(reached, dtype=np.int64),
            starts=np.cumsum(lengths) - lengths,
            uneven=np.array(uneven, dtype=bool),
            copied=np.array(copied, dtype=np.int64),
            hot=np.array([cut.hot for cut in self.cuts], dtype=np.int64),
            rows=np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum())),
        )

    def placed_shards(self, cut: int, places: tuple[int, ...]) -> PlacedShards:
        """Returns the shards of a placed cut, with their ranks; copies of hot rows left out."""
        key = (cut, places)
        found = self._placed.get(key)
        if found is None:
            if len(self._placed) >= _REMEMBERED:
                self._placed.clear()
            found = self._placed[key] = self._place_shards(self.cuts[cut], places)
        return found

    def placed_lists(
        self, cut: int, places: tuple[int, ...]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Returns rows and ranks of :meth:`placed_shards` as sequences, faster to join."""
        chosen = self.cuts[cut]
        if chosen.scope is PlacementScope.RANK:
            return chosen.first_rows, places
        shards = self.placed_shards(cut, places)
        return shards.rows.tolist(), shards.ranks.tolist()

    def _place_shards(self, cut: Cut, places: tuple[int, ...]) -> PlacedShards:
        if cut.scope is PlacementScope.RANK:
            # Searches need thousands of these, most with a single shard.
            ranks = self._single[places[0]] if len(places) == 1 else np.array(places, np.int64)
            return PlacedShards(cut.rows[:, 0], ranks)
        if cut.scope is PlacementScope.ALL:
            return PlacedShards(np.broadcast_to(cut.rows[0], len(self._every)), self._every)
        size, local = self.request.devices_per_node, self.request.local_size
        nodes = np.array(places, dtype=np.int64)
        rows = np.broadcast_to(cut.rows, (len(places), local)).reshape(-1)
        return PlacedShards(rows, (nodes[:, None] * size + np.arange(local)).reshape(-1))

    def plan(self, cut: int, places: tuple[int, ...]) -> TablePlan:
        """Returns the placement of a cut's shards; `places` are ranks or nodes, by its scope."""
        return self._plan(self.cuts[cut].key, places)

    def _plan(self, key: CutKey, places: tuple[int, ...]) -> TablePlan:
        placement = self._placement(key)
        return TablePlan(
            self.request.tables[key.table].name,
            key.kind,
            self._ranks(_SCOPE[key.kind], places),
            key.kernel,
            None if placement is None else placement.cache_load_factor,
            key.hot_rows,
        )

    def _placement(self, key: CutKey) -> AllowedPlacement | None:
        """Returns the allowed placement of a cut; None if the request does not allow it."""
        for placement in self.placements_of(key.table):
            if (placement.sharding_type, placement.compute_kernel) == (key.kind, key.kernel):
                return placement
        return None

    def _allowed(self, key: CutKey) -> tuple[NDArray[np.bool_], bool]:
        """Returns the ranks, or nodes, that shards of a cut may go to; and whether it is all."""
        placement, request = self._placement(key), self.request
        scope = _SCOPE[key.kind]
        if scope is PlacementScope.ALL:
            return np.ones(0, dtype=bool), True
        count = request.world_size if scope is PlacementScope.RANK else request.node_count
        if placement is None:
            return np.ones(count, dtype=bool), True
        # A node must have room for all shards of a table that stays on it.
        least = key.shards if key.kind is ShardingType.TABLE_COLUMN_WISE else 1
        # Placements alike share their sets, whose ranks may be too many to hash each time.
        known = (scope, id(placement.rank_sets), least)
        if known not in self._masks:
            mask = np.zeros(count, dtype=bool)
            for ranks in placement.rank_sets:
                if scope is PlacementScope.NODE:
                    mask[ranks[0] // request.devices_per_node] = True
                elif len(ranks) >= least:
                    mask[list(ranks)] = True
            self._masks[known] = mask, bool(mask.all())
        return self._masks[known]

    def key_and_places(self, table: int, plan: TablePlan) -> tuple[CutKey, tuple[int, ...]]:
        """Returns the cut and the places of a table's placement."""
        scope = _SCOPE[plan.sharding_type]
        places = plan.ranks
        if scope is PlacementScope.ALL:
            places = ()
        elif scope is PlacementScope.NODE:
            places = tuple(
                rank // self.request.devices_per_node
                for rank in plan.ranks[:: self.request.local_size]
            )
        shards = max(1, len(places))
        key = CutKey(table, plan.sharding_type, shards, plan.compute_kernel, plan.hot_rows)
        return key, places

    def _ranks(self, scope: PlacementScope, places: tuple[int, ...]) -> tuple[int, ...]:
        if scope is PlacementScope.RANK:
            return places
        if scope is PlacementScope.ALL:
            return tuple(range(self.request.world_size))
        size = self.request.devices_per_node
        return tuple(
            rank
            for node in places
            for rank in range(node * size, node * size + self.request.local_size)
        )

    def _cached_share(self, key: CutKey) -> float | None:
        """Returns the share of rows that the device caches; None if none are in host memory."""
        if not key.kernel.on_host:
            return None
        places = () if _SCOPE[key.kind] is PlacementScope.ALL else tuple(range(key.shards))
        return self._plan(key, places).cached_share

    def _make(self, keys: list[CutKey]) -> None:
        """Creates cuts."""
        self._arrays = None
        made = [
            self.scorer.placements.parts(
                key.table, key.kind, key.shards, self._cached_share(key), key.hot_rows
            )
            for key in keys
        ]
        ends = np.cumsum([len(shards.rows) for shards in made])
        together = np.concatenate([shards.rows for shards in made]).T
        memory = self.scorer.memory_bytes(together)[None]
        loads, terms = (
            np.concatenate((rows, memory)).T for rows in self.scorer.rank_loads_and_terms(together)
        )
        first = len(self.shard_features)
        self.shard_features = _below(self.shard_features, together.T)
        self.columns = np.flatnonzero(self.shard_features.any(axis=0))
        self.shard_values = self.shard_features[:, self.columns]
        self.shard_costs = _below(self.shard_costs, loads)
        self.shard_terms = _below(self.shard_terms, terms)
        for index, (key, start) in enumerate(zip(keys, [0, *ends[:-1].tolist()], strict=True)):
            self._ids[key] = len(self.cuts)
            shards, (allowed, anywhere) = made[index], self._allowed(key)
            rows = first + start + shards.places
            hot = -1
            if key.hot_rows:
                # Copies of hot rows come last.
                last = first + start + len(shards.rows) - 1
                hot = self._hot.setdefault((key.table, key.hot_rows), last)
            self.cuts.append(
                Cut(
                    key=key,
                    scope=_SCOPE[key.kind],
                    groups=shards.groups,
                    costs=_means(loads, start, shards),
                    rows=rows,
                    first_rows=tuple(rows[:, 0].tolist()),
                    even=shards.even,
                    hot=hot,
                    allowed=allowed,
                    anywhere=anywhere,
                )
            )


def _below(rows: NDArray[np.float64], more: NDArray[np.float64]) -> NDArray[np.float64]:
    """Appends rows; an empty first array takes its columns from the second."""
    return np.concatenate((rows, more)) if len(rows) else np.ascontiguousarray(more)


def _means(rows: NDArray[np.float64], start: int, shards: CutShards) -> NDArray[np.float64]:
    """Returns the mean of each part's rows, of which the first is that number."""
    if not shards.even:
        return np.asarray(rows[start + shards.places].mean(axis=1))
    if len(shards.places) == 1:
        # Most cuts have a single shard.
        return rows[start : start + 1]
    return rows[start + shards.places[:, 0]]


def worth_copying(request: PlanningRequest, table: int) -> bool:
    """Returns whether a table is so small that a copy on every rank may pay."""
    chosen = request.tables[table]
    size_bytes = stored_bytes(chosen, request.optimizer, chosen.rows, chosen.dim)
    return size_bytes <= _COPIED_MEMORY_SHARE * request.embedding_memory_bytes
