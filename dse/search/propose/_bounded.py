"""Sampling with bounds: for spaces that are too large to look at every outcome.

NSGA-II proposes. Before it begins, configurations are drawn at random and those whose optimistic
points no other one dominates are proposed first. Later, a proposal whose point is dominated by a
feasible answer is not evaluated: the sampler learns its point instead, which is worse than the
front as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.search._certificate import Certificate
from dse.search._proposals import Effort, Proposal
from dse.search._records import TrialStatus
from dse.search.analyse._pareto import pareto_mask
from dse.search.propose._proposer import Proposer
from dse.search.space import SamplerName

if TYPE_CHECKING:
    from collections.abc import Sequence

    import optuna

    from dse.search._records import Params, TrialRecord
    from dse.search.evaluate._evaluator import Evaluator
    from dse.search.space import SearchSpace

#: Configurations that are drawn before the first proposal: a second or two.
_DRAWN = 2000

#: Proposals in a row that cannot enter the front before the search ends.
_MOST_IN_VAIN = 2000


class BoundedProposer(Proposer):
    """Proposes what can enter the front, and evaluates nothing else.

    Args:
        space: The search space.
        seed: Seed of the sampler and of the configurations that are drawn.
        evaluator: Says what configurations cannot beat.
    """

    def __init__(self, space: SearchSpace, seed: int, evaluator: Evaluator) -> None:
        super().__init__(space, SamplerName.NSGA2, seed, evaluator)
        self._evaluator = evaluator
        self._signs = np.array([-1.0 if axis.maximize else 1.0 for axis in space.objectives])
        self._front = np.empty((0, len(self._signs)))
        self._evaluated = self._dominated = self._infeasible = 0
        self._in_vain = 0
        for key in self._promising(space.search.batch):
            self._study.enqueue_trial(self._encode(key))

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left, or nothing that can enter the front was found for long."""
        return super().exhausted or self._in_vain >= _MOST_IN_VAIN

    def tell(self, records: Sequence[TrialRecord]) -> None:
        """Answers configurations of the last batch, or adds answers of others."""
        super().tell(records)
        self._evaluated += len(records)
        feasible = [
            np.array(record.values) * self._signs
            for record in records
            if record.status is TrialStatus.FEASIBLE
        ]
        if feasible:
            points = np.vstack((self._front, *feasible))
            self._front = points[pareto_mask(points, [False] * len(self._signs))]

    def certificate(self) -> Certificate:
        """Returns what is proven; how much the rest of the space could add is not known."""
        everything = super().exhausted
        return Certificate(
            complete=everything,
            distinct=0,
            evaluated=self._evaluated,
            proven_dominated=self._dominated,
            proven_infeasible=self._infeasible,
            hypervolume_missing_at_most=0.0 if everything else float("nan"),
        )

    def _decided(self) -> bool:
        """Returns no: which proposals are evaluated depends on the front."""
        return False

    def _ruled_out(self, parameters: Params, trial: optuna.trial.Trial) -> bool:
        """Answers a proposal by its optimistic point if it cannot enter the front."""
        bound = self._bound(parameters)
        if bound.status is not TrialStatus.FEASIBLE:
            self._infeasible += 1
            self._fail(trial)
        elif (self._front <= np.array(bound.values) * self._signs).all(axis=1).any():
            self._dominated += 1
            self._answer(trial, self._lesson(bound))
        else:
            self._in_vain = 0
            return False
        self._in_vain += 1
        return True

    def _bound(self, parameters: Params) -> TrialRecord:
        return self._evaluator.answer(Proposal(0, parameters, Effort.OPTIMISTIC))

    def _promising(self, count: int) -> list[tuple[int, ...]]:
        """Draws configurations; returns those that could be the best, at most `count`."""
        sizes = [len(parameter.choices) for parameter in self._space.parameters]
        keys = [
            tuple(int(place) for place in row)
            for row in self._rng.integers(0, sizes, (_DRAWN, len(sizes)))
        ]
        points = {}
        for key in dict.fromkeys(keys):
            bound = self._bound(self._decode(key))
            if bound.status is TrialStatus.FEASIBLE:
                points[key] = np.array(bound.values) * self._signs
        found: list[tuple[int, ...]] = []
        while points and len(found) < count:
            mask = pareto_mask(np.array(list(points.values())), [False] * len(self._signs))
            best = [key for key, chosen in zip(points, mask, strict=True) if chosen]
            found += best
            for key in best:
                del points[key]
        return found[:count]
