"""Constructed starts: greedy plans from the predicted cost of shards, many in one batch.

Tables are cut until no shard costs more than some share of a rank's mean, into columns where that
helps, else into rows over a node or over all ranks. Which share is best depends on the model, so
several are tried. Small tables are copied to every rank in growing numbers, because an exchange
group that pays only once several tables are in it is out of reach of a search that changes one
table after another. The shards are then placed, largest first, each where it costs least.

Tables are also put into tiers: those that look up most are cut by rows over all ranks, the next
ones, on several nodes, by rows over nodes, others by columns or not at all, and the smallest are
copied. Within a tier all are cut alike. With about as many shards as ranks, a few more or fewer
decide whether every rank gets the same number, so tables are copied until the number of shards is
a multiple of the number of ranks, or of nodes. A search that changes one table after another does
not get there: until the last table has changed, some rank holds a shard more than the others.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.sharding import ComputeKernel, ShardingType
from dse.workload.dlrm.solver._options import PlacementScope, worth_copying
from dse.workload.dlrm.solver.starts._placing import largest_shards, place_shards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._options import Cut, CutKey, ShardingOptions
    from dse.workload.dlrm.solver.moves import Assignment, PlanArrays

#: How many of the tables that may be copied are, as shares of all of them.
_COPIED_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

#: A share that no table reaches: cost alone is no reason to cut it.
_ANY_SHARE = 1e9

#: Largest shard as a share of a rank's mean cost.
_CUT_SHARES = (_ANY_SHARE, 4.0, 2.0, 1.0, 0.5, 0.25)

#: Largest shard as a share of a rank's memory, and the same in plans for memory alone.
_MEMORY_SHARE = 0.5
_TIGHT_MEMORY_SHARES = (1.0, 0.7, 0.5, 0.2)

#: Cuts of tables over all ranks, over nodes and over single ranks: type and number of shards.
_ALL_CUT = (ShardingType.ROW_WISE, 1)
_NODE_CUTS = (
    (ShardingType.TABLE_ROW_WISE, 1),
    (ShardingType.GRID_SHARD, 2),
    (ShardingType.GRID_SHARD, 4),
    (ShardingType.GRID_SHARD, 8),
)
_RANK_CUTS = (
    (ShardingType.TABLE_WISE, 1),
    (ShardingType.COLUMN_WISE, 2),
    (ShardingType.COLUMN_WISE, 4),
    (ShardingType.COLUMN_WISE, 8),
)

#: Tables times ranks beyond which tiers are tried in large steps only.
_MANY = 5_000

#: Sizes of tiers that are kept: they depend on little.
_TIERS_KEPT = 256

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
    node_cuts=4,
    rank_cuts=4,
    counts=4,
)
_MANY_TIERS = _Tiers(
    on_all=(0, 1, 2, 3),
    on_nodes=(0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0),
    node_cuts=4,
    rank_cuts=4,
    counts=8,
)


class _TierSizes(NamedTuple):
    """Tables in each tier of one plan, and how they are cut.

    Attributes:
        on_all: Tables that are cut by rows over all ranks, the heaviest ones.
        on_nodes: Tables that are cut by rows over nodes, the next ones.
        copied: Tables that are copied, the first ones of these.
        node_cut: Type and number of shards of those over nodes.
        rank_cut: The same of the rest.
    """

    on_all: int
    on_nodes: int
    copied: int
    node_cut: tuple[ShardingType, int]
    rank_cut: tuple[ShardingType, int]


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

    def plans(self, weights: NDArray[np.float64], *, fine: bool = True) -> PlanArrays:
        """Returns distinct plans.

        Args:
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
            fine: Whether to try tiers of tables in small steps.
        """
        request = self._options.request
        cuts = self._all_cuts(weights)
        # On one node, tables live in host memory because memory is scarce, which tiers do not see.
        if request.node_count > 1 or not request.may_use_host:
            tiers = _MANY_TIERS if fine else _QUICK_TIERS
            if len(request.tables) * request.world_size > _MANY:
                tiers = _FEW_TIERS
            if request.node_count == 1:
                # Over the only node is over all ranks.
                tiers = tiers._replace(on_nodes=(0.0,), node_cuts=1)
            cuts = np.concatenate((cuts, self._tiered(weights, tiers)))
        first = {row.tobytes(): number for number, row in reversed(list(enumerate(cuts)))}
        different = cuts[sorted(first.values())]
        return place_shards(self._options, different, weights, self._memory_bytes)

    def plans_by_bytes(self) -> PlanArrays:
        """Returns plans that balance memory alone, of tables that are cut more and less finely.

        Cuts of rows give each rank a small share of a table, but buffers for all of its results.
        """
        weights = np.zeros(self._offered.sums.shape[1] - 1)
        limits = [self._limits(weights, (_ANY_SHARE,), share) for share in _TIGHT_MEMORY_SHARES]
        cuts = [
            self._small_enough(limit, by_rows=by_rows)
            for limit in limits
            for by_rows in (True, False)
        ]
        different = np.unique(np.concatenate(cuts), axis=0)
        return place_shards(self._options, different, weights, self._memory_bytes, by_bytes=True)

    def placed(self, keys: Sequence[CutKey], weights: NDArray[np.float64]) -> Assignment:
        """Returns a plan of given cuts.

        Args:
            keys: One cut for each table.
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
        """
        cuts = np.array([self._options.ids(keys)])
        return place_shards(self._options, cuts, weights, self._memory_bytes).plan(0)

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

    def _all_cuts(self, weights: NDArray[np.float64]) -> NDArray[np.int64]:
        """Returns a cut for each table, for every number of copied tables and every share.

        Args:
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.

        Returns:
            Shape `(plans, tables)`.
        """
        counts = sorted({round(share * len(self._copies)) for share in _COPIED_SHARES})
        copies = np.array(self._copies, dtype=np.int64).reshape(-1, 2)
        cuts = []
        for count in counts:
            tables, copied = copies[:count].T
            others = np.ones(len(self._fallback.cuts), dtype=bool)
            others[tables] = False
            limits = self._limits(weights, _CUT_SHARES, _MEMORY_SHARE, others)
            both = [self._small_enough(limits, by_rows=by_rows) for by_rows in (False, True)]
            chosen = np.stack(both, axis=1).reshape(-1, len(others))
            chosen[:, tables] = copied
            cuts.append(chosen)
        return np.concatenate(cuts)

    def _tiered(self, weights: NDArray[np.float64], tiers: _Tiers) -> NDArray[np.int64]:
        """Returns cuts that are alike within each tier of tables; shape `(plans, tables)`.

        Args:
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
            tiers: What is tried.
        """
        request = self._options.request
        copies = np.array(self._copies, dtype=np.int64).reshape(-1, 2)
        heaviest = np.argsort(-(self._offered.sums[:, :-1] @ weights), kind="stable")
        copied_as = np.full(len(heaviest), len(copies))
        copied_as[copies[:, 0]] = np.arange(len(copies))
        copied_as = copied_as[heaviest]
        cuts_of = {
            kind: self._alike(*kind)
            for kind in (_ALL_CUT, *_NODE_CUTS[: tiers.node_cuts], *_RANK_CUTS[: tiers.rank_cuts])
        }
        plans = []
        sizes = len(heaviest), len(copies), request.world_size, request.node_count
        for tier in _tier_sizes(tiers, sizes):
            others = heaviest[copied_as >= tier.copied]
            cuts = cuts_of[tier.rank_cut].copy()
            over_nodes = others[tier.on_all : tier.on_all + tier.on_nodes]
            cuts[over_nodes] = cuts_of[tier.node_cut][over_nodes]
            top = others[: tier.on_all]
            cuts[top] = cuts_of[_ALL_CUT][top]
            cuts[copies[: tier.copied, 0]] = copies[: tier.copied, 1]
            plans.append(cuts)
        return np.array(plans, dtype=np.int64).reshape(-1, len(heaviest))

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
        cost_shares: Sequence[float],
        memory_share: float,
        tables: NDArray[np.bool_] | slice = slice(None),
    ) -> NDArray[np.float64]:
        """Returns limits on the loads and bytes of a shard; shape `(shares, loads + 1)`."""
        sums = self._offered.sums[tables].sum(axis=0)
        limits = np.array(cost_shares)[:, None] * sums / self._options.request.world_size
        limits[:, :-1][:, weights <= 0] = np.inf
        fixed_bytes = self._options.scorer.memory_bytes_without_tables
        limits[:, -1] = memory_share * max(0.0, self._memory_bytes - fixed_bytes)
        return np.asarray(limits)

    def _small_enough(self, limits: NDArray[np.float64], *, by_rows: bool) -> NDArray[np.int64]:
        """Returns for every table the coarsest cut whose shards are within the limits.

        If no cut is, the one with the smallest shards. Without `by_rows` a table is then cut into
        rows only if it is too large for the memory otherwise.

        Args:
            limits: As of :meth:`_limits`.
            by_rows: Whether to cut rows.

        Returns:
            Shape `(shares, tables)`.
        """
        offered = self._offered
        shares = np.zeros((len(limits), *offered.exists.shape))
        # Nothing is a share of zero, whatever the limit.
        with np.errstate(over="ignore"):
            for load, most in enumerate(np.maximum(limits, 1e-300).T):
                np.maximum(shares, offered.largest[..., load] / most[:, None, None], out=shares)
        excess = np.where(offered.exists, shares, np.inf)
        small = excess <= 1.0
        kept = offered.exists if by_rows else offered.whole_rows
        fits = kept & (offered.largest[..., -1] <= limits[0, -1])
        usable = np.where(fits.any(axis=1)[:, None], fits, True)
        smallest = np.where(usable, excess, np.inf).argmin(axis=2)
        place = np.where(small.any(axis=2), small.argmax(axis=2), smallest)
        return np.asarray(offered.cuts[np.arange(place.shape[1]), place])


@lru_cache(maxsize=_TIERS_KEPT)
def _tier_sizes(tiers: _Tiers, sizes: tuple[int, int, int, int]) -> tuple[_TierSizes, ...]:
    """Returns how many tables each tier has in all plans that are tried.

    Args:
        tiers: What is tried.
        sizes: Tables, those of them that may be copied, ranks, and nodes.
    """
    tables, copies, _, _ = sizes
    found = []
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
        # Where all tables are in one tier none of them need be copied.
        even = [0] if not on_all and share in (0.0, 1.0) else []
        for count in range(1, copies + 1):
            rest = max(0, tables - count - on_all)
            if _comes_out_even(rest, round(share * rest), node_cut[1], rank_cut[1], sizes):
                even.append(count)
        for count in _thinned(even or [copies], tiers.counts):
            on_nodes = round(share * max(0, tables - count - on_all))
            found.append(_TierSizes(on_all, on_nodes, count, node_cut, rank_cut))
    return tuple(found)


def _comes_out_even(
    rest: int,
    over_nodes: int,
    node_shards: int,
    rank_shards: int,
    sizes: tuple[int, int, int, int],
) -> bool:
    """Returns whether every rank, or node, has the same number of shards.

    Args:
        rest: Tables that are neither copied nor on all ranks.
        over_nodes: Those of them that are cut over nodes.
        node_shards: Shards of each of these.
        rank_shards: Shards of each of the others.
        sizes: See :func:`_tier_sizes`.
    """
    _, _, ranks, nodes = sizes
    if over_nodes < rest:
        return rank_shards * (rest - over_nodes) % ranks == 0
    return node_shards * over_nodes % nodes == 0


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
