"""Many first plans at once: which tables are copied to every rank, how finely the others are cut.

An exchange group that pays only once several tables are in it is out of reach of a search that
changes one table after the other. So small tables are copied to every rank in growing numbers, and
for each number the others are cut at several shares and dealt out, the largest first, each where
it hurts least: the rules of :mod:`_construct`, for all plans in the same step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ShardingType
from dse.workload.dlrm.solver._assignment import Assignment
from dse.workload.dlrm.solver._catalogue import Reach, worth_copying
from dse.workload.dlrm.solver._construct import ANY_SHARE, MEMORY_SHARE, in_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._catalogue import Catalogue

#: How many of the tables that may be copied are, as shares of all of them.
_COPIED_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

#: Largest part of a table as a share of a rank's mean cost.
_CUT_SHARES = (ANY_SHARE, 4.0, 2.0, 1.0, 0.5, 0.25)

#: Weight of all loads beside the largest: tells ranks apart that do not become the largest.
_EVEN_WEIGHT = 1e-3

#: More than any load costs.
_NO_ROOM = 1e200


class Portfolio:
    """Makes plans of a catalogue, many in one go.

    Args:
        catalogue: The cuts.
        fallback: A plan whose cuts are used for tables that may only be copied to every rank.
        memory_bytes: What a rank may hold.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        fallback: Assignment,
        memory_bytes: float,
    ) -> None:
        self._catalogue = catalogue
        self._limit = memory_bytes
        request = catalogue.request
        tables = range(len(request.tables))
        offered = [
            in_order(catalogue.keys_of(table)) or [catalogue.cuts[fallback.cuts[table]].key]
            for table in tables
        ]
        numbers = iter(catalogue.ids(key for keys in offered for key in keys))
        self._offered = np.full((len(offered), max(len(keys) for keys in offered)), -1)
        for table, keys in enumerate(offered):
            self._offered[table, : len(keys)] = [next(numbers) for _ in keys]
        self._copied = self._copies()
        cuts = catalogue.cuts
        self._largest = np.array([cut.costs.max(axis=0) for cut in cuts])
        reached = {Reach.RANK: 1, Reach.NODE: request.local_size, Reach.ALL: request.world_size}
        self._sums = np.array([cut.costs.sum(axis=0) * reached[cut.reach] for cut in cuts])
        self._on_ranks = np.array([cut.reach is Reach.RANK for cut in cuts])
        self._is_offered = self._offered >= 0
        self._is_offered_whole = self._is_offered & self._on_ranks[self._offered]
        self._offered_bytes = self._largest[self._offered, -1]

    def _copies(self) -> list[tuple[int, int]]:
        """Returns tables worth copying and the cut that does, those that exchange most first."""
        catalogue, request = self._catalogue, self._catalogue.request
        keys = [
            key
            for table in range(len(request.tables))
            if worth_copying(request, table)
            for key in catalogue.keys_of(table)
            if key.kind is ShardingType.DATA_PARALLEL
        ]
        # A copy takes the exchange of all its rows instead of that of its pooled vectors.
        keys.sort(
            key=lambda key: (
                request.tables[key.table].rows / request.tables[key.table].feature_count
            )
        )
        return list(zip((key.table for key in keys), catalogue.ids(keys), strict=True))

    def plans(self, weights: NDArray[np.float64]) -> list[Assignment]:
        """Returns different plans.

        Args:
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
        """
        cuts = list(dict.fromkeys(self._all_cuts(weights)))
        return self._placed(np.array(cuts), weights)

    def _all_cuts(self, weights: NDArray[np.float64]) -> Iterator[tuple[int, ...]]:
        """Yields a cut for each table, for every number of copied tables and every share."""
        world_size = self._catalogue.request.world_size
        free = max(0.0, self._limit - self._catalogue.scorer.memory_bytes_without_tables)
        counts = sorted({round(share * len(self._copied)) for share in _COPIED_SHARES})
        coarsest = self._offered[:, 0]
        for count in counts:
            others = np.ones(len(coarsest), dtype=bool)
            others[[table for table, _ in self._copied[:count]]] = False
            sums = self._sums[coarsest[others]].sum(axis=0)
            for share in _CUT_SHARES:
                limits = share * sums / world_size
                limits[:-1][weights <= 0] = np.inf
                limits[-1] = MEMORY_SHARE * free
                for by_rows in (False, True):
                    chosen = self._small_enough(limits, by_rows=by_rows)
                    for table, number in self._copied[:count]:
                        chosen[table] = number
                    yield tuple(chosen.tolist())

    def _small_enough(self, limits: NDArray[np.float64], *, by_rows: bool) -> NDArray[np.int64]:
        """Returns for every table the coarsest cut whose parts are within the limits.

        Where no cut is, the one whose parts are smallest; without `by_rows` a table is cut into
        rows only when its bytes ask for it.
        """
        # Nothing is a share of zero whatever the limit.
        shares = (self._largest / np.maximum(limits, 1e-300)).max(axis=1)
        excess = np.where(self._is_offered, shares[self._offered], np.inf)
        small = excess <= 1.0
        kept = self._is_offered if by_rows else self._is_offered_whole
        fits = kept & (self._offered_bytes <= limits[-1])
        usable = np.where(fits.any(axis=1)[:, None], fits, True)
        smallest = np.where(usable, excess, np.inf).argmin(axis=1)
        place = np.where(small.any(axis=1), small.argmax(axis=1), smallest)
        return np.asarray(self._offered[np.arange(len(place)), place])

    def _placed(self, cuts: NDArray[np.int64], weights: NDArray[np.float64]) -> list[Assignment]:
        """Deals the parts of all plans out.

        All parts of a table cost about the same, so they go to the best ranks in one step.

        Args:
            cuts: Numbers of cuts; shape `(plans, tables)`.
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
        """
        catalogue, request = self._catalogue, self._catalogue.request
        plans, tables = cuts.shape
        every = np.arange(plans)
        known, at = np.unique(cuts, return_inverse=True)
        at = at.reshape(cuts.shape)
        used = [catalogue.cuts[number] for number in known.tolist()]
        costs = self._largest[known]
        parts = np.array([cut.key.parts for cut in used])
        moves = np.array([cut.reach is Reach.RANK for cut in used])
        stays = np.array([cut.key.kind is ShardingType.TABLE_COLUMN_WISE for cut in used])
        allowed = np.array(
            [
                cut.allowed if cut.reach is Reach.RANK else np.ones(request.world_size, dtype=bool)
                for cut in used
            ]
        )
        total = np.zeros((plans, costs.shape[1], request.world_size))
        total[:, -1] = catalogue.scorer.memory_bytes_without_tables
        places: list[list[tuple[int, ...]]] = [[()] * tables for _ in range(plans)]
        self._book_nodes(cuts, total, places, weights)
        size = np.where(moves, costs[:, :-1] @ weights, -np.inf)[at]
        order = np.argsort(-size, axis=1, kind="stable")
        nodes = np.arange(request.world_size) // request.devices_per_node
        for step in range(int(moves[at].sum(axis=1).max(initial=0))):
            table = order[:, step]
            cut = at[every, table]
            cost = np.where(moves[cut, None], costs[cut], 0.0)
            room = allowed[cut] & (total[:, -1] + cost[:, -1, None] <= self._limit)
            after = total[:, :-1] + cost[:, :-1, None]
            largest = np.maximum(after, total[:, :-1].max(axis=2, keepdims=True))
            value = weights @ (largest + _EVEN_WEIGHT * after)
            # Ranks without room come last, those that hold the fewest bytes first.
            value = np.where(room, value, _NO_ROOM * (1.0 + total[:, -1] / self._limit))
            value[~allowed[cut]] = np.inf
            if stays.any():
                home = nodes[value.argmin(axis=1)]
                value[stays[cut, None] & (nodes != home[:, None])] = np.inf
            ranked = np.argsort(value, axis=1, kind="stable")
            taken = np.zeros(value.shape, dtype=bool)
            taken[every[:, None], ranked] = np.arange(value.shape[1]) < parts[cut, None]
            total += cost[:, :, None] * taken[:, None, :]
            for plan, row in enumerate(ranked.tolist()):
                if moves[cut[plan]]:
                    places[plan][table[plan]] = tuple(row[: parts[cut[plan]]])
        return [
            Assignment(tuple(row), tuple(where))
            for row, where in zip(cuts.tolist(), places, strict=True)
        ]

    def _book_nodes(
        self,
        cuts: NDArray[np.int64],
        total: NDArray[np.float64],
        places: list[list[tuple[int, ...]]],
        weights: NDArray[np.float64],
    ) -> None:
        """Puts parts that fill nodes on the least loaded ones, and those that fill all ranks."""
        catalogue, request = self._catalogue, self._catalogue.request
        everywhere = np.array([cut.reach is Reach.ALL for cut in catalogue.cuts])
        some_on_nodes = ~(self._on_ranks | everywhere)[cuts].all(axis=1)
        for plan, row in enumerate(cuts.tolist()):
            if not some_on_nodes[plan]:
                numbers = [number for number in row if everywhere[number]]
                if numbers:
                    first = [catalogue.cuts[number].first for number in numbers]
                    total[plan] += catalogue.part_costs[first].sum(axis=0)[:, None]
                continue
            held = np.zeros((request.node_count, total.shape[1]))
            busy = [0.0] * request.node_count
            for table, number in enumerate(row):
                if self._on_ranks[number]:
                    continue
                cut = catalogue.cuts[number]
                if cut.reach is Reach.ALL:
                    held += cut.costs[0]
                    continue
                order = sorted(range(request.node_count), key=busy.__getitem__)
                chosen = [node for node in order if cut.allowed[node]][: cut.key.parts]
                for node, costs in zip(chosen, cut.costs, strict=True):
                    held[node] += costs
                    busy[node] += float(weights @ costs[:-1])
                places[plan][table] = tuple(chosen)
            total[plan] += np.repeat(held.T, request.local_size, axis=1)
