"""Local search for a sharding plan under the full model.

The starts are the best baseline planner's plan and constructed plans. From each of them, a round

1. moves and exchanges shards between ranks under loads that are linear around the plan;
2. scores, in one batch, a neighbourhood in which tables are cut differently, orders the improving
   changes of different tables by gain, and balances the best combinations of them.

The full model decides what is kept, so no plan is worse than the best baseline. When no neighbour
is better, the search continues from the next start, from the incumbent with some tables recut at
random, and from the cuts that linear programs choose. With a time limit the programs come before
the other starts, and on many tables and nodes before everything else. Finally a few ranks of the
incumbent are repacked by a mixed-integer program. Without a time limit the same seed gives the
same plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.workload.dlrm.solver._options import ShardingOptions
from dse.workload.dlrm.solver.moves import QUICK, THOROUGH, Moves, from_plan, to_plan
from dse.workload.dlrm.solver.starts import Constructor, hierarchical_starts, relaxed_cuts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.sharding import PlanningRequest, ShardingPlan
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver._search import SolverSettings
    from dse.workload.dlrm.solver.moves import Candidate

#: How often a few ranks are repacked at the end.
_REPACKS = 2

#: Starts after the best one that are searched before the incumbent is perturbed.
_OTHER_STARTS = 1

#: Starts from linear programs that are searched, and how far they may be behind the best of them.
_RELAXED_STARTS = 2
_RELAXED_MARGIN = 0.03

#: How far behind the incumbent a start may be for a quick search to try it.
_QUICK_MARGIN = 0.03

#: Tables times ranks beyond which a search on several nodes begins with linear programs.
_LARGE = 20_000


class LocalSearch:
    """One run of the local search.

    Args:
        scorer: The performance model.
        request: What may be placed where.
        settings: How much to do.
    """

    def __init__(
        self, scorer: PlanScorer, request: PlanningRequest, settings: SolverSettings
    ) -> None:
        self._settings = settings
        self._effort = QUICK if settings.quick else THOROUGH
        self._options = ShardingOptions(scorer, request)
        self._moves = Moves(
            self._options,
            max_neighbours=settings.max_neighbours,
            effort=self._effort,
            time_limit_s=settings.time_limit_s,
        )

    @property
    def plans_scored(self) -> int:
        """Plans scored under the full model."""
        return self._moves.evaluator.plans_scored

    def run(self, baseline: ShardingPlan) -> ShardingPlan:
        """Returns the best plan found."""
        moves, settings, request = self._moves, self._settings, self._options.request
        first = moves.score(from_plan(baseline, self._options))
        usable = self._options.scorer.problem.cluster.device.usable_memory_bytes
        constructor = Constructor(self._options, first.plan, usable)
        starts = [first]
        on_nodes = settings.lp_start and request.node_count > 1
        large = on_nodes and len(first.plan.cuts) * request.world_size > _LARGE
        if large:
            # Which shards fill whole nodes is out of reach of the search, so this comes first.
            starts += hierarchical_starts(self._options, constructor, moves, first)
        starts += self._constructed(constructor, first)
        starts.sort(key=lambda start: start.rank_by)
        best = self._descended(starts[0])
        # In a given time programs find more; without a limit they only add to the restarts.
        programs_first = settings.lp_start and moves.is_timed
        if not programs_first:
            best = self._restarted(starts, best)
        relaxed: list[Candidate] = []
        if settings.lp_start and not large:
            relaxed = self._relaxed(constructor, first, best)
            if on_nodes:
                on_several = hierarchical_starts(self._options, constructor, moves, best)
                relaxed += on_several[:_RELAXED_STARTS]
        for start in relaxed:
            if moves.is_over():
                break
            best = _better(best, self._descended(start))
        if programs_first:
            best = self._restarted(starts, best)
        for _ in range(_REPACKS if settings.lns else 0):
            if moves.is_over():
                break
            repacked = moves.repacked(best, moves.weights(best.plan))
            if repacked.rank_by < best.rank_by:
                best = _better(best, self._descended(repacked))
        return to_plan(best.plan, self._options)

    def _constructed(self, constructor: Constructor, first: Candidate) -> list[Candidate]:
        """Returns the best constructed plans, balanced."""
        moves = self._moves
        plans = moves.score_all(constructor.plans(moves.weights(first.plan)))
        plans.sort(key=lambda start: start.rank_by)
        chosen = plans[: self._effort.starts]
        if not chosen[0].fits:
            chosen.append(moves.score(constructor.plan_by_bytes()))
        # Around a better plan other loads are expensive.
        weights = moves.weights(chosen[0].plan)
        return [moves.balanced(start, weights, perturbations=0) for start in chosen]

    def _restarted(self, starts: Sequence[Candidate], best: Candidate) -> Candidate:
        """Returns the best plan that other starts and perturbations of the incumbent lead to."""
        for restart in range(self._settings.restarts):
            if self._moves.is_over():
                break
            others = starts[1 : 1 + _OTHER_STARTS]
            start = others[restart] if restart < len(others) else self._moves.perturbed(best.plan)
            if self._settings.quick and start.rank_by > best.rank_by * (1 + _QUICK_MARGIN):
                continue
            best = _better(best, self._descended(start))
        return best

    def _relaxed(
        self, constructor: Constructor, first: Candidate, best: Candidate
    ) -> list[Candidate]:
        """Returns the best plans of the cuts that linear programs choose, balanced."""
        moves, options = self._moves, self._options
        weights = moves.weights(first.plan)
        starts = []
        for keys in relaxed_cuts(options.scorer, options.request, best.rank_by, moves.is_over):
            plan = constructor.placed(keys, weights)
            # In another layout other loads are expensive.
            starts.append(moves.balanced(moves.score(plan), moves.weights(plan), perturbations=0))
        starts.sort(key=lambda start: start.rank_by)
        return [
            start
            for start in starts[:_RELAXED_STARTS]
            if start.rank_by <= starts[0].rank_by * (1 + _RELAXED_MARGIN)
        ]

    def _descended(self, start: Candidate) -> Candidate:
        return self._moves.descend(start, self._settings.improvement_rounds)


def _better(incumbent: Candidate, other: Candidate) -> Candidate:
    return other if other.rank_by < incumbent.rank_by else incumbent
