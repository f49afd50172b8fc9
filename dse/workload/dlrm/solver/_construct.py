"""First plans from the predicted cost of parts: the largest first, each where it hurts least.

Tables of which any load (or the size) is more than a share of a rank's mean are cut before: into
columns where that helps, else into rows over a node or over all ranks. Which share is best depends
on the model, so several are tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ComputeKernel, ShardingType
from dse.workload.dlrm.solver._assignment import Assignment
from dse.workload.dlrm.solver._catalogue import Reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._catalogue import Catalogue, CutKey

#: A share that no table reaches: its cost alone is no reason to cut it.
ANY_SHARE = 1e9

#: Largest part of a table as a share of a rank's mean cost, in the plans that are made.
CUT_SHARES = (ANY_SHARE, 1.0, 0.5, 0.25)

#: Largest part of a table as a share of a rank's memory.
MEMORY_SHARE = 0.5

#: The same in the plan that is made for memory alone.
_TIGHT_MEMORY_SHARE = 0.2

_RANK_TYPES = (
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
)


#: Types that spread the indices of a table over ranks as well, in order of preference.
_ROW_TYPES = (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD, ShardingType.ROW_WISE)


#: Kernels in order of preference, the fastest first.
_KERNELS = (
    ComputeKernel.FUSED,
    ComputeKernel.DENSE,
    ComputeKernel.FUSED_UVM_CACHING,
    ComputeKernel.FUSED_UVM,
)


def in_order(keys: list[CutKey]) -> list[CutKey]:
    """Returns cuts in the order in which they are tried; copies on every rank are none of them."""
    order = (*_RANK_TYPES, *_ROW_TYPES)
    kept = [key for key in keys if key.kind in order]
    # Host memory is for tables that may be nowhere else: which others to put there, the baselines
    # and linear programs know.
    kept = [key for key in kept if not key.kernel.on_host] or kept
    return sorted(kept, key=lambda key: (_KERNELS.index(key.kernel), order.index(key.kind)))


class Constructor:
    """Makes plans from a catalogue.

    Args:
        catalogue: The cuts.
        fallback: A plan whose cuts are used for tables that may only be copied to every rank.
        weights: Seconds that one more unit of each load costs; shape `(loads,)`.
        memory_bytes: What a rank may hold.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        fallback: Assignment,
        weights: NDArray[np.float64],
        memory_bytes: float,
    ) -> None:
        self._catalogue = catalogue
        self._fallback = fallback
        self._weights = weights
        self._limit = memory_bytes
        self._free = memory_bytes - catalogue.scorer.memory_bytes_without_tables

    def plans(self) -> list[Assignment]:
        """Returns plans for several shares, and one that looks at memory alone."""
        made = [
            self._place(self._cuts(share, MEMORY_SHARE, by_rows=by_rows), by_bytes=False)
            for by_rows in (False, True)
            for share in CUT_SHARES
        ]
        tight = self._cuts(ANY_SHARE, _TIGHT_MEMORY_SHARE, by_rows=True)
        made.append(self._place(tight, by_bytes=True))
        return list(dict.fromkeys(made))

    def placed(self, keys: Sequence[CutKey]) -> Assignment:
        """Returns a plan of given cuts, one for each table."""
        return self._place(self._catalogue.ids(keys), by_bytes=False)

    def _cuts(self, cost_share: float, memory_share: float, *, by_rows: bool) -> list[int]:
        """Returns for every table the coarsest cut whose parts are small enough.

        Where no cut is, the one whose parts are smallest; without `by_rows` a table is cut into
        rows only when its bytes ask for it.
        """
        catalogue = self._catalogue
        tables = range(len(catalogue.request.tables))
        offered = [in_order(catalogue.keys_of(table)) for table in tables]
        chosen = catalogue.ids(
            keys[0] if keys else catalogue.cuts[self._fallback.cuts[table]].key
            for table, keys in enumerate(offered)
        )
        sums = np.sum([self._sums(cut) for cut in chosen], axis=0)
        limits = cost_share * sums / catalogue.request.world_size
        limits[:-1][self._weights <= 0] = np.inf
        limits[-1] = memory_share * max(0.0, self._free)
        large = [table for table in tables if self._excess(chosen[table], limits) > 1.0]
        catalogue.ids(key for table in large for key in offered[table])
        for table in large:
            numbers = catalogue.ids(offered[table])
            excess = [self._excess(number, limits) for number in numbers]
            small = [number for number, over in zip(numbers, excess, strict=True) if over <= 1.0]
            if small:
                chosen[table] = small[0]
                continue
            kept = [
                place
                for place, number in enumerate(numbers)
                if by_rows or catalogue.cuts[number].reach is Reach.RANK
            ]
            fits = [
                place
                for place in kept
                if catalogue.cuts[numbers[place]].costs[:, -1].max() <= limits[-1]
            ]
            # Column pieces that fit the memory, or else whatever is smallest.
            usable = fits or range(len(numbers))
            if usable:
                chosen[table] = numbers[min(usable, key=excess.__getitem__)]
        return chosen

    def _sums(self, cut: int) -> NDArray[np.float64]:
        """Returns the loads and bytes of a whole table, over all ranks it reaches."""
        found, request = self._catalogue.cuts[cut], self._catalogue.request
        reached = {Reach.RANK: 1, Reach.NODE: request.local_size, Reach.ALL: request.world_size}
        return np.asarray(found.costs.sum(axis=0) * reached[found.reach])

    def _excess(self, cut: int, limits: NDArray[np.float64]) -> float:
        """Returns the largest part of a cut as a share of the limits; at most 1 is small."""
        largest = self._catalogue.cuts[cut].costs.max(axis=0)
        counted = largest > 0
        return float((largest[counted] / np.maximum(limits[counted], 1e-300)).max(initial=0.0))

    def _cost(self, cut: int) -> NDArray[np.float64]:
        costs = self._catalogue.cuts[cut].costs
        return np.asarray(costs[:, :-1] @ self._weights)

    def _place(self, cuts: list[int], *, by_bytes: bool) -> Assignment:
        """Deals the parts out, largest first."""
        catalogue, request = self._catalogue, self._catalogue.request
        total = np.zeros((len(self._weights) + 1, request.world_size))
        total[-1] = catalogue.scorer.memory_bytes_without_tables
        places: list[tuple[int, ...]] = []
        parts: list[tuple[float, int, int]] = []
        for table, number in enumerate(cuts):
            cut = catalogue.cuts[number]
            places.append((0,) * cut.key.parts)
            if cut.reach is not Reach.RANK:
                places[table] = self._nodes(total, number)
                self._book(total, number, places[table])
                continue
            sizes = cut.costs[:, -1] if by_bytes else self._cost(number)
            parts += [(-float(size), table, offset) for offset, size in enumerate(sizes)]
        nodes = np.arange(request.world_size) // request.devices_per_node
        chosen: dict[int, list[int]] = {}
        for _, table, offset in sorted(parts):
            cut = catalogue.cuts[cuts[table]]
            taken = chosen.setdefault(table, [-1] * cut.key.parts)
            free = np.ones(request.world_size, dtype=bool)
            used = [rank for rank in taken if rank >= 0]
            free[used] = False
            free &= cut.allowed
            if used and cut.key.kind is ShardingType.TABLE_COLUMN_WISE:
                free &= nodes == nodes[used[0]]
            rank = self._best_rank(total, cut.costs[offset], free, by_bytes=by_bytes)
            taken[offset] = rank
            total[:, rank] += cut.costs[offset]
        for table, ranks in chosen.items():
            places[table] = tuple(ranks)
        return Assignment(tuple(cuts), tuple(places))

    def _best_rank(
        self,
        total: NDArray[np.float64],
        costs: NDArray[np.float64],
        free: NDArray[np.bool_],
        *,
        by_bytes: bool,
    ) -> int:
        room = free & (total[-1] + costs[-1] <= self._limit)
        if by_bytes or not room.any():
            return int(np.argmin(np.where(free, total[-1], np.inf)))
        after = total[:-1] + costs[:-1, None]
        largest = np.maximum(after, total[:-1].max(axis=1, keepdims=True))
        value = self._weights @ largest
        # Among ranks that do not become the largest, the one that is least loaded.
        value += 1e-3 * (self._weights @ after)
        return int(np.argmin(np.where(room, value, np.inf)))

    def _nodes(self, total: NDArray[np.float64], number: int) -> tuple[int, ...]:
        """Returns the least loaded nodes for a cut that reaches whole nodes."""
        cut, request = self._catalogue.cuts[number], self._catalogue.request
        if cut.reach is Reach.ALL:
            return ()
        by_node = (self._weights @ total[:-1]).reshape(request.node_count, -1).sum(axis=1)
        order = np.argsort(by_node, kind="stable")
        return tuple(order[cut.allowed[order]][: cut.key.parts].tolist())

    def _book(self, total: NDArray[np.float64], number: int, places: tuple[int, ...]) -> None:
        cut, request = self._catalogue.cuts[number], self._catalogue.request
        if cut.reach is Reach.ALL:
            total += cut.costs[0][:, None]
            return
        for node, costs in zip(places, cut.costs, strict=True):
            start = node * request.devices_per_node
            total[:, start : start + request.local_size] += costs[:, None]
