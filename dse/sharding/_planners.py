"""Baseline planners, as used without a performance model.

Each one sorts the tables by a cost computed from the table alone, and places the next one on the
least loaded rank with room (the baselines of TPDS'24; *random* draws the rank). A table too large
for one rank is cut by the first allowed sharding type that makes it fit. If allowed, tables for
which the devices have no room go to host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.sharding._plan import ComputeKernel, ShardingPlan, ShardingType
from dse.sharding._shards import column_widths, row_blocks, shard_storage, stored_bytes
from dse.sharding.constraints import placements_allowed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.model import EmbeddingTable
    from dse.sharding._plan import TablePlan
    from dse.sharding.constraints import AllowedPlacement, PlanningRequest

TableCost = Callable[["EmbeddingTable"], float]


def plan_greedily(
    request: PlanningRequest,
    cost: TableCost,
    rng: np.random.Generator | None = None,
    *,
    cuts: Sequence[Cut] | None = None,
) -> ShardingPlan:
    """Places tables by falling cost, each shard on the least loaded rank with room.

    Args:
        request: What to place.
        cost: Load of a whole table; a shard carries its share.
        rng: Draws the rank among those with room, instead of the least loaded one.
        cuts: How each table is cut, if already decided.
    """
    state = _Loads(request, rng)
    order = sorted(
        range(len(request.tables)),
        key=lambda index: (-cost(request.tables[index]), request.tables[index].name),
    )
    choices = _all_cuts(request) if cuts is None else tuple((cut,) for cut in cuts)
    placements: dict[int, TablePlan] = {}
    for index in order:
        table = request.tables[index]
        placements[index] = state.place(table, choices[index], cost(table))
    tables = tuple(placements[index] for index in range(len(request.tables)))
    return ShardingPlan(request.world_size, tables)


@dataclass(frozen=True, slots=True)
class Cut:
    """How one table is cut, with its ranks still open.

    Attributes:
        placement: Type, kernel and where shards may go.
        shards: Column shards.
        largest_bytes: Device memory of the largest shard.
    """

    placement: AllowedPlacement
    shards: int
    largest_bytes: float


@lru_cache(maxsize=2)
def _all_cuts(request: PlanningRequest) -> tuple[tuple[Cut, ...], ...]:
    """Returns the cuts of every table to try; all planners use the same request."""
    return tuple(choose_cut(table, request) for table in range(len(request.tables)))


def choose_cut(table_index: int, request: PlanningRequest) -> tuple[Cut, ...]:
    """Returns the cuts of a table to try, one for each kernel; rows on the device come first.

    It is the first allowed type, and number of column shards, whose shards fit a rank. If none
    fits, it is the one with the smallest shards: the memory check then reports the overflow.
    """
    cuts: dict[ComputeKernel, Cut] = {}
    settled: set[ComputeKernel] = set()
    for placement in placements_allowed(table_index, request):
        # Copies on every rank also keep rows on the device.
        kernel = placement.compute_kernel
        kernel = ComputeKernel.FUSED if kernel is ComputeKernel.DENSE else kernel
        for shards in placement.column_shards:
            if kernel in settled:
                break
            size_bytes = largest_shard_bytes(
                request.tables[table_index], placement, shards, request
            )
            cut = Cut(placement, shards, size_bytes)
            # At most half of a rank, so that one table does not decide the whole plan.
            if size_bytes <= 0.5 * request.embedding_memory_bytes:
                settled.add(kernel)
                cuts[kernel] = cut
            elif kernel not in cuts or size_bytes < cuts[kernel].largest_bytes:
                cuts[kernel] = cut
    order = (ComputeKernel.FUSED, ComputeKernel.FUSED_UVM_CACHING, ComputeKernel.FUSED_UVM)
    return tuple(cuts[kernel] for kernel in order if kernel in cuts)


def largest_shard_bytes(
    table: EmbeddingTable, placement: AllowedPlacement, shards: int, request: PlanningRequest
) -> float:
    """Returns the device memory of a table's largest shard."""
    rows, columns = table.rows, max(column_widths(table.dim, shards))
    kind = placement.sharding_type
    if kind is ShardingType.ROW_WISE:
        rows = max(row_blocks(rows, request.world_size))
    elif kind in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD):
        rows = max(row_blocks(rows, request.local_size))
    storage = shard_storage(table, request.optimizer, rows, columns, placement.cached_share)
    return storage.device_bytes


