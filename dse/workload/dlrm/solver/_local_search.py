"""Local search for a sharding plan under the full model.

The starts are the best baseline planner's plan and constructed plans. From each of them, a round

1. moves and exchanges shards between ranks under loads that are linear around the plan;
2. scores, in one batch, a neighbourhood in which tables are cut differently, orders the improving
   changes of different tables by gain, and balances the best combinations of them.

The full model decides what is kept, so no plan is worse than the best baseline. When no neighbour
is better, the search continues from the next start and from the incumbent with some tables recut
at random. That is a quick search. A thorough one, which also follows where a quick one's plan
nearly fits, begins with it, does the same with more effort,
and continues from the cuts that linear programs choose; with a time limit the programs come before
the other starts, and on many tables and nodes before everything else. Finally a few ranks of the
incumbent are repacked by a mixed-integer program. Without a time limit the same seed gives the
same plan.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm.solver._options import ShardingOptions
from dse.workload.dlrm.solver.moves import (
    OVERFLOW_S,
    QUICK,
    THOROUGH,
    Candidate,
    Evaluator,
    Moves,
    PlanArrays,
    from_plan,
    to_plan,
)
from dse.workload.dlrm.solver.starts import Constructor, hierarchical_starts, relaxed_cuts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.sharding import PlanningRequest, ShardingPlan
    from dse.workload import PlanEffort
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver.moves import Assignment, Effort

#: Rounds from each start.
_ROUNDS = 12

#: Starts after the best one that are searched before the incumbent is perturbed.
_OTHER_STARTS = 3

#: Starts from linear programs that are searched, and how far they may be behind the best of them.
_RELAXED_STARTS = 2
_RELAXED_MARGIN = 0.03

#: Tables times ranks beyond which a search on several nodes begins with linear programs.
_LARGE = 20_000

#: Overflow of a quick search's plan for which a thorough one follows: it may find one that fits.
_NEARLY = 1.03

#: The same of problems of which constructed plans are only balanced, not improved table by table.
_VERY_LARGE = 200_000


class LocalSearch:
    """One search, with everything that its passes share.

    Args:
        scorer: The performance model.
        request: What may be placed where.
        effort: How much to do.
    """

    def __init__(self, scorer: PlanScorer, request: PlanningRequest, effort: PlanEffort) -> None:
        self._options = ShardingOptions(scorer, request)
        self._quick = effort.quick
        self._rounds = _ROUNDS if effort.improvement_rounds is None else effort.improvement_rounds
        limit_s = effort.time_limit_s
        self._deadline = None if limit_s is None else time.monotonic() + limit_s
        self.plans_scored = 0

    def scored(self, plans: Sequence[ShardingPlan]) -> tuple[NDArray[np.float64], list[Candidate]]:
        """Returns plans to start from, and their iteration times.

        Args:
            plans: Checked plans.

        Returns:
            Seconds of plans that fit; others come after them, by overflow; shape `(plans,)`. The
            plans with their ranks.
        """
        starts = [from_plan(plan, self._options) for plan in plans]
        values = Evaluator(self._options).of_plans(PlanArrays.of(starts))
        self.plans_scored += len(plans)
        ranked = zip(starts, values.rank_by.tolist(), strict=True)
        return values.time_s, [Candidate(start, rank_by) for start, rank_by in ranked]

    def run(self, first: Candidate, known: ShardingPlan | None) -> ShardingPlan:
        """Returns the best plan found.

        Args:
            first: The best plan of the baseline planners.
            known: Another plan to start from.
        """
        options = self._options
        more = [] if known is None else [from_plan(known, options)]
        very_large = _size(options.request) > _VERY_LARGE
        found = self._pass(QUICK, first, more if self._quick or very_large else [])
        nearly_fits = OVERFLOW_S <= found.rank_by < _NEARLY * OVERFLOW_S
        if not very_large and (nearly_fits or not self._quick):
            found = self._pass(THOROUGH, first, [found.plan, *more])
        return to_plan(found.plan, options)

    def _pass(self, effort: Effort, first: Candidate, known: Sequence[Assignment]) -> Candidate:
        search = _Pass(self._options, effort, self._rounds, self._deadline)
        found = search.run(first, known)
        self.plans_scored += search.plans_scored
        return found


class _Pass:
    """One pass of a search.

    Args:
        options: Cuts of every table.
        effort: How much to do.
        rounds: Rounds from each start.
        deadline: Time of the monotonic clock at which the pass ends, or None.
    """

    def __init__(
        self, options: ShardingOptions, effort: Effort, rounds: int, deadline: float | None
    ) -> None:
        self._options = options
        self._effort = effort
        self._rounds = rounds
        self._moves = Moves(options, effort=effort, deadline=deadline)

    @property
    def plans_scored(self) -> int:
        """Plans scored under the full model."""
        return self._moves.evaluator.plans_scored

    def run(self, first: Candidate, known: Sequence[Assignment]) -> Candidate:
        """Returns the best plan found.

        Args:
            first: The first start.
            known: Plans that are good already; those that may become the best are searched last.
        """
        moves, effort, request = self._moves, self._effort, self._options.request
        finished = moves.score_all(known) if known else []
        usable = self._options.scorer.problem.cluster.device.usable_memory_bytes
        constructor = Constructor(self._options, first.plan, usable)
        starts = [first]
        on_nodes = effort.programs and request.node_count > 1
        very_large = _size(request) > _VERY_LARGE
        large = on_nodes and _size(request) > _LARGE
        if large and not very_large:
            # Which shards fill whole nodes is out of reach of the search, so this comes first.
            starts += hierarchical_starts(self._options, constructor, moves, first)
        starts += self._constructed(constructor, first)
        starts.sort(key=lambda start: start.rank_by)
        if very_large:
            return min([*starts, *finished], key=lambda plan: plan.rank_by)
        best = self._descended(starts[0])
        # In a given time programs find more; without a limit they only add to the restarts.
        programs_first = effort.programs and moves.is_timed
        if not programs_first:
            best = self._restarted(starts, best)
        relaxed: list[Candidate] = []
        if effort.programs and not large:
            relaxed = self._relaxed(constructor, first, best)
            if on_nodes:
                on_several = hierarchical_starts(self._options, constructor, moves, best)
                relaxed += on_several[:_RELAXED_STARTS]
        for start in relaxed:
            best = self._continued(best, start, np.inf)
        if programs_first:
            best = self._restarted(starts, best)
        for plan in finished:
            best = self._continued(best, plan, effort.margin)
        for _ in range(effort.repacks):
            if moves.is_over():
                break
            repacked = moves.repacked(best, moves.weights(best.plan))
            if repacked.rank_by < best.rank_by:
                best = _better(best, self._descended(repacked))
        return best

    def _constructed(self, constructor: Constructor, first: Candidate) -> list[Candidate]:
        """Returns the best constructed plans, balanced."""
        moves = self._moves
        plans = constructor.plans(moves.weights(first.plan), fine=self._effort.fine_starts)
        chosen = moves.best_of(plans, self._effort.starts)
        if not chosen[0].fits:
            chosen += moves.best_of(constructor.plans_by_bytes(), 1)
        # Around a better plan other loads are expensive.
        weights = moves.weights(chosen[0].plan)
        starts = moves.all_balanced(chosen, weights)
        return [*starts, *moves.with_hot_rows(starts)]

    def _restarted(self, starts: Sequence[Candidate], best: Candidate) -> Candidate:
        """Returns the best plan that other starts and perturbations of the incumbent lead to."""
        for restart in range(self._effort.restarts):
            if self._moves.is_over():
                break
            others = starts[1 : 1 + _OTHER_STARTS]
            start = others[restart] if restart < len(others) else self._moves.perturbed(best.plan)
            best = self._continued(best, start, self._effort.margin)
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

    def _continued(self, best: Candidate, start: Candidate, margin: float) -> Candidate:
        """Returns the better of a plan and what another start leads to.

        Args:
            best: The plan.
            start: The start.
            margin: How far behind the plan it may be to be searched, as a share.
        """
        if self._moves.is_over() or start.rank_by > best.rank_by * (1 + margin):
            return _better(best, start)
        return _better(best, self._moves.descend(start, self._rounds, best))

    def _descended(self, start: Candidate) -> Candidate:
        return self._moves.descend(start, self._rounds)


def _size(request: PlanningRequest) -> int:
    """Returns how large a problem is: tables times ranks."""
    return len(request.tables) * request.world_size


def _better(incumbent: Candidate, other: Candidate) -> Candidate:
    return other if other.rank_by < incumbent.rank_by else incumbent
