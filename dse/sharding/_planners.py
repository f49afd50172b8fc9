"""Baseline planners: what teams use before they have a performance model.

Each one sorts the tables by a cost computed from the table alone and gives the next one to the
least loaded rank that still has room (TPDS'24's baselines; *random* draws the rank). A table that
does not fit a rank in one piece is cut by the first allowed sharding type that makes it fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.sharding._pieces import column_widths, row_blocks
from dse.sharding._plan import ComputeKernel, ShardingPlan, ShardingType, TablePlan

if TYPE_CHECKING:
    from dse.workloads import EmbeddingTable, Optimizer

TableCost = Callable[["EmbeddingTable"], float]

#: Types in the order in which they are tried for a table that does not fit a rank whole.
_PREFERENCE = (
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.TABLE_ROW_WISE,
    ShardingType.GRID_SHARD,
    ShardingType.ROW_WISE,
    ShardingType.DATA_PARALLEL,
)

#: Narrowest column piece that is worth a lookup of its own.
MIN_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class PlanningRequest:
    """What a planner has to place, and where.

    Attributes:
        tables: The model's tables.
        optimizer: Update rule of the tables; its state takes memory beside the weights.
        world_size: Ranks.
        devices_per_node: Ranks of a full node.
        allowed_types: Sharding types that may be used.
        embedding_memory_bytes: Memory of one rank that weights and state may take.
        seed: For planners that draw.
    """

    tables: tuple[EmbeddingTable, ...]
    optimizer: Optimizer
    world_size: int
    devices_per_node: int
    allowed_types: frozenset[ShardingType]
    embedding_memory_bytes: float
    seed: int = 0

    @property
    def local_size(self) -> int:
        """Ranks on one node."""
        return min(self.world_size, self.devices_per_node)

    @property
    def node_count(self) -> int:
        """Nodes that the ranks occupy."""
        return math.ceil(self.world_size / self.devices_per_node)


def stored_bytes(table: EmbeddingTable, optimizer: Optimizer, rows: int, columns: int) -> float:
    """Returns the bytes of weights and optimizer state of a piece of a table."""
    state_values = optimizer.state_values_per_row(columns)
    return rows * (columns * table.data_type.value_bytes + 4.0 * state_values)


def plan_greedily(
    request: PlanningRequest, cost: TableCost, rng: np.random.Generator | None = None
) -> ShardingPlan:
    """Places tables in order of falling cost, each piece on the least loaded rank with room.

    Args:
        request: What to place.
        cost: Load of a whole table; a piece carries its share.
        rng: Draws the rank (among those with room) instead of taking the least loaded one.
    """
    state = _Loads(request, rng)
    order = sorted(
        range(len(request.tables)),
        key=lambda index: (-cost(request.tables[index]), request.tables[index].name),
    )
    placements: dict[int, TablePlan] = {}
    for index in order:
        table = request.tables[index]
        kind, pieces = choose_cut(table, request)
        placements[index] = state.place(table, kind, pieces, cost(table))
    tables = tuple(placements[index] for index in range(len(request.tables)))
    return ShardingPlan(request.world_size, tables)


def choose_cut(table: EmbeddingTable, request: PlanningRequest) -> tuple[ShardingType, int]:
    """Returns the first allowed type, and its number of column pieces, that fits one rank.

    When none fits, the one with the smallest piece is returned: the memory check then says by how
    much it fails.
    """
    smallest: tuple[float, ShardingType, int] | None = None
    for kind in _PREFERENCE:
        if kind not in request.allowed_types:
            continue
        for pieces in column_piece_counts(kind, table, request):
            size_bytes = _largest_piece_bytes(table, kind, pieces, request)
            # Half of a rank at most, so that one table does not decide the whole plan.
            if size_bytes <= 0.5 * request.embedding_memory_bytes:
                return kind, pieces
            if smallest is None or size_bytes < smallest[0]:
                smallest = (size_bytes, kind, pieces)
    if smallest is None:
        raise ValueError("no sharding type is allowed")
    return smallest[1], smallest[2]


def column_piece_counts(
    kind: ShardingType, table: EmbeddingTable, request: PlanningRequest
) -> tuple[int, ...]:
    """Returns the numbers of column pieces worth trying for a type, fewest first."""
    limits = {
        ShardingType.COLUMN_WISE: request.world_size,
        ShardingType.TABLE_COLUMN_WISE: request.local_size,
        ShardingType.GRID_SHARD: request.node_count,
    }
    if kind not in limits:
        return (1,)
    limit = min(limits[kind], max(1, table.dim // MIN_COLUMNS))
    counts = [2**power for power in range(1, 11) if 2**power <= limit]
    return tuple(counts) or (1,)


def _largest_piece_bytes(
    table: EmbeddingTable, kind: ShardingType, pieces: int, request: PlanningRequest
) -> float:
    rows, columns = table.rows, max(column_widths(table.dim, pieces))
    if kind is ShardingType.ROW_WISE:
        rows = max(row_blocks(rows, request.world_size))
    elif kind in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD):
        rows = max(row_blocks(rows, request.local_size))
    return stored_bytes(table, request.optimizer, rows, columns)


class _Loads:
    """Load and free memory of every rank while a plan is being made."""

    def __init__(self, request: PlanningRequest, rng: np.random.Generator | None) -> None:
        self._request = request
        self._rng = rng
        self._load = np.zeros(request.world_size)
        self._free_bytes = np.full(request.world_size, request.embedding_memory_bytes)

    def place(
        self, table: EmbeddingTable, kind: ShardingType, pieces: int, cost: float
    ) -> TablePlan:
        """Gives the table's pieces to ranks and books their load and memory."""
        request = self._request
        size_bytes = _largest_piece_bytes(table, kind, pieces, request)
        kernel = ComputeKernel.FUSED
        everyone = tuple(range(request.world_size))
        if kind is ShardingType.DATA_PARALLEL:
            kernel = ComputeKernel.DENSE
            ranks = everyone
        elif kind is ShardingType.ROW_WISE:
            ranks = everyone
        elif kind in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD):
            nodes = self._choose(self._by_node(), size_bytes, pieces)
            ranks = tuple(rank for node in nodes for rank in self._ranks_of(node))
        elif kind is ShardingType.TABLE_COLUMN_WISE:
            node = self._choose(self._by_node(), size_bytes, 1)[0]
            local = np.array(self._ranks_of(node))
            chosen = self._choose((self._load[local], self._free_bytes[local]), size_bytes, pieces)
            ranks = tuple(int(local[index]) for index in chosen)
        else:
            ranks = self._choose((self._load, self._free_bytes), size_bytes, pieces)
        for rank in ranks:
            self._load[rank] += cost / len(ranks)
            self._free_bytes[rank] -= size_bytes
        return TablePlan(table.name, kind, ranks, kernel)

    def _ranks_of(self, node: int) -> range:
        start = node * self._request.devices_per_node
        return range(start, start + self._request.local_size)

    def _by_node(self) -> tuple[np.ndarray, np.ndarray]:
        shape = (self._request.node_count, self._request.local_size)
        return self._load.reshape(shape).sum(axis=1), self._free_bytes.reshape(shape).min(axis=1)

    def _choose(
        self, places: tuple[np.ndarray, np.ndarray], size_bytes: float, count: int
    ) -> tuple[int, ...]:
        """Picks `count` places, different ones as long as there are enough."""
        load, free_bytes = places[0].copy(), places[1].copy()
        step = max(1.0, float(load.max(initial=0.0)))
        chosen: list[int] = []
        for _ in range(count):
            room = free_bytes >= size_bytes
            if not room.any():
                index = int(np.argmax(free_bytes))
            elif self._rng is not None:
                index = int(self._rng.choice(np.flatnonzero(room)))
            else:
                index = int(np.argmin(np.where(room, load, np.inf)))
            chosen.append(index)
            load[index] += step
            free_bytes[index] -= size_bytes
        return tuple(chosen)


def _size(table: EmbeddingTable) -> float:
    return float(table.rows * table.dim)


def _lookup(table: EmbeddingTable) -> float:
    return table.lookups_per_sample * table.dim


def _size_lookup(table: EmbeddingTable) -> float:
    return _lookup(table) * math.log10(max(10, table.rows))


def _dim(table: EmbeddingTable) -> float:
    return float(table.dim * table.feature_count)


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
