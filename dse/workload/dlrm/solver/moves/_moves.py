"""Moves of the local search: each takes a plan and returns one that is no worse.

A move changes where shards are, under loads that are linear around the plan (balancing,
repacking), or how tables are cut (neighbours). The full model decides what is kept. A perturbation
returns another start instead.
"""

from __future__ import annotations

from dataclasses import dataclass
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.workload.dlrm.solver.moves._balance import Balancer
from dse.workload.dlrm.solver.moves._evaluator import OVERFLOW_S, Evaluator
from dse.workload.dlrm.solver.moves._neighbours import Neighbourhood
from dse.workload.dlrm.solver.moves._plan_arrays import PlanArrays
from dse.workload.dlrm.solver.moves._repack import repack
from dse.workload.dlrm.solver.moves._shards import movable_shards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._options import ShardingOptions
    from dse.workload.dlrm.solver.moves._evaluator import Values
    from dse.workload.dlrm.solver.moves._plans import Assignment, Change
    from dse.workload.dlrm.solver.moves._shards import MovableShards

#: Improving changes that are combined in one round.
_MAX_COMBINED = 12

#: Least relative gain of a round to start another one.
_LEAST_GAIN = 1e-6

#: Least cost of a second of kernel load: what is hidden now may not stay hidden.
_HIDDEN_COST = 0.02


class Effort(NamedTuple):
    """How much one pass of the search does.

    Attributes:
        starts: Constructed plans that are balanced.
        fine_starts: Whether to construct many plans on several nodes.
        restarts: How often the search restarts when no neighbour is better.
        margin: How far behind the incumbent a restart may be to be searched, as a share.
        lag: How far behind it one may be after a round to be searched on.
        programs: Whether to start from the linear programs that bound plans as well. They know
            which tables to take out of a common exchange together, and take a fraction of a second
            for a hundred tables.
        repacks: How often a few ranks are repacked by a mixed-integer program at the end.
        least_imbalance: What even ranks would save at least, as a share of the iteration, for a
            plan that fits to be balanced.
        neighbours: Plans scored in one round.
        sideways: Whether the best other cut of a plan that fits is balanced where none helps by
            itself.
        perturbations: How often a few ranks are perturbed.
        chains: Whether chains of two moves are tried.
        combinations: Combinations of changes that are balanced.
        groups: Ways of emptying an exchange group that are balanced.
        overfull: Changes that are balanced although some rank has no room for them.
    """

    starts: int
    fine_starts: bool
    restarts: int
    margin: float
    lag: float
    programs: bool
    repacks: int
    least_imbalance: float
    neighbours: int
    sideways: bool
    perturbations: int
    chains: bool
    combinations: int
    groups: int
    overfull: int


THOROUGH = Effort(
    starts=6,
    fine_starts=True,
    restarts=4,
    margin=np.inf,
    lag=np.inf,
    programs=True,
    repacks=2,
    least_imbalance=0.0,
    neighbours=1024,
    sideways=True,
    perturbations=12,
    chains=True,
    combinations=2,
    groups=1,
    overfull=2,
)

