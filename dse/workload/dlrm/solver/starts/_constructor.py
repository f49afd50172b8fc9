"""Constructed starts: greedy plans from the predicted cost of shards, many in one batch.

Tables are cut until no shard costs more than some share of a rank's mean, into columns where that
helps, else into rows over a node or over all ranks. Which share is best depends on the model, so
several are tried. Small tables are copied to every rank in growing numbers, because an exchange
group that pays only once several tables are in it is out of reach of a search that changes one
table after another. The shards are then placed, largest first, each where it costs least.

On several nodes tables are also put into tiers: those that look up most are cut by rows over all
ranks, the next ones by rows over nodes, others by columns or not at all, and the smallest are
copied. Within a tier all are cut alike. With about as many shards as ranks, a few more or fewer
decide whether every rank gets the same number, so tables are copied until the number of shards is
a multiple of the number of ranks, or of nodes. A search that changes one table after another does
not get there: until the last table has changed, some rank holds a shard more than the others.
"""

from __future__ import annotations

from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.sharding import ComputeKernel, ShardingType
from dse.workload.dlrm.solver._options import PlacementScope, worth_copying
from dse.workload.dlrm.solver.starts._placing import largest_shards, place_shards

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._options import Cut, CutKey, ShardingOptions
    from dse.workload.dlrm.solver.moves import Assignment

#: How many of the tables that may be copied are, as shares of all of them.
_COPIED_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

#: A share that no table reaches: cost alone is no reason to cut it.
_ANY_SHARE = 1e9

#: Largest shard as a share of a rank's mean cost.
_CUT_SHARES = (_ANY_SHARE, 4.0, 2.0, 1.0, 0.5, 0.25)

#: Largest shard as a share of a rank's memory, and the same in the plan for memory alone.
_MEMORY_SHARE = 0.5
_TIGHT_MEMORY_SHARE = 0.2

#: Cuts of tables over all ranks, over nodes and over single ranks: type and number of shards.
_ALL_CUT = (ShardingType.ROW_WISE, 1)
_NODE_CUTS = (
    (ShardingType.TABLE_ROW_WISE, 1),
    (ShardingType.GRID_SHARD, 2),
    (ShardingType.GRID_SHARD, 4),
)
_RANK_CUTS = (
    (ShardingType.TABLE_WISE, 1),
    (ShardingType.COLUMN_WISE, 2),
    (ShardingType.COLUMN_WISE, 4),
    (ShardingType.COLUMN_WISE, 8),
)

#: Tables times ranks beyond which tiers are tried in large steps only.
_MANY = 5_000

#: Plans that are placed together; the loads of their ranks should stay in the cache.
_TOGETHER = 200

#: Types in order of preference; those that cut rows, and with them a table's lookups, come last.
_TYPES = (
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.TABLE_ROW_WISE,
    ShardingType.GRID_SHARD,
    ShardingType.ROW_WISE,
)

#: Kernels in order of preference, fastest first.
_KERNELS = (
    ComputeKernel.FUSED,
    ComputeKernel.DENSE,
    ComputeKernel.FUSED_UVM_CACHING,
    ComputeKernel.FUSED_UVM,
)


class _Tiers(NamedTuple):
    """Which tiers of tables are tried.

    Attributes:
        on_all: Numbers of tables that are cut by rows over all ranks.
        on_nodes: Shares of the others that are cut by rows over nodes.
        node_cuts: How many cuts over nodes are tried.
        rank_cuts: How many cuts over single ranks are tried.
        counts: Most numbers of copied tables that are tried with each of them.
    """

    on_all: tuple[int, ...]
    on_nodes: tuple[float, ...]
    node_cuts: int
    rank_cuts: int
    counts: int


_FEW_TIERS = _Tiers(on_all=(0, 1), on_nodes=(0.0, 0.3, 1.0), node_cuts=2, rank_cuts=4, counts=4)
_QUICK_TIERS = _Tiers(
    on_all=(0, 1),
    on_nodes=(0.0, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0),
    node_cuts=3,
    rank_cuts=4,
    counts=4,
)
_MANY_TIERS = _Tiers(
    on_all=(0, 1, 2, 3),
    on_nodes=(0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0),
    node_cuts=3,
    rank_cuts=4,
    counts=8,
)


