"""From baseline plans to a better one by local search under the full model.

Starts are the best baseline planner's plan and plans made from predicted costs. Each round

1. moves and exchanges parts between ranks under loads that are linear around the plan
   (:mod:`dse.workload.dlrm.solver._balance`);
2. scores a neighbourhood in one batch in which tables are cut differently, orders the improving
   changes of different tables by gain, and balances the best of their combinations.

The full model decides what is kept, so no plan is worse than the best baseline. When no neighbour
is better, the search starts again from the next start, from the best plan with some tables cut
at random, and from the cuts that linear programs choose (:mod:`_relaxed`; on several
nodes :mod:`_node_starts`). With a time limit the programs come before the other starts,
and on many tables and nodes before everything. In the end the parts of a few ranks of the best
plan are dealt out anew as a small program (:mod:`_regroup`). Without a time limit the
search does the same for the same seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.workload.dlrm.solver._assignment import of_plan, to_plan
from dse.workload.dlrm.solver._catalogue import Catalogue
from dse.workload.dlrm.solver._construct import Constructor
from dse.workload.dlrm.solver._node_starts import node_starts
from dse.workload.dlrm.solver._portfolio import Portfolio
from dse.workload.dlrm.solver._relaxed import relaxed_cuts
from dse.workload.dlrm.solver._steps import QUICK, THOROUGH, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dse.sharding import PlanningRequest, ShardingPlan
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver._steps import Found

#: Times that parts of a few ranks are dealt out anew in the end.
_PROGRAMS = 2

#: Starts after the best one that are searched before the best plan is shaken.
_OTHER_STARTS = 1

#: Starts from linear programs that are searched, and how far these may be behind the best one.
_RELAXED_STARTS = 2
_RELAXED_MARGIN = 0.03

#: Plans of a portfolio that are balanced.
_PORTFOLIO_STARTS = 3

#: How far behind the best plan a start may be that a quick search tries.
_QUICK_MARGIN = 0.03

#: Tables times ranks beyond which a search on several nodes begins with linear programs.
_LARGE = 20_000


class Rounds:
    """One run of the local search.

    Args:
        scorer: The performance model.
        request: What may be placed where.
        rounds: Most rounds from one start.
        restarts: Starts after the first one.
        max_neighbours: Other cuts scored in one round.
        lns: Whether parts of a few ranks are dealt out anew by a program.
        lp_start: Whether to start from the linear programs that bound plans as well.
        quick: Whether first plans are those of :mod:`_portfolio`, and rounds do less.
        time_limit_s: Seconds after which the search stops between two of its steps, or None.
    """

    def __init__(
        self,
        scorer: PlanScorer,
        request: PlanningRequest,
        *,
        rounds: int,
        restarts: int,
        max_neighbours: int,
        lns: bool,
        lp_start: bool,
        quick: bool,
        time_limit_s: float | None,
    ) -> None:
        self._scorer = scorer
        self._request = request
        self._rounds = rounds
        self._restarts = restarts
        self._lns = lns
        self._lp_start = lp_start
        self._quick = quick
        self._usable = scorer.problem.cluster.device.usable_memory_bytes
        self._catalogue = Catalogue(scorer, request)
        self._steps = Steps(
            scorer,
            request,
            self._catalogue,
            max_neighbours=max_neighbours,
            effort=QUICK if quick else THOROUGH,
            time_limit_s=time_limit_s,
        )

    @property
    def plans_scored(self) -> int:
        """Plans scored under the full model."""
        return self._steps.evaluator.plans_scored

    def run(self, baseline: ShardingPlan) -> ShardingPlan:
        """Returns the best plan found from a baseline and from plans made of predicted costs."""
        first = self._steps.found(of_plan(baseline, self._catalogue))
        weights = self._steps.weights(first.plan)
        constructor = Constructor(self._catalogue, first.plan, weights, self._usable)
        starts = [first]
        on_nodes = self._lp_start and self._request.node_count > 1
        large = on_nodes and len(first.plan.cuts) * self._request.world_size > _LARGE
        if large:
            # Which parts fill whole nodes is beyond the reach of the search: first of all.
            starts += self._on_nodes(constructor, first)
        if self._quick:
            starts += self._of_portfolio(first, weights)
        else:
            starts += [
                self._steps.balanced(self._steps.found(plan), weights, kicks=0)
                for plan in constructor.plans()
            ]
        starts.sort(key=lambda found: found.rank_by)
        best = self._descended(starts[0])
        # In a given time programs find more; without a limit they only add to the restarts.
        programs_first = self._lp_start and self._steps.is_timed
        if not programs_first:
            best = self._restarted(starts, best)
        relaxed: list[Found] = []
        if self._lp_start and not large:
            relaxed = self._relaxed(constructor, best)
            if on_nodes:
                relaxed += self._on_nodes(constructor, best)[:_RELAXED_STARTS]
        for start in relaxed:
            if self._steps.is_over():
                break
            best = min(best, self._descended(start), key=lambda found: found.rank_by)
        if programs_first:
            best = self._restarted(starts, best)
        for _ in range(_PROGRAMS if self._lns else 0):
            if self._steps.is_over():
                break
            dealt = self._steps.regrouped(best, self._steps.weights(best.plan))
            if dealt.rank_by < best.rank_by:
                best = min(best, self._descended(dealt), key=lambda found: found.rank_by)
        return to_plan(best.plan, self._catalogue)

    def _of_portfolio(self, first: Found, weights: NDArray[np.float64]) -> list[Found]:
        """Returns the best of many first plans, balanced."""
        portfolio = Portfolio(self._catalogue, first.plan, self._usable)
        plans = portfolio.plans(weights)
        found = self._steps.all_found(plans)
        found.sort(key=lambda start: start.rank_by)
        chosen = found[:_PORTFOLIO_STARTS]
        # What costs is another thing around a better plan.
        weights = self._steps.weights(chosen[0].plan)
        return [self._steps.balanced(start, weights, kicks=0) for start in chosen]

    def _restarted(self, starts: Sequence[Found], best: Found) -> Found:
        """Returns the best plan, with those that other starts and shaken plans lead to."""
        for restart in range(self._restarts):
            if self._steps.is_over():
                break
            others = starts[1 : 1 + _OTHER_STARTS]
            start = others[restart] if restart < len(others) else self._steps.shaken(best.plan)
            if self._quick and start.rank_by > best.rank_by * (1 + _QUICK_MARGIN):
                continue
            best = min(best, self._descended(start), key=lambda found: found.rank_by)
        return best

    def _relaxed(self, constructor: Constructor, best: Found) -> list[Found]:
        """Returns balanced plans of the cuts that linear programs choose, the best of them."""
        found = []
        for keys in relaxed_cuts(self._scorer, self._request, best.rank_by, self._steps.is_over):
            plan = constructor.placed(keys)
            # What costs is another thing in another layout.
            found.append(
                self._steps.balanced(self._steps.found(plan), self._steps.weights(plan), kicks=0)
            )
        found.sort(key=lambda start: start.rank_by)
        return [
            start
            for start in found[:_RELAXED_STARTS]
            if start.rank_by <= found[0].rank_by * (1 + _RELAXED_MARGIN)
        ]

    def _on_nodes(self, constructor: Constructor, first: Found) -> list[Found]:
        return node_starts(
            self._scorer, self._request, self._catalogue, constructor, self._steps, first
        )

    def _descended(self, found: Found) -> Found:
        return self._steps.descend(found, self._rounds)
