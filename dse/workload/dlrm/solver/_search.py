"""From baseline plans to a better one by local search under the full model.

The starts are the best baseline planner's plan, plans made from predicted costs and, if asked for,
cuts that linear programs choose. The full model decides what is kept (:mod:`_rounds`),
so no plan is worse than the best baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.sharding import PLANNERS, PlanningRequest
from dse.workload.dlrm.solver._rounds import Rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.sharding import ShardingPlan, ShardingType, TableConstraints
    from dse.workload.dlrm import PlanScorer

#: Least relative gain that counts.
_LEAST_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class SolverSettings:
    """How much the inner search may do.

    Attributes:
        planners: Baseline planners that give starts.
        improvement_rounds: Rounds of local search from each start; 0 keeps the best baseline plan.
        max_neighbours: Plans scored in one round.
        restarts: How often the search starts again when no neighbour is better.
        lns: Deal the parts of a few ranks of the best plan out anew by a mixed-integer program.
        lp_start: Start from the linear programs that bound the plans as well. They know which
            tables to take out of the common exchange together, and take a part of a second for a
            hundred tables.
        quick: Start from many plans that are made and scored in one go, and do less in a round.
            Finds better plans of few tables in a fraction of the time, and nearly the same ones of
            hundreds of tables in less.
        time_limit_s: Seconds after which the search stops between two of its steps; the result
            then depends on how many steps the machine managed. None for no limit, which gives the
            same plan for the same seed on every machine.
    """

    planners: tuple[str, ...] = tuple(PLANNERS)
    improvement_rounds: int = 12
    max_neighbours: int = 1024
    restarts: int = 2
    lns: bool = True
    lp_start: bool = False
    quick: bool = False
    time_limit_s: float | None = None


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
    usable_bytes = problem.cluster.device.usable_memory_bytes
    free_bytes = max(0.0, usable_bytes - scorer.memory.fixed_bytes)
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
    *,
    constraints: Sequence[TableConstraints] = (),
    allow_uvm: bool = False,
) -> SolvedPlan:
    """Finds a sharding plan with a short iteration that fits.

    Args:
        scorer: The performance model of the problem.
        allowed_types: Sharding types that may be used.
        settings: How much to do.
        seed: Seed of all draws.
        constraints: What is demanded of single tables; they must leave each table a place
            (:func:`dse.sharding.check_constraints`).
        allow_uvm: Whether tables may live in host memory.

    Returns:
        The fastest plan found among those that fit; when none fits, the one that misses by least.

    Raises:
        ConfigError: The time limit is not positive, or no planner is named.
    """
    if settings.time_limit_s is not None and not settings.time_limit_s > 0:
        raise ConfigError(
            f"time limit {settings.time_limit_s} s; expected a positive number of seconds, or "
            "none for no limit"
        )
    if not settings.planners:
        raise ConfigError("no baseline planner is named; name at least one, such as `size_greedy`")
    request = replace(
        planning_request(scorer, allowed_types, seed),
        constraints=tuple(constraints),
        allow_uvm=allow_uvm,
    )
    plans = [PLANNERS[name](request) for name in settings.planners]
    badness = _badness(scorer, plans)
    best = int(np.argmin(badness))
    planner = settings.planners[best]
    if settings.improvement_rounds <= 0:
        return SolvedPlan(plans[best], planner, len(plans))
    search = Rounds(
        scorer,
        request,
        rounds=settings.improvement_rounds,
        restarts=settings.restarts,
        max_neighbours=settings.max_neighbours,
        lns=settings.lns,
        lp_start=settings.lp_start,
        quick=settings.quick,
        time_limit_s=settings.time_limit_s,
    )
    found = search.run(plans[best])
    scored = len(plans) + search.plans_scored + 1
    # What counts is the score of the plan itself, not that of sums of changes.
    better = _badness(scorer, [found])[0]
    if better < badness[best] * (1 - _LEAST_GAIN):
        return SolvedPlan(found, f"{planner} + local search", scored)
    return SolvedPlan(plans[best], planner, scored)


def _badness(scorer: PlanScorer, plans: Sequence[ShardingPlan]) -> NDArray[np.float64]:
    """Iteration time of plans that fit; plans that do not rank behind them by their overflow."""
    cluster = scorer.problem.cluster
    options = np.array([scorer.placements.options_of(plan) for plan in plans])
    scores = scorer.score_options(options)
    overflow = np.maximum(1.0, scores.peak_memory_bytes / cluster.device.usable_memory_bytes)
    overflow += scorer.memory.host_overflow(scorer.placements.features(options), cluster)
    return np.where(scores.fits, scores.iteration_time_s, 1e6 * overflow)
