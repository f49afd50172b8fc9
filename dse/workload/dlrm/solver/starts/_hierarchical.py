"""Starts on several nodes: whole nodes first, single ranks around them.

Shards of table-row-wise and grid-sharded tables load every rank of a node alike and share an
exchange between the nodes, so the node with the most of them decides. Which shards fill whole
nodes is out of reach of changes of single tables, so linear programs choose the cuts
(:mod:`dse.workload.dlrm.solver.starts._relaxed`). These shards are few and large: placed by width
they fill the nodes evenly, and exchanges then even out what they look up and update. Shards of
single ranks fill up the rest (:class:`dse.workload.dlrm.solver.moves.AnnealingBalancer`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import ExchangeGroup, Slot, slot_durations_s
from dse.workload.dlrm.solver._options import PlacementScope
from dse.workload.dlrm.solver.moves import AnnealingBalancer, MovableShards, movable_shards
from dse.workload.dlrm.solver.starts._relaxed import NodeCuts, Variant

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver._options import CutKey, ShardingOptions
    from dse.workload.dlrm.solver.moves import Assignment, Candidate, Evaluator, Moves
    from dse.workload.dlrm.solver.starts._constructor import Constructor

#: Variants of programs that are solved again without oversized cuts, how often in a row that may
#: fail to help, and the number of their plans that are balanced thoroughly.
_REFINED_VARIANTS = 2
_MISSES = 3
_THOROUGH_STARTS = 3

#: Weight of lookups and updates of whole-node shards: shards of single ranks even them out.
_FILLED_UP = 0.3

#: How often shards of whole nodes are placed again, and the share of them that moves.
_NODE_TRIES = 24
_NODE_SHARE = 0.3

#: Temperatures and steps; see :meth:`AnnealingBalancer.anneal`.
_NODE_SCHEDULE = ((0.5, 300), (0.2, 300))
QUICK_SCHEDULE = ((1.0, 1200), (0.25, 1000))
THOROUGH_SCHEDULE = ((1.0, 4000), (0.5, 4000), (0.25, 3000), (0.12, 2000), (0.06, 1500))

#: Most loaded ranks whose largest shards may be oversized, and the share of the mean load beyond
#: which a shard is.
_CRITICAL_RANKS = 6
_LARGE_SHARE = 0.35

#: The first loads are seconds in kernels: lookups and updates.
_KERNEL_LOADS = 2

#: Relative change of the columns of whole nodes at which their cost is measured.
_CHANGE = 0.05

#: Exchanges after annealing; each lowers the largest loads.
_LAST_STEPS = 400


def hierarchical_starts(
    options: ShardingOptions, constructor: Constructor, moves: Moves, incumbent: Candidate
) -> list[Candidate]:
    """Returns plans of the cuts that linear programs choose, the best one first.

    Args:
        options: Cuts of every table.
        constructor: Places the shards of chosen cuts.
        moves: Moves of the search that the plans are for.
        incumbent: A plan that they have to beat.
    """
    scorer, request = options.scorer, options.request
    rng = np.random.default_rng([request.seed, 1])
    usable = scorer.problem.cluster.device.usable_memory_bytes
    cuts = NodeCuts(scorer, request, incumbent.rank_by, moves.is_over)
    balancer = HierarchicalBalancer(options, moves.evaluator, usable, moves.is_over)
    weights = moves.weights(incumbent.plan)
    starts: list[Candidate] = []

    def try_cuts(variant: Variant, excluded: set[CutKey]) -> Candidate | None:
        keys = None if moves.is_over() else cuts.cuts(variant, excluded)
        if keys is None:
            return None
        plan = constructor.placed(keys, weights)
        plan = balancer.balance_nodes(plan, moves.weights(plan), rng)
        plan = balancer.balance_ranks(plan, moves.weights(plan), QUICK_SCHEDULE)
        starts.append(moves.score(plan))
        return starts[-1]

    coarsest = [
        (variant, start) for variant in cuts.variants if (start := try_cuts(variant, set()))
    ]
    coarsest.sort(key=lambda pair: pair[1].rank_by)
    for variant, coarse in coarsest[:_REFINED_VARIANTS]:
        best, last, misses = coarse, coarse, 0
        excluded: set[CutKey] = set()
        while misses < _MISSES:
            more = balancer.oversized(last.plan, moves.weights(last.plan)) - excluded
            excluded |= more
            finer = try_cuts(variant, excluded) if more else None
            if finer is None:
                break
            misses = 0 if finer.rank_by < best.rank_by else misses + 1
            best, last = min(best, finer, key=lambda start: start.rank_by), finer
    for start in sorted(starts, key=lambda start: start.rank_by)[:_THOROUGH_STARTS]:
        plan = balancer.balance_ranks(start.plan, moves.weights(start.plan), THOROUGH_SCHEDULE)
        starts.append(moves.score(plan))
    return sorted(starts, key=lambda start: start.rank_by)


class HierarchicalBalancer:
    """Balances plans of one problem on several nodes.

    Args:
        options: The cuts.
        evaluator: Scores plans.
        memory_bytes: What a rank may hold.
        stop: Returns whether time is over.
    """

    def __init__(
        self,
        options: ShardingOptions,
        evaluator: Evaluator,
        memory_bytes: float,
        stop: Callable[[], bool],
    ) -> None:
        self._options = options
        self._evaluator = evaluator
        self._memory_bytes = memory_bytes
        self._stop = stop

    def balance_nodes(
        self, plan: Assignment, weights: NDArray[np.float64], rng: np.random.Generator
    ) -> Assignment:
        """Places the shards that fill whole nodes.

        Args:
            plan: Places of all shards.
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
            rng: Source of randomness.
        """
        shards = _node_shards(plan, self._options)
        if len(shards.table) < 2:
            return plan
        column_s = self._column_s(plan)
        costs = np.append(_FILLED_UP * weights, column_s)
        best: AnnealingBalancer | None = None
        where = _by_width(shards)
        for trial in range(_NODE_TRIES):
            if trial == 1:
                where = shards.rank
            elif trial > 1 and best is not None:
                where = _perturbed(best.places, shards, rng)
            if self._stop() and best is not None:
                break
            started = _at(shards, where)
            if started is None:
                continue
            annealer = AnnealingBalancer(started, costs, self._memory_bytes, 1, self._stop)
            annealer.anneal(_NODE_SCHEDULE)
            annealer.descend(_LAST_STEPS, chains=False)
            if best is None or annealer.value() < best.value():
                best = annealer
        return plan if best is None else shards.moved(plan, best.places)

    def balance_ranks(
        self,
        plan: Assignment,
        weights: NDArray[np.float64],
        schedule: tuple[tuple[float, int], ...],
    ) -> Assignment:
        """Balances the shards of single ranks.

        Args:
            plan: Places of all shards.
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
            schedule: Temperatures and steps; see :meth:`AnnealingBalancer.anneal`.
        """
        shards = movable_shards(plan, self._options)
        if not len(shards.rank):
            return plan
        size = self._options.request.devices_per_node
        annealer = AnnealingBalancer(shards, weights, self._memory_bytes, size, self._stop)
        annealer.anneal(schedule)
        annealer.descend(_LAST_STEPS, chains=False)
        return shards.moved(plan, annealer.places)

    def oversized(self, plan: Assignment, weights: NDArray[np.float64]) -> set[CutKey]:
        """Returns cuts whose shards keep the ranks from being equally loaded.

        They are the cuts of the largest shards on the busiest ranks, in lookups or in updates,
        whichever imbalance costs more.

        Args:
            plan: Places of all shards.
            weights: Seconds that one more unit of each load costs; shape `(loads,)`.
        """
        request, cuts = self._options.request, self._options.cuts
        held = np.zeros((len(weights), request.world_size))
        shards: list[list[tuple[NDArray[np.float64], CutKey]]] = [[] for _ in held[0]]
        for number, places in zip(plan.cuts, plan.places, strict=True):
            cut = cuts[number]
            if cut.scope is PlacementScope.ALL:
                held += self._options.shard_costs[cut.rows[0], :-1].T
                continue
            reached = self._options.placed_shards(number, places)
            for row, rank in zip(reached.rows.tolist(), reached.ranks.tolist(), strict=True):
                costs = self._options.shard_costs[row, :-1]
                held[:, rank] += costs
                shards[rank].append((costs, cut.key))
        mean = held.mean(axis=1)
        load = int(np.argmax((weights * (held.max(axis=1) - mean))[:_KERNEL_LOADS]))
        found = set()
        for rank in np.argsort(-held[load], kind="stable")[:_CRITICAL_RANKS].tolist():
            if shards[rank]:
                costs, key = max(shards[rank], key=lambda shard: float(shard[0][load]))
                if costs[load] > _LARGE_SHARE * mean[load]:
                    found.add(key)
        return found

    def _column_s(self, plan: Assignment) -> float:
        """Returns the cost, in seconds, of one more column on the node that exchanges most."""
        scorer = self._options.scorer
        column = exchanged_between_nodes(scorer, self._options.shard_features.shape[1])
        features = self._evaluator.features(plan)
        most = float(features[column].max()) if column is not None else 0.0
        if column is None or most <= 0:
            return 0.0
        changed = np.repeat(features[:, :, None], 2, axis=2)
        changed[column, :, 1] *= 1.0 + _CHANGE
        scores = scorer.score_features(self._evaluator.layout(plan), changed).scores
        gain_s = float(scores.iteration_time_s[1] - scores.iteration_time_s[0])
        # What is hidden now may not stay hidden.
        return max(gain_s / (_CHANGE * most), 1e-12)


def exchanged_between_nodes(scorer: PlanScorer, features: int) -> int | None:
    """Returns the placement feature that the exchange between nodes depends on.

    Args:
        scorer: The performance model.
        features: Number of placement features.
    """
    ranks = scorer.problem.cluster.world_size
    single = np.zeros((features, ranks, features))
    single[np.arange(features), :, np.arange(features)] = 1.0
    durations = slot_durations_s(scorer.problem, 1 << ExchangeGroup.NODE, single)
    found = np.flatnonzero(durations[Slot.NODE_EXCHANGE_BETWEEN].max(axis=0) > 0)
    return int(found[0]) if len(found) else None


def _node_shards(plan: Assignment, options: ShardingOptions) -> MovableShards:
    """Returns the shards that fill whole nodes, with nodes in place of ranks.

    Their last load before the bytes is the number of columns they exchange between nodes.
    """
    request, scorer = options.request, options.scorer
    column = exchanged_between_nodes(scorer, options.shard_features.shape[1])
    load_of = np.array(scorer.term_loads, dtype=np.int64)
    rows: list[tuple[int, int, int]] = []
    loads: list[NDArray[np.float64]] = []
    allowed: list[NDArray[np.bool_]] = []
    elsewhere_bytes = 0.0
    for table, (number, places) in enumerate(zip(plan.cuts, plan.places, strict=True)):
        cut = options.cuts[number]
        if cut.hot >= 0:
            elsewhere_bytes += float(options.shard_costs[cut.hot, -1])
        if cut.scope is not PlacementScope.NODE or column is None:
            reached = 1.0 if cut.scope is PlacementScope.ALL else 1.0 / request.world_size
            elsewhere_bytes += float(cut.costs[:, -1].sum()) * reached
            continue
        rows += [(table, offset, node) for offset, node in enumerate(places)]
        allowed += [cut.allowed] * len(places)
        terms = cut.costs[:, load_of]
        exchanged = options.shard_features[cut.rows, column].mean(axis=1)
        loads.append(np.column_stack((terms, exchanged, cut.costs[:, -1])))
    table_of, offset_of, node_of = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    columns = len(load_of) + 2
    fixed = np.zeros((columns, request.node_count))
    # Shards of single ranks can be spread evenly.
    fixed[-1] = scorer.memory_bytes_without_tables + elsewhere_bytes
    stacked = np.concatenate(loads).T if loads else np.zeros((columns, 0))
    return MovableShards(
        table=table_of,
        offset=offset_of,
        rank=node_of,
        node=np.full(len(rows), -1),
        loads=np.ascontiguousarray(stacked),
        fixed=fixed,
        load_of=np.append(load_of, load_of[-1] + 1),
        allowed=np.array(allowed).reshape(-1, request.node_count),
    )


def _by_width(shards: MovableShards) -> NDArray[np.int64]:
    """Assigns shards to nodes: the widest first, to the node with the fewest columns.

    Of equal nodes the one that looks up and updates least is taken.
    """
    nodes = shards.fixed.shape[1]
    held = np.zeros((2, nodes))
    taken = np.zeros((int(shards.table.max()) + 1, nodes), dtype=bool)
    work = shards.loads[:-2].sum(axis=0)
    where = np.empty(len(shards.table), dtype=np.int64)
    for shard in np.lexsort((-work, -shards.loads[-2])).tolist():
        table = int(shards.table[shard])
        free = ~taken[table] if shards.allowed is None else ~taken[table] & shards.allowed[shard]
        node = int(np.lexsort((held[1], np.where(free, held[0], np.inf)))[0])
        taken[table, node] = True
        held[:, node] += (shards.loads[-2, shard], work[shard])
        where[shard] = node
    return where


def _perturbed(
    where: NDArray[np.int64], shards: MovableShards, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Returns nodes, some of them drawn at random."""
    moved = rng.random(len(where)) < _NODE_SHARE
    drawn = rng.integers(0, shards.fixed.shape[1], len(where))
    if shards.allowed is not None:
        moved &= shards.allowed[np.arange(len(where)), drawn]
    return np.where(moved, drawn, where)


def _at(shards: MovableShards, where: NDArray[np.int64]) -> MovableShards | None:
    """Returns the shards on other nodes; None if two of a table would share one."""
    keys = shards.table * shards.fixed.shape[1] + where
    return replace(shards, rank=where) if len(np.unique(keys)) == len(keys) else None
