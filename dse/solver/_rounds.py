"""From baseline plans to a better one by local search under the full model.

Starts are the baseline planners' plans and plans made from predicted costs. Each round

1. moves and exchanges parts between ranks under loads that are linear around the plan
   (:mod:`dse.solver._balance`), and deals the parts of a few ranks out anew as a small program
   (:mod:`dse.solver._regroup`);
2. scores a neighbourhood in one batch in which tables are cut differently, orders the improving
   changes of different tables by gain, and balances the best of their combinations.

The full model decides what is kept, so no plan is worse than the best baseline. When no neighbour
is better, the search starts again from the next start, from the best plan with some tables cut
at random, and from the cuts that linear programs choose (:mod:`dse.solver._relaxed`). Without a
time limit it does the same for the same seed.
"""

from __future__ import annotations

from dataclasses import dataclass
import time
from typing import TYPE_CHECKING

import numpy as np

from dse.solver._assignment import Assignment, Change, Evaluator, of_plan, to_plan
from dse.solver._balance import Balancer
from dse.solver._catalogue import Catalogue
from dse.solver._construct import Constructor
from dse.solver._neighbours import Neighbourhood
from dse.solver._pieces import pieces_of
from dse.solver._regroup import dealt_anew
from dse.solver._relaxed import relaxed_cuts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.prediction import PlanScorer
    from dse.sharding import PlanningRequest, ShardingPlan

#: Improving changes that are tried together in one round.
_MAX_COMBINED = 12

#: Combinations of changes that are balanced in one round.
_BALANCED_COMBINATIONS = 2

#: Ways to empty an exchange group that are balanced in one round.
_BALANCED_GROUPS = 1

#: Times that parts of a few ranks are dealt out anew in the end.
_PROGRAMS = 2

#: Times that a few ranks are shaken in one round.
_KICKS = 12

#: Starts after the best one that are searched before the best plan is shaken.
_OTHER_STARTS = 1

#: Starts from linear programs that are searched, and how far these may be behind the best one.
_RELAXED_STARTS = 2
_RELAXED_MARGIN = 0.03

#: Least relative gain of a round after which another one follows.
_LEAST_GAIN = 1e-6

#: Seconds a second that a load counts for where it is hidden: it may not stay so.
_HIDDEN_COST = 0.02