class _Loads:
    """Load and free memory of every rank while a plan is being made."""

    def __init__(self, request: PlanningRequest, rng: np.random.Generator | None) -> None:
        self._rng = rng
        self._load = np.zeros(request.world_size)
        self._free_bytes = np.full(request.world_size, request.embedding_memory_bytes)

    def place(self, table: EmbeddingTable, cuts: tuple[Cut, ...], cost: float) -> TablePlan:
        """Places the table's shards and books their load and memory.

        Args:
            table: The table.
            cuts: How it may be cut; the first one whose shards find room is taken, else the last.
            cost: Load of the whole table.
        """
        for cut in cuts:
            ranks = self._ranks_for(cut)
            if cut is cuts[-1]:
                break
            booked = np.bincount(ranks, minlength=len(self._load)) * cut.largest_bytes
            if bool((booked <= self._free_bytes).all()):
                break
        if len(ranks) == 1:
            self._load[ranks[0]] += cost
            self._free_bytes[ranks[0]] -= cut.largest_bytes
        else:
            # A rank may hold several shards.
            every = np.array(ranks)
            np.add.at(self._load, every, cost / len(ranks))
            np.subtract.at(self._free_bytes, every, cut.largest_bytes)
        return cut.placement.on(table.name, ranks)

    def _ranks_for(self, cut: Cut) -> tuple[int, ...]:
        kind, sets, size_bytes = (
            cut.placement.sharding_type,
            cut.placement.rank_sets,
            cut.largest_bytes,
        )
        if kind in (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE):
            return sets[0]
        if kind in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD):
            nodes = self._choose(self._of_sets(sets), size_bytes, cut.shards)
            return tuple(rank for node in nodes for rank in sets[node])
        if kind is ShardingType.TABLE_WISE:
            local, index = _single_ranks(sets)
            load, free_bytes = self._load[index], self._free_bytes[index]
            return (local[self._choose_one(load, free_bytes, size_bytes)],)
        if kind is ShardingType.TABLE_COLUMN_WISE:
            wide = tuple(ranks for ranks in sets if len(ranks) >= cut.shards)
            local = wide[self._choose(self._of_sets(wide), size_bytes, 1)[0]]
        else:
            local = sets[0]
        index = np.array(local)
        chosen = self._choose((self._load[index], self._free_bytes[index]), size_bytes, cut.shards)
        return tuple(local[place] for place in chosen)

    def _of_sets(self, sets: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
        members = [np.array(ranks) for ranks in sets]
        return (
            np.array([self._load[ranks].sum() for ranks in members]),
            np.array([self._free_bytes[ranks].min() for ranks in members]),
        )

    def _choose(
        self, places: tuple[np.ndarray, np.ndarray], size_bytes: float, count: int
    ) -> tuple[int, ...]:
        """Picks `count` places, distinct as long as there are enough."""
        load, free_bytes = places[0].copy(), places[1].copy()
        step = max(1.0, float(load.max(initial=0.0)))
        chosen: list[int] = []
        for _ in range(count):
            index = self._choose_one(load, free_bytes, size_bytes)
            chosen.append(index)
            load[index] += step
            free_bytes[index] -= size_bytes
        return tuple(chosen)

    def _choose_one(
        self, load: NDArray[np.float64], free_bytes: NDArray[np.float64], size_bytes: float
    ) -> int:
        """Picks the least loaded (or a random) place with room; if none has room, the emptiest."""
        room = free_bytes >= size_bytes
        if not room.any():
            return int(free_bytes.argmax())
        if self._rng is not None:
            with_room = np.flatnonzero(room)
            return int(with_room[self._rng.integers(0, len(with_room))])
        return int(load.argmin() if room.all() else np.where(room, load, np.inf).argmin())


@lru_cache(maxsize=64)
def _single_ranks(sets: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """Returns the ranks of single-rank sets, as numbers and as an index."""
    local = tuple(rank for (rank,) in sets)
    return local, np.array(local)


def _size(table: EmbeddingTable) -> float:
    return float(table.rows * table.dim)


def _lookup(table: EmbeddingTable) -> float:
    return table.lookups_per_sample * table.dim


def _size_lookup(table: EmbeddingTable) -> float:
    return _lookup(table) * math.log10(max(10, table.rows))


def _dim(table: EmbeddingTable) -> float:
    return float(table.dim * table.vectors_per_sample)


def _plan_by(cost: TableCost) -> Callable[[PlanningRequest], ShardingPlan]:
    return lambda request: plan_greedily(request, cost)


def _plan_by_memory(request: PlanningRequest) -> ShardingPlan:
    def cost(table: EmbeddingTable) -> float:
        return stored_bytes(table, request.optimizer, table.rows, table.dim)

    return plan_greedily(request, cost)


def _plan_randomly(request: PlanningRequest) -> ShardingPlan:
    return plan_greedily(request, _size, np.random.default_rng(request.seed))


#: Baseline planners by name. Costs as in the TPDS'24 experiment: *size* rows × dim, *lookup*
#: pooling × dim, *size-lookup* lookup × log10(rows), *dim* output width; *memory-balanced* adds
#: optimizer state to size.
PLANNERS: dict[str, Callable[[PlanningRequest], ShardingPlan]] = {
    "random": _plan_randomly,
    "size_greedy": _plan_by(_size),
    "lookup_greedy": _plan_by(_lookup),
    "size_lookup_greedy": _plan_by(_size_lookup),
    "dim_greedy": _plan_by(_dim),
    "memory_balanced": _plan_by_memory,
}