class _Offered(NamedTuple):
    """Cuts that tables may take, coarsest first; they do not include copies on every rank.

    Attributes:
        cuts: Numbers of cuts, -1 beyond the last one; shape `(tables, offered)`.
        exists: Where there is one; shape `(tables, offered)`.
        whole_rows: Those that keep every shard on a single rank; shape `(tables, offered)`.
        largest: Loads and bytes of the largest shard; shape `(tables, offered, loads + 1)`.
        sums: Loads and bytes of the coarsest cut over all its ranks; shape `(tables, loads + 1)`.
    """

    cuts: NDArray[np.int64]
    exists: NDArray[np.bool_]
    whole_rows: NDArray[np.bool_]
    largest: NDArray[np.float64]
    sums: NDArray[np.float64]


class Constructor:
    """Constructs plans.

    Args:
        options: The cuts.
        fallback: A plan whose cuts are used for tables that may only be copied to every rank.
        memory_bytes: What a rank may hold.
    """

    def __init__(
        self, options: ShardingOptions, fallback: Assignment, memory_bytes: float
    ) -> None:
        self._options = options
        self._fallback = fallback
        self._memory_bytes = memory_bytes

    def plans(self, weights: NDArray[np.float64], *, fine: bool = True) -> list[Assignment]:
        """Returns distinct plans.

        Args:
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
            fine: Whether to try tiers of tables in small steps.
        """
        request = self._options.request
        cuts = list(self._all_cuts(weights))
        if request.node_count > 1:
            tiers = _MANY_TIERS if fine else _QUICK_TIERS
            if len(request.tables) * request.world_size > _MANY:
                tiers = _FEW_TIERS
            cuts += self._tiered(weights, tiers)
        plans: list[Assignment] = []
        different = list(dict.fromkeys(cuts))
        for start in range(0, len(different), _TOGETHER):
            together = np.array(different[start : start + _TOGETHER])
            plans += place_shards(self._options, together, weights, self._memory_bytes)
        return list(dict.fromkeys(plans))

    def plan_by_bytes(self) -> Assignment:
        """Returns a plan that balances memory alone, of finely cut tables."""
        weights = np.zeros(self._offered.sums.shape[1] - 1)
        cuts = self._small_enough(self._limits(weights, _ANY_SHARE, _TIGHT_MEMORY_SHARE))
        placed = place_shards(
            self._options, cuts[None], weights, self._memory_bytes, by_bytes=True
        )
        return placed[0]

    def placed(self, keys: Sequence[CutKey], weights: NDArray[np.float64]) -> Assignment:
        """Returns a plan of given cuts.

        Args:
            keys: One cut for each table.
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
        """
        cuts = np.array([self._options.ids(keys)])
        return place_shards(self._options, cuts, weights, self._memory_bytes)[0]

    @cached_property
    def _offered_keys(self) -> list[list[CutKey]]:
        options = self._options
        return [
            _by_preference(options.keys_of(table)) or [options.cuts[number].key]
            for table, number in enumerate(self._fallback.cuts)
        ]

    @cached_property
    def _offered(self) -> _Offered:
        options, keys = self._options, self._offered_keys
        options.ids(key for offered in keys for key in offered)
        numbers = np.full((len(keys), max(len(offered) for offered in keys)), -1)
        for row, offered in zip(numbers, keys, strict=True):
            row[: len(offered)] = options.ids(offered)
        known, place = np.unique(numbers, return_inverse=True)
        # -1 selects the last cut; `exists` masks it.
        cuts = [options.cuts[number] for number in known.tolist()]
        place = place.reshape(numbers.shape)
        exists = numbers >= 0
        on_ranks = np.array([cut.scope is PlacementScope.RANK for cut in cuts])
        return _Offered(
            cuts=numbers,
            exists=exists,
            whole_rows=exists & on_ranks[place],
            largest=largest_shards(cuts)[place],
            sums=np.array([self._sum(cuts[number]) for number in place[:, 0].tolist()]),
        )

    @cached_property
    def _copies(self) -> list[tuple[int, int]]:
        """Tables worth copying with the cut that does, those that exchange most first."""
        options, request = self._options, self._options.request
        keys = [
            key
            for table in range(len(request.tables))
            if worth_copying(request, table)
            for key in options.keys_of(table)
            if key.kind is ShardingType.DATA_PARALLEL
        ]
        # A copy exchanges gradients of all its rows instead of its pooled vectors.
        keys.sort(
            key=lambda key: (
                request.tables[key.table].rows / request.tables[key.table].feature_count
            )
        )
        return list(zip((key.table for key in keys), options.ids(keys), strict=True))

    def _sum(self, cut: Cut) -> NDArray[np.float64]:
        """Returns the loads and bytes of a cut, over all its ranks."""
        request = self._options.request
        ranks = {
            PlacementScope.RANK: 1,
            PlacementScope.NODE: request.local_size,
            PlacementScope.ALL: request.world_size,
        }
        return np.asarray(cut.costs.sum(axis=0) * ranks[cut.scope])

    def _all_cuts(self, weights: NDArray[np.float64]) -> Iterator[tuple[int, ...]]:
        """Yields a cut for each table, for every number of copied tables and every share."""
        counts = sorted({round(share * len(self._copies)) for share in _COPIED_SHARES})
        for count in counts:
            copied = self._copies[:count]
            others = np.ones(len(self._fallback.cuts), dtype=bool)
            others[[table for table, _ in copied]] = False
            for share in _CUT_SHARES:
                limits = self._limits(weights, share, _MEMORY_SHARE, others)
                for by_rows in (False, True):
                    chosen = self._small_enough(limits, by_rows=by_rows)
                    for table, number in copied:
                        chosen[table] = number
                    yield tuple(chosen.tolist())

    def _tiered(self, weights: NDArray[np.float64], tiers: _Tiers) -> Iterator[tuple[int, ...]]:
        """Yields plans whose tables are cut alike within each tier.

        Args:
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
            tiers: What is tried.
        """
        copies = np.array(self._copies, dtype=np.int64).reshape(-1, 2)
        heaviest = np.argsort(-(self._offered.sums[:, :-1] @ weights), kind="stable")
        copied_as = np.full(len(heaviest), len(copies))
        copied_as[copies[:, 0]] = np.arange(len(copies))
        copied_as = copied_as[heaviest]
        cuts_of = {
            kind: self._alike(*kind)
            for kind in (_ALL_CUT, *_NODE_CUTS[: tiers.node_cuts], *_RANK_CUTS[: tiers.rank_cuts])
        }
        for on_all, share, node_cut, rank_cut in product(
            tiers.on_all,
            tiers.on_nodes,
            _NODE_CUTS[: tiers.node_cuts],
            _RANK_CUTS[: tiers.rank_cuts],
        ):
            # Without tables in a tier all its cuts are the same.
            if share == 0.0 and node_cut != _NODE_CUTS[0]:
                continue
            if share == 1.0 and rank_cut != _RANK_CUTS[0]:
                continue
            counts = self._even_counts(on_all, share, node_cut[1], rank_cut[1])
            for count in _thinned(counts, tiers.counts):
                copied = copies[:count]
                others = heaviest[copied_as >= count]
                top, rest = others[:on_all], others[on_all:]
                middle = rest[: round(share * len(rest))]
                cuts = cuts_of[rank_cut].copy()
                cuts[middle] = cuts_of[node_cut][middle]
                cuts[top] = cuts_of[_ALL_CUT][top]
                cuts[copied[:, 0]] = copied[:, 1]
                yield tuple(cuts.tolist())

    def _even_counts(
        self, on_all: int, share: float, node_shards: int, rank_shards: int
    ) -> list[int]:
        """Returns numbers of copies that leave every rank, or node, the same number of shards.

        None of them where all tables are in one tier, and all if no number comes out even.

        Args:
            on_all: Tables that are cut over all ranks.
            share: Share of the others that is cut over nodes.
            node_shards: Shards of each of these.
            rank_shards: Shards of each of the rest.
        """
        request = self._options.request
        alike = not on_all and share in (0.0, 1.0)
        even = [0] if alike else []
        for count in range(1, len(self._copies) + 1):
            rest = max(0, len(self._fallback.cuts) - count - on_all)
            over_nodes = round(share * rest)
            shard_count, places = rank_shards * (rest - over_nodes), request.world_size
            if not shard_count:
                shard_count, places = node_shards * over_nodes, request.node_count
            if shard_count % places == 0:
                even.append(count)
        return even or [len(self._copies)]

    def _alike(self, kind: ShardingType, shards: int) -> NDArray[np.int64]:
        """Returns the cuts of all tables by one type, as far as each allows.

        A table that does not allow it keeps its cut of the baseline plan.

        Args:
            kind: Sharding type.
            shards: Most shards to place.
        """
        chosen = np.array(self._fallback.cuts, dtype=np.int64)
        keys = {}
        for table, offered in enumerate(self._offered_keys):
            fitting = [key for key in offered if key.kind is kind and key.shards <= shards]
            if fitting:
                # The first ones are those of the fastest kernel.
                fastest = [key for key in fitting if key.kernel is fitting[0].kernel]
                keys[table] = max(fastest, key=lambda key: key.shards)
        chosen[list(keys)] = self._options.ids(keys.values())
        return chosen

    def _limits(
        self,
        weights: NDArray[np.float64],
        cost_share: float,
        memory_share: float,
        tables: NDArray[np.bool_] | slice = slice(None),
    ) -> NDArray[np.float64]:
        """Returns limits on the loads and bytes of a shard; shape `(loads + 1,)`."""
        sums = self._offered.sums[tables].sum(axis=0)
        limits = cost_share * sums / self._options.request.world_size
        limits[:-1][weights <= 0] = np.inf
        fixed_bytes = self._options.scorer.memory_bytes_without_tables
        limits[-1] = memory_share * max(0.0, self._memory_bytes - fixed_bytes)
        return np.asarray(limits)

    def _small_enough(
        self, limits: NDArray[np.float64], *, by_rows: bool = True
    ) -> NDArray[np.int64]:
        """Returns for every table the coarsest cut whose shards are within the limits.

        If no cut is, the one with the smallest shards. Without `by_rows` a table is then cut into
        rows only if it is too large for the memory otherwise.
        """
        offered = self._offered
        # Nothing is a share of zero, whatever the limit.
        with np.errstate(over="ignore"):
            shares = (offered.largest / np.maximum(limits, 1e-300)).max(axis=2)
        excess = np.where(offered.exists, shares, np.inf)
        small = excess <= 1.0
        kept = offered.exists if by_rows else offered.whole_rows
        fits = kept & (offered.largest[..., -1] <= limits[-1])
        usable = np.where(fits.any(axis=1)[:, None], fits, True)
        smallest = np.where(usable, excess, np.inf).argmin(axis=1)
        place = np.where(small.any(axis=1), small.argmax(axis=1), smallest)
        return np.asarray(offered.cuts[np.arange(len(place)), place])


def _thinned(values: Sequence[int], most: int) -> list[int]:
    """Returns at most some of the values, the first and the last among them, evenly spaced."""
    if len(values) <= most:
        return list(values)
    chosen = np.linspace(0, len(values) - 1, most).round().astype(int)
    return [values[place] for place in chosen.tolist()]


def _by_preference(keys: list[CutKey]) -> list[CutKey]:
    """Returns cuts in the order in which they are tried, without copies on every rank."""
    kept = [key for key in keys if key.kind in _TYPES]
    # Host memory is for tables that fit nowhere else. Which others to put there is left to the
    # baselines and the linear programs.
    kept = [key for key in kept if not key.kernel.on_host] or kept
    return sorted(kept, key=lambda key: (_KERNELS.index(key.kernel), _TYPES.index(key.kind)))