@dataclass(frozen=True, slots=True)
class _Found:
    """A plan and what it is ordered by."""

    plan: Assignment
    rank_by: float


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
        time_limit_s: float | None,
    ) -> None:
        self._scorer = scorer
        self._request = request
        self._rounds = rounds
        self._restarts = restarts
        self._max_neighbours = max_neighbours
        self._lns = lns
        self._lp_start = lp_start
        self._usable = scorer.problem.cluster.device.usable_memory_bytes
        self._catalogue = Catalogue(scorer, request)
        self._evaluator = Evaluator(self._catalogue)
        self._neighbourhood = Neighbourhood(self._catalogue, max_neighbours)
        self._rng = np.random.default_rng(request.seed)
        self._deadline = None if time_limit_s is None else time.monotonic() + time_limit_s

    @property
    def plans_scored(self) -> int:
        """Plans scored under the full model."""
        return self._evaluator.plans_scored

    def run(self, baseline: ShardingPlan) -> ShardingPlan:
        """Returns the best plan found from a baseline and from plans made of predicted costs."""
        first = self._found(of_plan(baseline, self._catalogue))
        weights = self._weights(first.plan)
        constructor = Constructor(self._catalogue, first.plan, weights, self._usable)
        starts = [first]
        starts += [
            self._balanced(self._found(plan), weights, kicks=0) for plan in constructor.plans()
        ]
        starts.sort(key=lambda found: found.rank_by)
        best = self._descend(starts[0])
        for restart in range(self._restarts):
            if self._is_over():
                break
            others = starts[1 : 1 + _OTHER_STARTS]
            start = others[restart] if restart < len(others) else self._shaken(best.plan)
            best = min(best, self._descend(start), key=lambda found: found.rank_by)
        for start in self._relaxed(constructor, best) if self._lp_start else []:
            if self._is_over():
                break
            best = min(best, self._descend(start), key=lambda found: found.rank_by)
        for _ in range(_PROGRAMS if self._lns else 0):
            if self._is_over():
                break
            dealt = self._regrouped(best, self._weights(best.plan))
            if dealt.rank_by < best.rank_by:
                best = min(best, self._descend(dealt), key=lambda found: found.rank_by)
        return to_plan(best.plan, self._catalogue)

    def _relaxed(self, constructor: Constructor, best: _Found) -> list[_Found]:
        """Returns balanced plans of the cuts that linear programs choose, the best of them."""
        found = []
        for keys in relaxed_cuts(self._scorer, self._request, best.rank_by, self._is_over):
            plan = constructor.placed(keys)
            # What costs is another thing in another layout.
            found.append(self._balanced(self._found(plan), self._weights(plan), kicks=0))
        found.sort(key=lambda start: start.rank_by)
        return [
            start
            for start in found[:_RELAXED_STARTS]
            if start.rank_by <= found[0].rank_by * (1 + _RELAXED_MARGIN)
        ]

    def _descend(self, found: _Found) -> _Found:
        """Rounds of balancing and of other cuts until nothing is better."""
        for _ in range(self._rounds):
            if self._is_over():
                break
            before = found.rank_by
            weights = self._weights(found.plan)
            found = self._balanced(found, weights, kicks=_KICKS)
            if self._is_over():
                break
            found = self._recut(found, weights)
            if found.rank_by < before * (1 - _LEAST_GAIN):
                continue
            break
        return found

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _found(self, plan: Assignment) -> _Found:
        return _Found(plan, self._evaluator.value(plan)[1])

    def _weights(self, plan: Assignment) -> NDArray[np.float64]:
        """What the largest of each load costs around a plan, hidden kernels a little."""
        features = self._evaluator.features(plan)
        weights = self._scorer.marginal_costs(self._evaluator.layout(plan), features)
        weights[:2] = np.maximum(weights[:2], _HIDDEN_COST)
        return weights

    def _balanced(self, found: _Found, weights: NDArray[np.float64], kicks: int) -> _Found:
        """Moves parts between ranks; keeps the plan when the full model does not agree."""
        pieces = pieces_of(found.plan, self._catalogue)
        if not len(pieces.rank) or self._request.world_size < 2:
            return found
        balancer = Balancer(
            pieces, weights, self._usable, self._request.devices_per_node, self._is_over
        )
        max_steps = 30 + 3 * len(pieces.rank)
        # Chains take longest and find least: only where the outcome is searched further anyway.
        balancer.descend(max_steps, chains=kicks > 0)
        plans = [pieces.moved(found.plan, balancer.places)]
        if kicks:
            balancer.improve(self._rng, kicks, max_steps)
            plans.append(pieces.moved(found.plan, balancer.places))
        candidates = [found, *(self._found(plan) for plan in dict.fromkeys(plans))]
        return min(candidates, key=lambda candidate: candidate.rank_by)

    def _regrouped(self, found: _Found, weights: NDArray[np.float64]) -> _Found:
        """Deals the parts of the most and the least loaded ranks out anew."""
        pieces = pieces_of(found.plan, self._catalogue)
        if not len(pieces.rank) or self._request.world_size < 2:
            return found
        order = np.argsort(-pieces.load_s(weights), kind="stable")
        middle = int(self._rng.integers(1, len(order)))
        freed = np.unique([order[0], order[middle], order[-1]])
        remaining_s = None if self._deadline is None else self._deadline - time.monotonic()
        places = dealt_anew(
            pieces,
            freed,
            weights,
            self._usable,
            self._request.devices_per_node,
            remaining_s,
        )
        if places is None:
            return found
        dealt = self._found(pieces.moved(found.plan, places))
        return dealt if dealt.rank_by < found.rank_by else found

    def _recut(self, found: _Found, weights: NDArray[np.float64]) -> _Found:
        """Scores other cuts of single tables and balances the best combinations of them."""
        changes = self._neighbourhood.around(found.plan, weights)
        pieces = pieces_of(found.plan, self._catalogue)
        limit = self._max_neighbours // 4
        changes += self._neighbourhood.exchanges(found.plan, pieces, weights, limit)
        if not changes:
            return found
        values = self._evaluator.values(found.plan, changes).rank_by
        combined = _combine(changes, values, found.rank_by)
        if not combined:
            # Nothing helps by itself; the best one may after the others have moved.
            combined = [changes[int(np.argmin(values))]]
        regrouped_tables = self._without_groups(found.plan, changes, values)
        best = found
        for changed in (
            *self._best_of(found.plan, combined, _BALANCED_COMBINATIONS),
            *self._best_of(found.plan, regrouped_tables, _BALANCED_GROUPS),
        ):
            balanced = self._balanced(changed, weights, kicks=0)
            if balanced.rank_by < best.rank_by:
                best = balanced
        return best

    def _best_of(
        self, plan: Assignment, changes: Sequence[tuple[Change, ...]], count: int
    ) -> list[_Found]:
        """Returns the plans that the best of some changes lead to."""
        if not changes:
            return []
        values = self._evaluator.values(plan, changes).rank_by
        return [
            _Found(plan.changed(changes[index]), float(values[index]))
            for index in np.argsort(values, kind="stable")[:count].tolist()
        ]

    def _without_groups(
        self, plan: Assignment, changes: Sequence[tuple[Change, ...]], values: NDArray[np.float64]
    ) -> list[tuple[Change, ...]]:
        """Returns changes that take all tables out of an exchange group into another one.

        The last table that leaves a group saves its kernels and its collective, so tables that
        leave together may gain what none of them gains alone.
        """
        cuts = self._catalogue.cuts
        best: dict[tuple[int, int], tuple[float, Change]] = {}
        for single, value in zip(changes, values.tolist(), strict=True):
            if len(single) == 1:
                key = (single[0].table, cuts[single[0].cut].group_bit)
                if key not in best or value < best[key][0]:
                    best[key] = (value, single[0])
        group_of = [cuts[cut].group_bit for cut in plan.cuts]
        targets = sorted({group for _, group in best})
        together: list[tuple[Change, ...]] = []
        for group in sorted(set(group_of)):
            members = [table for table, own in enumerate(group_of) if own == group]
            for target in targets:
                known = all((table, target) in best for table in members)
                if target != group and known:
                    changed = tuple(best[table, target][1] for table in members)
                    together.append(changed)
        return together

    def _shaken(self, plan: Assignment) -> _Found:
        """Cuts a few promising tables at random."""
        weights = self._weights(plan)
        changes = self._neighbourhood.around(plan, weights)
        chosen: dict[int, Change] = {}
        for index in self._rng.permutation(len(changes))[: 2 + len(plan.cuts) // 20].tolist():
            (change,) = changes[index]
            chosen[change.table] = change
        return self._balanced(self._found(plan.changed(list(chosen.values()))), weights, kicks=0)


def _combine(
    changes: Sequence[tuple[Change, ...]], values: NDArray[np.float64], value: float
) -> list[tuple[Change, ...]]:
    """Returns prefixes of the improving changes, best first, that touch different tables."""
    combined: list[tuple[Change, ...]] = []
    current: tuple[Change, ...] = ()
    touched: set[int] = set()
    for index in np.argsort(values, kind="stable").tolist():
        if values[index] >= value or len(combined) == _MAX_COMBINED:
            break
        tables = {change.table for change in changes[index]}
        if tables & touched:
            continue
        touched |= tables
        current = (*current, *changes[index])
        combined.append(current)
    return combined
