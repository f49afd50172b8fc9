"""The ways in which tables may be cut, with what every part of a cut costs its rank.

A cut says nothing of places: the same cut on other ranks has the same parts. So features are asked
once for a cut, and the search moves parts around without asking the model for each place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.sharding import (
    ComputeKernel,
    ShardingType,
    TablePlan,
    placements_allowed,
    stored_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from dse.sharding import AllowedPlacement, PlanningRequest
    from dse.workload.dlrm import PlanScorer

#: Cuts whose features are expanded at once, times ranks; bounds memory.
_CHUNK_RANKS = 32_768

#: A table is worth a copy on every rank only if it takes at most this share of a rank's memory.
_COPIED_MEMORY_SHARE = 0.02

#: Placed cuts whose parts are remembered; bounds memory.
_REMEMBERED = 200_000


class Reach(IntEnum):
    """Where one part of a cut sits: on one rank, on all ranks of a node, or on all ranks."""

    RANK = 0
    NODE = 1
    ALL = 2


_REACH = {
    ShardingType.TABLE_WISE: Reach.RANK,
    ShardingType.COLUMN_WISE: Reach.RANK,
    ShardingType.TABLE_COLUMN_WISE: Reach.RANK,
    ShardingType.TABLE_ROW_WISE: Reach.NODE,
    ShardingType.GRID_SHARD: Reach.NODE,
    ShardingType.ROW_WISE: Reach.ALL,
    ShardingType.DATA_PARALLEL: Reach.ALL,
}


#: On a single node the first is the second under another name.
_ONE_NODE_TWINS = {
    ShardingType.TABLE_COLUMN_WISE: ShardingType.COLUMN_WISE,
    ShardingType.GRID_SHARD: ShardingType.TABLE_ROW_WISE,
}


class CutKey(NamedTuple):
    """Names a cut: table number, type, parts that are placed on their own, and kernel."""

    table: int
    kind: ShardingType
    parts: int
    kernel: ComputeKernel


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to cut one table.

    Attributes:
        key: Its name.
        reach: Where a part sits.
        group_bit: Exchange group as a bit of the layout.
        features: Placement features of a part on each rank it sits on; shape `(parts, features)`.
        costs: Additive loads of a part on such a rank and, last, its bytes; shape
            `(parts, loads + 1)`.
        terms: What adds up within a rank, and bytes; shape `(parts, terms + 1)`.
        first: Row of its first part in the catalogue's arrays of all parts.
        rows: Rows of all its parts; shape `(parts,)`.
        allowed: Ranks, or nodes, that its parts may go to; shape `(ranks,)` or `(nodes,)`, empty
            for cuts that reach all ranks.
        anywhere: Whether these are all.
    """

    key: CutKey
    reach: Reach
    group_bit: int
    features: NDArray[np.float64]
    costs: NDArray[np.float64]
    terms: NDArray[np.float64]
    first: int
    rows: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    anywhere: bool


class Reached(NamedTuple):
    """Parts of a placed cut on every rank that they reach.

    Attributes:
        rows: Rows of the catalogue's arrays of all parts; shape `(reached,)`.
        ranks: The rank of each; shape `(reached,)`.
    """

    rows: NDArray[np.int64]
    ranks: NDArray[np.int64]


