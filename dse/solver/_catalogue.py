"""The ways in which tables may be cut, with what every part of a cut costs its rank.

A cut says nothing of places: the same cut on other ranks has the same parts. So features are asked
once for a cut, and the search moves parts around without asking the model for each place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.sharding import ComputeKernel, ShardingType, TablePlan, column_piece_counts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from dse.prediction import PlanScorer
    from dse.sharding import PlanningRequest

#: Cuts whose features are expanded at once, times ranks; bounds memory.
_CHUNK_RANKS = 32_768


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
    """

    key: CutKey
    reach: Reach
    group_bit: int
    features: NDArray[np.float64]
    costs: NDArray[np.float64]
    terms: NDArray[np.float64]


class Catalogue:
    """Cuts of one problem, made when they are first asked for.

    Args:
        scorer: The performance model.
        request: What may be placed where.
    """

    def __init__(self, scorer: PlanScorer, request: PlanningRequest) -> None:
        self.scorer = scorer
        self.request = request
        self.cuts: list[Cut] = []
        self._ids: dict[CutKey, int] = {}

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
        request = self.request
        allowed = request.allowed_types
        keys = []
        for kind in ShardingType:
            if kind not in allowed:
                continue
            twin = _ONE_NODE_TWINS.get(kind)
            if request.node_count == 1 and twin in allowed:
                continue
            replicated = kind is ShardingType.DATA_PARALLEL
            kernel = ComputeKernel.DENSE if replicated else ComputeKernel.FUSED
            counts = column_piece_counts(kind, request.tables[table], request)
            keys += [CutKey(table, kind, parts, kernel) for parts in counts]
        return keys

    def plan(self, cut: int, places: tuple[int, ...]) -> TablePlan:
        """Returns the placement of a cut's parts; `places` are ranks or nodes, as it reaches."""
        key = self.cuts[cut].key
        return TablePlan(
            self.request.tables[key.table].name,
            key.kind,
            self._ranks(self.cuts[cut].reach, places),
            key.kernel,
        )

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

    def _make(self, keys: list[CutKey]) -> None:
        """Asks the model for cuts on places that show every part alone on a rank."""
        placements = self.scorer.placements
        request = self.request
        options = []
        for key in keys:
            reach = _REACH[key.kind]
            places = () if reach is Reach.ALL else tuple(range(key.parts))
            ranks = self._ranks(reach, places)
            name = request.tables[key.table].name
            plan = TablePlan(name, key.kind, ranks, key.kernel)
            options.append(placements.option(key.table, plan))
        column = np.array(options, dtype=np.int64)[:, None]
        features = placements.features(column)
        layouts = placements.layouts(column)
        parts = []
        for index, key in enumerate(keys):
            # All ranks that one part reaches carry the same: the first one stands for them.
            step = request.devices_per_node if _REACH[key.kind] is Reach.NODE else 1
            parts.append(features[:, : key.parts * step : step, index].T)
        ends = np.cumsum([len(part) for part in parts])[:-1]
        together = np.concatenate(parts).T
        memory = self.scorer.memory_bytes(together)[None]
        loads = np.concatenate((self.scorer.rank_loads(together), memory))
        costs = np.split(loads.T, ends)
        terms = np.split(np.concatenate((self.scorer.rank_terms(together), memory)).T, ends)
        for index, key in enumerate(keys):
            self._ids[key] = len(self.cuts)
            self.cuts.append(
                Cut(
                    key=key,
                    reach=_REACH[key.kind],
                    group_bit=int(layouts[index]),
                    features=np.ascontiguousarray(parts[index]),
                    costs=costs[index],
                    terms=terms[index],
                )
            )
