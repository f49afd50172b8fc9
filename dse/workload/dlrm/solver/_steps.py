"""Steps of the local search: each takes a plan and returns one that is no worse, or another start.

A step changes where the parts of tables are under loads that are linear around the plan
(:mod:`_balance`, :mod:`_regroup`), or how tables are cut
(:mod:`dse.workload.dlrm.solver._neighbours`); the full model decides what is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.workload.dlrm.solver._assignment import Assignment, Change, Evaluator
from dse.workload.dlrm.solver._balance import Balancer
from dse.workload.dlrm.solver._neighbours import Neighbourhood
from dse.workload.dlrm.solver._pieces import pieces_of
from dse.workload.dlrm.solver._regroup import dealt_anew

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.sharding import PlanningRequest
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver._catalogue import Catalogue
    from dse.workload.dlrm.solver._pieces import Pieces

#: Improving changes that are tried together in one round.
_MAX_COMBINED = 12

#: Least relative gain of a round after which another one follows.
_LEAST_GAIN = 1e-6

#: Seconds a second that a load counts for where it is hidden: it may not stay so.
_HIDDEN_COST = 0.02


class Effort(NamedTuple):
    """How much one round of the search does.

    Attributes:
        kicks: Times that a few ranks are shaken.
        chains: Whether chains of two moves are tried.
        combinations: Combinations of changes that are balanced.
        groups: Ways to empty an exchange group that are balanced.
    """

    kicks: int
    chains: bool
    combinations: int
    groups: int


THOROUGH = Effort(kicks=12, chains=True, combinations=2, groups=1)

#: Around a good start the rest finds next to nothing, and takes half of the time.
QUICK = Effort(kicks=4, chains=False, combinations=1, groups=0)


@dataclass(frozen=True, slots=True)
class Found:
    """A plan and what it is ordered by.

    Attributes:
        plan: The plan.
        rank_by: Less is better; see :class:`dse.workload.dlrm.solver._assignment.Evaluator`.
    """

    plan: Assignment
    rank_by: float


class Steps:
    """The steps of one search, which share its catalogue, its random numbers and its deadline.

    Args:
        scorer: The performance model.
        request: What may be placed where.
        catalogue: Cuts of every table.
        max_neighbours: Other cuts scored in one round.
        effort: How much a round does.
        time_limit_s: Seconds from now after which no step is begun, or None.

    Attributes:
        evaluator: Scores plans.
    """

    def __init__(
        self,
        scorer: PlanScorer,
        request: PlanningRequest,
        catalogue: Catalogue,
        *,
        max_neighbours: int,
        effort: Effort,
        time_limit_s: float | None,
    ) -> None:
        self._scorer = scorer
        self._request = request
        self._catalogue = catalogue
        self._max_neighbours = max_neighbours
        self._effort = effort
        self._usable = scorer.problem.cluster.device.usable_memory_bytes
        self.evaluator = Evaluator(catalogue)
        self._neighbourhood = Neighbourhood(catalogue, max_neighbours)
        self._last_pieces: tuple[Assignment, Pieces] | None = None
        self._rng = np.random.default_rng(request.seed)
        self._deadline = None if time_limit_s is None else time.monotonic() + time_limit_s

    @property
    def is_timed(self) -> bool:
        """Whether there is a deadline."""
        return self._deadline is not None

    def is_over(self) -> bool:
        """Says whether the deadline has passed."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def found(self, plan: Assignment) -> Found:
        """Scores a plan."""
        return Found(plan, self.evaluator.value(plan)[1])

    def all_found(self, plans: Sequence[Assignment]) -> list[Found]:
        """Scores plans together, equal ones once."""
        different = list(dict.fromkeys(plans))
        values = self.evaluator.of_plans(different).rank_by.tolist()
        return [Found(plan, value) for plan, value in zip(different, values, strict=True)]

    def weights(self, plan: Assignment) -> NDArray[np.float64]:
        """Returns what the largest of each load costs around a plan, hidden kernels a little."""
        features = self.evaluator.features(plan)
        weights = self._scorer.marginal_costs(self.evaluator.layout(plan), features)
        weights[:2] = np.maximum(weights[:2], _HIDDEN_COST)
        return weights

    def descend(self, found: Found, rounds: int) -> Found:
        """Rounds of balancing and of other cuts until nothing is better."""
        for _ in range(rounds):
            if self.is_over():
                break
            before = found.rank_by
            weights = self.weights(found.plan)
            found = self.balanced(found, weights, kicks=self._effort.kicks)
            if self.is_over():
                break
            found = self.recut(found, weights)
            if found.rank_by < before * (1 - _LEAST_GAIN):
                continue
            break
        return found

    def balanced(self, found: Found, weights: NDArray[np.float64], kicks: int) -> Found:
        """Moves parts between ranks; keeps the plan when the full model does not agree."""
        pieces = self._pieces_of(found.plan)
        if not len(pieces.rank) or self._request.world_size < 2:
            return found
        balancer = Balancer(
            pieces, weights, self._usable, self._request.devices_per_node, self.is_over
        )
        max_steps = 30 + 3 * len(pieces.rank)
        # Chains take longest and find least: only where the outcome is searched further anyway.
        balancer.descend(max_steps, chains=kicks > 0 and self._effort.chains)
        places = [balancer.places]
        if kicks:
            balancer.improve(self._rng, kicks, max_steps)
            places.append(balancer.places)
        # Where nothing has moved the plan is known already.
        plans = [
            pieces.moved(found.plan, ranks)
            for ranks in places
            if not np.array_equal(ranks, pieces.rank)
        ]
        if not plans:
            return found
        return min([found, *self.all_found(plans)], key=lambda candidate: candidate.rank_by)

    def _pieces_of(self, plan: Assignment) -> Pieces:
        """Returns the movable parts of a plan; of the last one they are known."""
        if self._last_pieces is None or self._last_pieces[0] is not plan:
            self._last_pieces = (plan, pieces_of(plan, self._catalogue))
        return self._last_pieces[1]

    def regrouped(self, found: Found, weights: NDArray[np.float64]) -> Found:
        """Deals the parts of the most and the least loaded ranks out anew."""
        pieces = self._pieces_of(found.plan)
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
        dealt = self.found(pieces.moved(found.plan, places))
        return dealt if dealt.rank_by < found.rank_by else found

    def recut(self, found: Found, weights: NDArray[np.float64]) -> Found:
        """Scores other cuts of single tables and balances the best combinations of them."""
        changes = self._neighbourhood.around(found.plan, weights)
        pieces = self._pieces_of(found.plan)
        limit = self._max_neighbours // 4
        changes += self._neighbourhood.exchanges(found.plan, pieces, weights, limit)
        if not changes:
            return found
        values = self.evaluator.values(found.plan, changes).rank_by
        combined = _combine(changes, values, found.rank_by)
        if not combined:
            # Nothing helps by itself; the best one may after the others have moved.
            combined = [changes[int(np.argmin(values))]]
        candidates = self._best_of(found.plan, combined, self._effort.combinations)
        if self._effort.groups:
            regrouped_tables = self._without_groups(found.plan, changes, values)
            candidates += self._best_of(found.plan, regrouped_tables, self._effort.groups)
        best = found
        for changed in candidates:
            balanced = self.balanced(changed, weights, kicks=0)
            if balanced.rank_by < best.rank_by:
                best = balanced
        return best

    def _best_of(
        self, plan: Assignment, changes: Sequence[tuple[Change, ...]], count: int
    ) -> list[Found]:
        """Returns the plans that the best of some changes lead to."""
        if not changes:
            return []
        values = self.evaluator.values(plan, changes).rank_by
        return [
            Found(plan.changed(changes[index]), float(values[index]))
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

    def shaken(self, plan: Assignment) -> Found:
        """Cuts a few promising tables at random."""
        weights = self.weights(plan)
        changes = self._neighbourhood.around(plan, weights)
        chosen: dict[int, Change] = {}
        for index in self._rng.permutation(len(changes))[: 2 + len(plan.cuts) // 20].tolist():
            (change,) = changes[index]
            chosen[change.table] = change
        return self.balanced(self.found(plan.changed(list(chosen.values()))), weights, kicks=0)


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
