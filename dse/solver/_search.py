"""From baseline plans to a better one by local search under the full model.

The start is the best of the baseline planners' plans. Each round scores a neighbourhood of the
incumbent in one batch (move a table, cut it differently, swap two tables), orders the improving
changes of different tables by gain, and keeps the best prefix of them. The search ends when no
neighbour is better or the rounds are used up. It draws nothing, so it is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import PLANNERS, PlanningRequest
from dse.solver._neighbours import Neighbourhood

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.prediction import PlanScorer, PlanScores
    from dse.sharding import ShardingPlan, ShardingType

#: Improving changes that are tried together in one round.
_MAX_COMBINED = 12


@dataclass(frozen=True, slots=True)
class SolverSettings:
    """How much the inner search may do.

    Attributes:
        planners: Baseline planners that give the starts.
        improvement_rounds: Rounds of local search; 0 keeps the best baseline plan.
        max_neighbours: Plans scored in one round.
    """

    planners: tuple[str, ...] = tuple(PLANNERS)
    improvement_rounds: int = 12
    max_neighbours: int = 1024


@dataclass(frozen=True, slots=True)
class SolvedPlan:
    """The best plan found.

    Attributes:
        plan: The plan.
        planner: How it was found, in words.
        plans_scored: Plans that were scored on the way.
    """

    plan: ShardingPlan
    planner: str
    plans_scored: int


def planning_request(
    scorer: PlanScorer, allowed_types: frozenset[ShardingType], seed: int
) -> PlanningRequest:
    """Returns what the baseline planners are asked for a problem.

    The memory they may fill is what the parts of a rank's memory that no plan changes leave free,
    less a tenth for indices and buffers that follow the tables.
    """
    problem = scorer.problem
    memory = scorer.memory
    fixed_bytes = (
        memory.dense_parameters_bytes
        + memory.activations_bytes
        + memory.fixed_io_bytes
        + memory.fixed_buffers_bytes
    )
    free_bytes = max(0.0, problem.cluster.device.usable_memory_bytes - fixed_bytes)
    return PlanningRequest(
        tables=problem.model.tables,
        optimizer=problem.model.sparse_optimizer,
        world_size=problem.cluster.world_size,
        devices_per_node=problem.cluster.devices_per_node,
        allowed_types=allowed_types,
        embedding_memory_bytes=0.9 * free_bytes,
        seed=seed,
    )


def solve(
    scorer: PlanScorer,
    allowed_types: frozenset[ShardingType],
    settings: SolverSettings,
    seed: int = 0,
) -> SolvedPlan:
    """Finds a sharding plan with a short iteration that fits.

    Args:
        scorer: The performance model of the problem.
        allowed_types: Sharding types that may be used.
        settings: How much to do.
        seed: Seed of the planners that draw.

    Returns:
        The fastest plan found among those that fit; when none fits, the one that misses by least.
    """
    request = planning_request(scorer, allowed_types, seed)
    starts = np.array(
        [scorer.placements.options_of(PLANNERS[name](request)) for name in settings.planners]
    )
    badness = _badness(scorer, scorer.score_options(starts))
    best = int(np.argmin(badness))
    options, value, scored = starts[best], float(badness[best]), len(starts)
    planner = settings.planners[best]
    neighbourhood = Neighbourhood(scorer, request, settings.max_neighbours)
    improved = False
    for _ in range(settings.improvement_rounds):
        changes = neighbourhood.around(options)
        if not len(changes):
            break
        values = _badness(scorer, scorer.score_options(changes))
        scored += len(changes)
        combined = _combine(options, changes, values, value)
        if not len(combined):
            break
        values = _badness(scorer, scorer.score_options(combined))
        scored += len(combined)
        winner = int(np.argmin(values))
        if not values[winner] < value * (1 - 1e-9):
            break
        options, value, improved = combined[winner], float(values[winner]), True
    label = f"{planner} + local search" if improved else planner
    return SolvedPlan(scorer.placements.plan_of(options), label, scored)


def _badness(scorer: PlanScorer, scores: PlanScores) -> NDArray[np.float64]:
    """Iteration time of plans that fit; plans that do not rank behind them by their overflow."""
    usable = scorer.problem.cluster.device.usable_memory_bytes
    overflow = scores.peak_memory_bytes / usable
    return np.where(scores.fits, scores.iteration_time_s, 1e6 * overflow)


def _combine(
    options: NDArray[np.int64],
    changes: NDArray[np.int64],
    values: NDArray[np.float64],
    value: float,
) -> NDArray[np.int64]:
    """Returns prefixes of the improving changes, best first, that touch different tables."""
    order: Sequence[int] = np.argsort(values, kind="stable").tolist()
    combined: list[NDArray[np.int64]] = []
    current = options.copy()
    touched = np.zeros(len(options), dtype=bool)
    for index in order:
        if values[index] >= value or len(combined) == _MAX_COMBINED:
            break
        changed = changes[index] != options
        if (changed & touched).any():
            continue
        touched |= changed
        current = np.where(changed, changes[index], current)
        combined.append(current)
    return np.array(combined, dtype=np.int64).reshape(-1, len(options))
