"""Choice of a strategy for a space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.search.evaluate._distinct import enumerate_space
from dse.search.propose._best_first import BestFirst
from dse.search.propose._bounded import BoundedProposer
from dse.search.propose._proposer import Proposer
from dse.search.space import PlanSearch, SamplerName

if TYPE_CHECKING:
    from dse.search.evaluate._evaluator import Evaluator
    from dse.search.propose._strategy import Strategy
    from dse.search.space import SearchSpace

#: Most configurations of a space that is enumerated: each takes a tenth of a millisecond.
MOST_ENUMERATED = 200_000

#: Configurations that a sampler evaluates if nobody says how many.
DEFAULT_TRIALS = 300


def searched_exactly(space: SearchSpace, sampler: SamplerName, *, bounds_time: bool) -> bool:
    """Returns whether the whole front of a space is found and proven.

    Args:
        space: The search space.
        sampler: How it is to be searched.
        bounds_time: Whether configurations have a time that they cannot beat. Without one all of
            them are evaluated.
    """
    most = MOST_ENUMERATED if bounds_time else DEFAULT_TRIALS
    return (
        sampler is SamplerName.AUTO
        and space.size <= most
        and space.search.plan is PlanSearch.SOLVER
    )


def trials_wanted(space: SearchSpace, sampler: SamplerName, *, bounds_time: bool) -> int:
    """Returns how many configurations to evaluate at most if nobody says how many; see above."""
    if searched_exactly(space, sampler, bounds_time=bounds_time):
        return space.size
    return DEFAULT_TRIALS


def make_strategy(
    space: SearchSpace, sampler: SamplerName, seed: int, evaluator: Evaluator
) -> Strategy:
    """Returns what proposes configurations.

    Args:
        space: The search space.
        sampler: How it is to be searched.
        seed: Seed of samplers; the exact search draws nothing.
        evaluator: Bounds and rejects configurations, and says which are equal.

    Raises:
        OptionalDependencyError: What the sampler needs is not installed.
    """
    if searched_exactly(space, sampler, bounds_time=evaluator.bounds_time):
        return BestFirst(space, enumerate_space(space, evaluator), evaluator)
    if sampler is not SamplerName.AUTO:
        return Proposer(space, sampler, seed, evaluator)
    if evaluator.bounds_time and space.search.plan is PlanSearch.SOLVER:
        return BoundedProposer(space, seed, evaluator)
    return Proposer(space, SamplerName.NSGA2, seed, evaluator)