#: For thousands of problems. Around a good start the rest finds next to nothing and takes half of
#: the time.
QUICK = Effort(
    starts=6,
    fine_starts=False,
    restarts=1,
    margin=0.03,
    lag=0.01,
    programs=False,
    repacks=0,
    least_imbalance=1e-3,
    neighbours=512,
    sideways=False,
    perturbations=0,
    chains=False,
    combinations=1,
    groups=0,
    overfull=0,
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan and its rank.

    Attributes:
        plan: The plan.
        rank_by: Less is better; see :class:`dse.workload.dlrm.solver.moves.Values`.
    """

    plan: Assignment
    rank_by: float

    @property
    def fits(self) -> bool:
        """Whether devices and host memory can hold the plan."""
        return self.rank_by < OVERFLOW_S


class Moves:
    """The moves of one search; they share its options, random numbers and deadline.

    Args:
        options: Cuts of every table.
        effort: How much to do.
        deadline: Time of the monotonic clock after which no move starts, or None.

    Attributes:
        evaluator: Scores plans.
    """

    def __init__(
        self, options: ShardingOptions, *, effort: Effort, deadline: float | None
    ) -> None:
        self._scorer = options.scorer
        self._request = options.request
        self._options = options
        self._effort = effort
        self._usable = self._scorer.problem.cluster.device.usable_memory_bytes
        self.evaluator = Evaluator(options)
        self._neighbourhood = Neighbourhood(options, effort.neighbours)
        self._last_shards: tuple[Assignment, MovableShards] | None = None
        self._last_weights: tuple[Assignment, NDArray[np.float64]] | None = None
        self._rng = np.random.default_rng(self._request.seed)
        self._deadline = deadline

    @property
    def is_timed(self) -> bool:
        """Whether there is a deadline."""
        return self._deadline is not None

    def is_over(self) -> bool:
        """Returns whether the deadline has passed."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def score(self, plan: Assignment) -> Candidate:
        """Scores a plan."""
        return Candidate(plan, self.evaluator.value(plan)[1])

    def score_all(self, plans: Sequence[Assignment]) -> list[Candidate]:
        """Scores plans together, equal ones once."""
        different = list(dict.fromkeys(plans))
        values = self.evaluator.of_plans(PlanArrays.of(different)).rank_by.tolist()
        return [Candidate(plan, value) for plan, value in zip(different, values, strict=True)]

    def best_of(self, plans: PlanArrays, count: int) -> list[Candidate]:
        """Scores plans and returns the best of them, best first."""
        values = self.evaluator.of_plans(plans).rank_by
        order = np.argsort(values, kind="stable")[:count].tolist()
        return [Candidate(plans.plan(number), float(values[number])) for number in order]

    def weights(self, plan: Assignment) -> NDArray[np.float64]:
        """Returns the cost of the largest of each load around a plan; shape `(loads,)`."""
        if self._last_weights is None or self._last_weights[0] is not plan:
            features = self.evaluator.features(plan)
            weights = self._scorer.marginal_costs(self.evaluator.layout(plan), features)
            weights[:2] = np.maximum(weights[:2], _HIDDEN_COST)
            self._last_weights = (plan, weights)
        return self._last_weights[1]

    def descend(self, current: Candidate, rounds: int, best: Candidate | None = None) -> Candidate:
        """Runs rounds of balancing and of other cuts until nothing is better.

        Args:
            current: Where to begin.
            rounds: Most rounds.
            best: The best plan so far; it ends once a round leaves it too far behind that.
        """
        enough = np.inf if best is None else best.rank_by * (1 + self._effort.lag)
        for _ in range(rounds):
            if self.is_over():
                break
            before = current.rank_by
            weights = self.weights(current.plan)
            current = self.balanced(current, weights, perturbations=self._effort.perturbations)
            if self.is_over():
                break
            current = self.recut(current, weights)
            if current.rank_by >= before * (1 - _LEAST_GAIN) or current.rank_by > enough:
                break
        return current

    def balanced(
        self, current: Candidate, weights: NDArray[np.float64], perturbations: int
    ) -> Candidate:
        """Moves shards between ranks; keeps the plan when the full model does not agree."""
        plans = self._rebalanced(current, weights, perturbations)
        if not plans:
            return current
        return min([current, *self.score_all(plans)], key=lambda candidate: candidate.rank_by)

    def all_balanced(
        self, starts: Sequence[Candidate], weights: NDArray[np.float64]
    ) -> list[Candidate]:
        """Returns what :meth:`balanced` makes of each plan, without perturbations.

        Plans that even ranks would not bring ahead of the best one are left as they are.
        """
        ahead = min(start.rank_by for start in starts)
        plans = [self._rebalanced(start, weights, 0, ahead) for start in starts]
        # Calls are what scoring a single plan costs.
        every = [plan for moved in plans for plan in moved]
        known = {found.plan: found for found in (self.score_all(every) if every else [])}
        return [
            min([start, *(known[plan] for plan in moved)], key=lambda found: found.rank_by)
            for start, moved in zip(starts, plans, strict=True)
        ]

    def _rebalanced(
        self,
        current: Candidate,
        weights: NDArray[np.float64],
        perturbations: int,
        ahead: float = np.inf,
    ) -> list[Assignment]:
        """Returns plans with shards on other ranks that may be better than some value."""
        shards = self._movable(current.plan)
        if not len(shards.rank) or self._request.world_size < 2:
            return []
        balancer = Balancer(
            shards, weights, self._usable, self._request.devices_per_node, self.is_over
        )
        least_gain_s = max(self._effort.least_imbalance * current.rank_by, current.rank_by - ahead)
        if current.fits and balancer.most_gain_s() < least_gain_s:
            return []
        max_steps = 30 + 3 * len(shards.rank)
        # Chains take longest and find least: only for plans that are searched further anyway.
        balancer.descend(max_steps, chains=perturbations > 0 and self._effort.chains)
        places = [balancer.places]
        if perturbations:
            balancer.improve(self._rng, perturbations, max_steps)
            places.append(balancer.places)
        # A plan in which nothing moved is known already.
        return [
            shards.moved(current.plan, ranks)
            for ranks in places
            if not np.array_equal(ranks, shards.rank)
        ]

    def with_hot_rows(self, starts: Sequence[Candidate]) -> list[Candidate]:
        """Returns plans with other hot rows for all tables together."""
        plans = [
            start.plan.changed(changes)
            for start in starts
            for changes in self._neighbourhood.with_hot_rows(start.plan)
        ]
        return self.score_all(plans) if plans else []

    def _movable(self, plan: Assignment) -> MovableShards:
        """Returns the movable shards of a plan; the last ones are cached."""
        if self._last_shards is None or self._last_shards[0] is not plan:
            self._last_shards = (plan, movable_shards(plan, self._options))
        return self._last_shards[1]

    def repacked(self, current: Candidate, weights: NDArray[np.float64]) -> Candidate:
        """Repacks the most loaded, the least loaded and a random rank."""
        shards = self._movable(current.plan)
        if not len(shards.rank) or self._request.world_size < 2:
            return current
        order = np.argsort(-shards.load_s(weights), kind="stable")
        middle = int(self._rng.integers(1, len(order)))
        freed = np.unique([order[0], order[middle], order[-1]])
        remaining_s = None if self._deadline is None else self._deadline - time.monotonic()
        places = repack(
            shards,
            freed,
            weights,
            self._usable,
            self._request.devices_per_node,
            remaining_s,
        )
        if places is None:
            return current
        repacked = self.score(shards.moved(current.plan, places))
        return repacked if repacked.rank_by < current.rank_by else current

    def recut(self, current: Candidate, weights: NDArray[np.float64]) -> Candidate:
        """Scores other cuts of single tables and balances the best combinations of them."""
        changes = self._neighbourhood.around(current.plan, weights)
        shards = self._movable(current.plan)
        limit = self._effort.neighbours // 4
        changes += self._neighbourhood.exchanges(current.plan, shards, weights, limit)
        changes += self._neighbourhood.with_hot_rows(current.plan)
        if not changes:
            return current
        scored = self.evaluator.values(current.plan, changes)
        values = scored.rank_by
        combined = _combine(changes, values, current.rank_by)
        if not combined and (self._effort.sideways or not current.fits):
            # Nothing helps by itself; the best change may, after other shards have moved.
            combined = [changes[int(np.argmin(values))]]
        candidates = self._best_of(current.plan, combined, self._effort.combinations)
        if self._effort.groups:
            regrouped_tables = self._without_groups(current.plan, changes, values)
            candidates += self._best_of(current.plan, regrouped_tables, self._effort.groups)
        candidates += self._overfull(current, changes, scored)
        best = current
        for changed in candidates:
            balanced = self.balanced(changed, weights, perturbations=0)
            if balanced.rank_by < best.rank_by:
                best = balanced
        return best

    def _best_of(
        self, plan: Assignment, changes: Sequence[tuple[Change, ...]], count: int
    ) -> list[Candidate]:
        """Returns the plans that the best of some changes result in."""
        if not changes:
            return []
        values = self.evaluator.values(plan, changes).rank_by
        return [
            Candidate(plan.changed(changes[index]), float(values[index]))
            for index in np.argsort(values, kind="stable")[:count].tolist()
        ]

    def _overfull(
        self, current: Candidate, changes: Sequence[tuple[Change, ...]], scored: Values
    ) -> list[Candidate]:
        """Returns the fastest plans that would fit if other shards made room."""
        if not self._effort.overfull or not current.fits:
            return []
        gains = (scored.rank_by >= OVERFLOW_S) & (scored.unlimited_s < current.rank_by)
        found = np.flatnonzero(gains)
        order = np.argsort(scored.unlimited_s[found], kind="stable")
        return [
            Candidate(current.plan.changed(changes[index]), float(scored.rank_by[index]))
            for index in found[order][: self._effort.overfull].tolist()
        ]

    def _without_groups(
        self, plan: Assignment, changes: Sequence[tuple[Change, ...]], values: NDArray[np.float64]
    ) -> list[tuple[Change, ...]]:
        """Returns changes that take all tables out of an exchange group into another one.

        The last table that leaves a group saves its kernels and its collective, so tables that
        leave together may gain what none of them gains alone.
        """
        cuts = self._options.cuts
        best: dict[tuple[int, int], tuple[float, Change]] = {}
        for single, value in zip(changes, values.tolist(), strict=True):
            if len(single) == 1:
                key = (single[0].table, cuts[single[0].cut].groups)
                if key not in best or value < best[key][0]:
                    best[key] = (value, single[0])
        group_of = [cuts[cut].groups for cut in plan.cuts]
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

    def perturbed(self, plan: Assignment) -> Candidate:
        """Recuts a few promising tables at random, and balances."""
        weights = self.weights(plan)
        changes = self._neighbourhood.around(plan, weights)
        chosen: dict[int, Change] = {}
        for index in self._rng.permutation(len(changes))[: 2 + len(plan.cuts) // 20].tolist():
            (change,) = changes[index]
            chosen[change.table] = change
        return self.balanced(
            self.score(plan.changed(list(chosen.values()))), weights, perturbations=0
        )


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
