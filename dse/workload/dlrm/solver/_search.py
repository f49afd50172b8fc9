"""Plan search: baseline planners first, then local search.

The full model decides what is kept, so no plan is worse than the best baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.sharding import PLANNERS, PlanningRequest
from dse.workload.dlrm._job import DlrmJob
from dse.workload.dlrm.solver._local_search import LocalSearch
from dse.workload.dlrm.solver._result import SolvedPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.sharding import ShardingPlan, ShardingType, TableConstraints
    from dse.workload.dlrm import PlanScorer

#: Plans whose times differ by less are equally fast.
_ROUNDING = 1e-9

#: The same where the host binds: what it hides makes next to no difference.
_TIE = 1e-3

#: Work, collectives or memory that differ by less count as the same.
_SAME = 1e-2

#: Time of plans that do not fit, for each time they would fill the memory.
_OVERFLOW_S = 1e6


@dataclass(frozen=True, slots=True)
class SolverSettings:
    """How much the search may do.

    Attributes:
        planners: Baseline planners that give starts.
        improvement_rounds: Rounds of local search from each start; 0 keeps the best baseline plan.
        max_neighbours: Plans scored in one round.
        restarts: How often the search restarts when no neighbour is better.
        lns: Repack a few ranks of the incumbent by a mixed-integer program (large neighbourhood
            search).
        lp_start: Also start from the linear programs that bound plans. They know which tables to
            take out of a common exchange together, and take a fraction of a second for a hundred
            tables.
        quick: Balance fewer starts and do less in a round. Finds nearly the same plans in a
            fraction of the time.
        time_limit_s: Seconds after which the search stops, between two moves; the result then
            depends on the speed of the machine. None for no limit: the same seed then gives the
            same plan on every machine.
    """

    planners: tuple[str, ...] = tuple(PLANNERS)
    improvement_rounds: int = 12
    max_neighbours: int = 1024
    restarts: int = 2
    lns: bool = True
    lp_start: bool = False
    quick: bool = False
    time_limit_s: float | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError if the time limit is not positive, or no planner is named."""
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise ConfigError(
                f"time limit {self.time_limit_s} s; expected a positive number of seconds, or "
                "none for no limit"
            )
        if not self.planners:
            raise ConfigError(
                "no baseline planner is named; name at least one, such as `size_greedy`"
            )


def planning_request(
    scorer: PlanScorer, allowed_types: frozenset[ShardingType], seed: int
) -> PlanningRequest:
    """Returns the request to the baseline planners for a problem.

    They may fill the memory that is free for tables, less a tenth for indices and buffers.
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
        constraints: Constraints on single tables; they must leave each table a place
            (:func:`dse.sharding.check_constraints`).
        allow_uvm: Whether tables may live in host memory.

    Returns:
        The fastest plan found that fits; if none fits, the one with the least overflow.
    """
    request = replace(
        planning_request(scorer, allowed_types, seed),
        constraints=tuple(constraints),
        allow_uvm=allow_uvm,
    )
    plans = [PLANNERS[name](request) for name in settings.planners]
    penalized_s = _penalized_time(scorer, plans)
    best = int(np.argmin(penalized_s))
    planner = settings.planners[best]
    if settings.improvement_rounds <= 0:
        return SolvedPlan(plans[best], planner, len(plans))
    search = LocalSearch(scorer, request, settings)
    found = search.run(plans[best])
    scored = len(plans) + search.plans_scored + 1
    # The plan itself is scored again: incremental scores may carry rounding.
    chosen, ties = _preferred(scorer, [*plans, found])
    if chosen < len(plans):
        return SolvedPlan(plans[chosen], settings.planners[chosen], scored, ties)
    return SolvedPlan(found, f"{planner} + local search", scored, ties)


def _preferred(scorer: PlanScorer, plans: Sequence[ShardingPlan]) -> tuple[int, int]:
    """Returns the best plan, and how many others take as long because the host binds.

    Of plans that tie, the one with the least work on the devices is best, then the one with the
    least time in collectives, then the one that needs the least memory: it stays ahead when the
    host is faster than predicted.
    """
    time_s = _penalized_time(scorer, plans)
    best = int(np.argmin(time_s))
    within = _ROUNDING
    if time_s[best] < _OVERFLOW_S:
        step = DlrmJob.scored(scorer, plans[best]).simulated()
        within = _TIE if step.host_share > 0.5 else _ROUNDING
    tied: list[int] = np.flatnonzero(time_s <= time_s[best] * (1 + within)).tolist()
    options = np.array([scorer.placements.options_of(plans[place]) for place in tied])
    measures = [
        *np.transpose([scorer.work_and_exchange_s(row) for row in options]),
        scorer.score_options(options).peak_memory_bytes,
    ]
    left = np.arange(len(tied))
    for measure in measures:
        left = left[measure[left] <= measure[left].min() * (1 + _SAME)]
    chosen = tied[int(left[0])]
    others = {plans[place] for place in tied} - {plans[chosen]}
    return chosen, len(others) if within == _TIE else 0


def _penalized_time(scorer: PlanScorer, plans: Sequence[ShardingPlan]) -> NDArray[np.float64]:
    """Returns the iteration time of plans that fit; others come after them, by overflow."""
    cluster = scorer.problem.cluster
    options = np.array([scorer.placements.options_of(plan) for plan in plans])
    scores = scorer.score_options(options)
    overflow = np.maximum(1.0, scores.peak_memory_bytes / cluster.device.usable_memory_bytes)
    overflow += scorer.memory.host_overflow(scorer.placements.features(options), cluster)
    return np.where(scores.fits, scores.iteration_time_s, _OVERFLOW_S * overflow)