class Catalogue:
    """Cuts of one problem, made when they are first asked for.

    What a request allows is asked of :func:`dse.sharding.placements_allowed`, so constraints on
    single tables and tables in host memory are part of it.

    Args:
        scorer: The performance model.
        request: What may be placed where.

    Attributes:
        cuts: All cuts made so far, by number.
        part_features: Placement features of the parts of all cuts; shape `(parts, features)`.
        part_costs: Loads and bytes of the same; shape `(parts, loads + 1)`.
    """

    def __init__(self, scorer: PlanScorer, request: PlanningRequest) -> None:
        self.scorer = scorer
        self.request = request
        self.cuts: list[Cut] = []
        self.part_features = np.zeros((0, 0))
        self.part_costs = np.zeros((0, 0))
        self._ids: dict[CutKey, int] = {}
        self._placements: dict[int, tuple[AllowedPlacement, ...]] = {}
        self._keys: dict[int, list[CutKey]] = {}
        self._masks: dict[object, NDArray[np.bool_]] = {}
        self._reached: dict[tuple[int, tuple[int, ...]], Reached] = {}
        self._every = np.arange(request.world_size)
        self._single = list(self._every.reshape(-1, 1))
        if may_use_host(request):
            scorer.placements.include_host_columns()

    def ids(self, keys: Iterable[CutKey]) -> list[int]:
        """Returns the numbers of cuts, making those that are new in one go."""
        wanted = list(keys)
        new = [key for key in dict.fromkeys(wanted) if key not in self._ids]
        chunk = max(1, _CHUNK_RANKS // self.request.world_size)
        for start in range(0, len(new), chunk):
            self._make(new[start : start + chunk])
        return [self._ids[key] for key in wanted]

    def keys_of(self, table: int) -> list[CutKey]:
        """Returns the cuts of a table that are worth a try, those without a twin only."""
        found = self._keys.get(table)
        if found is None:
            found = self._keys[table] = list(self._all_keys(table))
        return list(found)

    def _all_keys(self, table: int) -> Iterator[CutKey]:
        placements = self.placements_of(table)
        for placement in placements:
            kind, kernel = placement.sharding_type, placement.compute_kernel
            twin = _ONE_NODE_TWINS.get(kind)
            if self.request.node_count == 1 and any(
                (other.sharding_type, other.compute_kernel) == (twin, kernel)
                for other in placements
            ):
                continue
            for parts in placement.column_pieces:
                yield CutKey(table, kind, parts, kernel)

    def placements_of(self, table: int) -> tuple[AllowedPlacement, ...]:
        """Returns what is allowed of a table."""
        found = self._placements.get(table)
        if found is None:
            found = self._placements[table] = placements_allowed(table, self.request)
        return found

    def reached(self, cut: int, places: tuple[int, ...]) -> Reached:
        """Returns the parts of a placed cut with the ranks that carry them."""
        key = (cut, places)
        found = self._reached.get(key)
        if found is None:
            if len(self._reached) >= _REMEMBERED:
                self._reached.clear()
            found = self._reached[key] = self._reached_by(self.cuts[cut], places)
        return found

    def reached_lists(self, cut: int, places: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Returns rows and ranks of :meth:`reached` as lists, which many of are joined faster."""
        chosen = self.cuts[cut]
        if chosen.reach is Reach.RANK:
            return list(range(chosen.first, chosen.first + len(places))), list(places)
        parts = self.reached(cut, places)
        return parts.rows.tolist(), parts.ranks.tolist()

    def _reached_by(self, cut: Cut, places: tuple[int, ...]) -> Reached:
        if cut.reach is Reach.RANK:
            # Searches ask for thousands of them, most of a single part.
            ranks = self._single[places[0]] if len(places) == 1 else np.array(places, np.int64)
            return Reached(cut.rows, ranks)
        if cut.reach is Reach.ALL:
            return Reached(np.full(len(self._every), cut.first), self._every)
        size, local = self.request.devices_per_node, self.request.local_size
        nodes = np.array(places, dtype=np.int64)
        rows = np.repeat(cut.rows, local)
        return Reached(rows, (nodes[:, None] * size + np.arange(local)).reshape(-1))

    def plan(self, cut: int, places: tuple[int, ...]) -> TablePlan:
        """Returns the placement of a cut's parts; `places` are ranks or nodes, as it reaches."""
        return self._plan(self.cuts[cut].key, places)

    def _plan(self, key: CutKey, places: tuple[int, ...]) -> TablePlan:
        placement = self._placement(key)
        return TablePlan(
            self.request.tables[key.table].name,
            key.kind,
            self._ranks(_REACH[key.kind], places),
            key.kernel,
            None if placement is None else placement.cache_load_factor,
        )

    def _placement(self, key: CutKey) -> AllowedPlacement | None:
        """Returns what is allowed of a cut; None where the request does not allow it."""
        for placement in self.placements_of(key.table):
            if (placement.sharding_type, placement.compute_kernel) == (key.kind, key.kernel):
                return placement
        return None

    def _allowed(self, key: CutKey) -> NDArray[np.bool_]:
        """Returns the ranks, or nodes, that parts of a cut may go to."""
        placement, request = self._placement(key), self.request
        reach = _REACH[key.kind]
        if reach is Reach.ALL:
            return np.ones(0, dtype=bool)
        count = request.world_size if reach is Reach.RANK else request.node_count
        if placement is None:
            return np.ones(count, dtype=bool)
        # A node must have room for all pieces of a table that stays on it.
        least = key.parts if key.kind is ShardingType.TABLE_COLUMN_WISE else 1
        known = (reach, placement.rank_sets, least)
        if known not in self._masks:
            mask = np.zeros(count, dtype=bool)
            for ranks in placement.rank_sets:
                if reach is Reach.NODE:
                    mask[ranks[0] // request.devices_per_node] = True
                elif len(ranks) >= least:
                    mask[list(ranks)] = True
            self._masks[known] = mask
        return self._masks[known]

    def placed(self, table: int, plan: TablePlan) -> tuple[CutKey, tuple[int, ...]]:
        """Returns the cut and the places of a placement."""
        reach = _REACH[plan.sharding_type]
        places = plan.ranks
        if reach is Reach.ALL:
            places = ()
        elif reach is Reach.NODE:
            places = tuple(
                rank // self.request.devices_per_node
                for rank in plan.ranks[:: self.request.local_size]
            )
        key = CutKey(table, plan.sharding_type, max(1, len(places)), plan.compute_kernel)
        return key, places

    def _ranks(self, reach: Reach, places: tuple[int, ...]) -> tuple[int, ...]:
        if reach is Reach.RANK:
            return places
        if reach is Reach.ALL:
            return tuple(range(self.request.world_size))
        size = self.request.devices_per_node
        return tuple(
            rank
            for node in places
            for rank in range(node * size, node * size + self.request.local_size)
        )

    def _cached_share(self, key: CutKey) -> float | None:
        """Returns the share of rows in host memory that the device caches; None without any."""
        if not key.kernel.on_host:
            return None
        places = () if _REACH[key.kind] is Reach.ALL else tuple(range(key.parts))
        return self._plan(key, places).cached_share

    def _make(self, keys: list[CutKey]) -> None:
        """Asks the model for cuts."""
        made = [
            self.scorer.placements.parts(key.table, key.kind, key.parts, self._cached_share(key))
            for key in keys
        ]
        parts = [features for _, features in made]
        ends = np.cumsum([len(part) for part in parts])[:-1]
        together = np.concatenate(parts).T
        memory = self.scorer.memory_bytes(together)[None]
        loads = np.concatenate((self.scorer.rank_loads(together), memory))
        costs = np.split(loads.T, ends)
        terms = np.split(np.concatenate((self.scorer.rank_terms(together), memory)).T, ends)
        first = len(self.part_features)
        self.part_features = _below(self.part_features, together.T)
        self.part_costs = _below(self.part_costs, loads.T)
        for index, key in enumerate(keys):
            self._ids[key] = len(self.cuts)
            allowed = self._allowed(key)
            self.cuts.append(
                Cut(
                    key=key,
                    reach=_REACH[key.kind],
                    group_bit=made[index][0],
                    features=parts[index],
                    costs=costs[index],
                    terms=terms[index],
                    first=first,
                    rows=np.arange(first, first + len(parts[index])),
                    allowed=allowed,
                    anywhere=bool(allowed.all()),
                )
            )
            first += len(parts[index])


def _below(rows: NDArray[np.float64], more: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns rows with more of them below; the first ones say how many columns there are."""
    return np.concatenate((rows, more)) if len(rows) else np.ascontiguousarray(more)


def may_use_host(request: PlanningRequest) -> bool:
    """Returns whether some table may be in host memory."""
    return request.allow_uvm or any(
        kernel.on_host
        for constraint in request.constraints
        for kernel in constraint.allowed_kernels or ()
    )


def worth_copying(request: PlanningRequest, table: int) -> bool:
    """Returns whether a table is so small that a copy of it on every rank may pay."""
    chosen = request.tables[table]
    size_bytes = stored_bytes(chosen, request.optimizer, chosen.rows, chosen.dim)
    return size_bytes <= _COPIED_MEMORY_SHARE * request.embedding_memory_bytes
