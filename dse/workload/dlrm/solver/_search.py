"""Plan search: baseline planners first, then local search.

The full model decides what is kept, so no plan is worse than the best baseline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.sharding import PLANNERS, PlanningRequest, ShardingType, hot_row_counts
from dse.workload import PlanEffort
from dse.workload.dlrm._job import DlrmJob
from dse.workload.dlrm.scoring._scorer import PlanScorer
from dse.workload.dlrm.solver._local_search import LocalSearch
from dse.workload.dlrm.solver._result import SolvedPlan
from dse.workload.dlrm.solver.moves import OVERFLOW_S, penalized_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.sharding import ShardingPlan, TableConstraints

#: Plans whose times differ by less are equally fast.
_ROUNDING = 1e-9

#: The same where the host binds: what it hides makes next to no difference.
_TIE = 1e-3

#: Work, collectives or memory that differ by less count as the same.
_SAME = 1e-2

_ALL_TYPES = frozenset(ShardingType)

#: Tables beyond which one number of hot rows is tried for each: three of them take a bound of 856
#: tables on 64 ranks half a minute.
_MANY_TABLES = 200

#: What a single problem gets by default.
THOROUGHLY = PlanEffort()


def planning_request(
    scorer: PlanScorer,
    allowed_types: frozenset[ShardingType],
    seed: int,
    *,
    hot_rows: bool | None = None,
) -> PlanningRequest:
    """Returns the request to the baseline planners for a problem.

    They may fill the memory that is free for tables, less a tenth for indices and buffers.

    Args:
        scorer: The performance model of the problem.
        allowed_types: Sharding types that may be used.
        seed: Seed of random planners.
        hot_rows: Whether tables may have hot rows; None if the program can keep them.
    """
    problem = scorer.problem
    usable_bytes = problem.cluster.device.usable_memory_bytes
    free_bytes = max(0.0, usable_bytes - scorer.memory.fixed_bytes)
    counts: tuple[tuple[int, ...], ...] = ()
    allowed = problem.software.hot_rows if hot_rows is None else hot_rows
    if allowed and problem.cluster.world_size > 1:
        tables, samples = problem.model.tables, problem.local_batch_size
        few = len(tables) > _MANY_TABLES
        counts = tuple(hot_row_counts(table, samples, few=few) for table in tables)
    return PlanningRequest(
        tables=problem.model.tables,
        optimizer=problem.model.sparse_optimizer,
        world_size=problem.cluster.world_size,
        # A plan's node is what the link joins, so the ranks of a pod are one: TorchRec, too,
        # shards "over a node" over an NVLink domain (`pod_size` of its planner's topology).
        devices_per_node=problem.cluster.devices_per_domain,
        allowed_types=allowed_types,
        embedding_memory_bytes=0.9 * free_bytes,
        seed=seed,
        hot_rows=counts,
    )


def solve(
    scorer: PlanScorer,
    effort: PlanEffort = THOROUGHLY,
    *,
    allowed_types: frozenset[ShardingType] = _ALL_TYPES,
    constraints: Sequence[TableConstraints] = (),
    allow_uvm: bool = False,
    hot_rows: bool | None = None,
) -> SolvedPlan:
    """Finds a sharding plan with a short iteration that fits.

    A plan that should leave memory free is searched for a second time if the first one does not.
    Where tables may have hot rows, a thorough search begins with one without them, half of the
    time, so its plan is never slower.

    Args:
        scorer: The performance model of the problem.
        effort: How much to search.
        allowed_types: Sharding types that may be used.
        constraints: Constraints on single tables; they must leave each table a place
            (:func:`dse.sharding.check_constraints`).
        allow_uvm: Whether tables may live in host memory.
        hot_rows: Whether tables may have hot rows; None if the program can keep them.

    Returns:
        The fastest plan found that fits; if none fits, the one with the least overflow.

    Raises:
        ConfigError: The effort names an unknown baseline planner.
    """

    def requested(model: PlanScorer) -> PlanningRequest:
        return replace(
            planning_request(model, allowed_types, effort.seed, hot_rows=hot_rows),
            constraints=tuple(constraints),
            allow_uvm=allow_uvm,
        )

    def searched(model: PlanScorer) -> SolvedPlan:
        request = requested(model)
        if effort.quick or effort.improvement_rounds == 0 or not any(request.hot_rows):
            return _searched(model, request, effort)
        limit_s = effort.time_limit_s
        half = replace(effort, time_limit_s=None if limit_s is None else limit_s / 2)
        without = _searched(model, replace(request, hot_rows=()), half)
        found = _searched(model, request, half, without.plan)
        return replace(
            found,
            plans_scored=without.plans_scored + found.plans_scored,
            time_without_hot_rows_s=float(_penalized_s(model, [without.plan])[0]),
        )

    found = searched(scorer)
    if effort.headroom > 0 and 0.0 <= _free_share(scorer, found.plan) < effort.headroom:
        within = searched(_with_headroom(scorer, effort.headroom))
        if _free_share(scorer, within.plan) >= effort.headroom:
            scored = found.plans_scored + within.plans_scored
            found = replace(within, plans_scored=scored)
    return found


def _searched(
    scorer: PlanScorer,
    request: PlanningRequest,
    effort: PlanEffort,
    known: ShardingPlan | None = None,
) -> SolvedPlan:
    """Returns the fastest plan found that fits, whatever memory it leaves free.

    The search also starts from a plan that is known already.
    """
    planners = effort.planners or tuple(PLANNERS)
    if unknown := [name for name in planners if name not in PLANNERS]:
        raise ConfigError(
            f"unknown baseline planner `{unknown[0]}`; expected one of {', '.join(PLANNERS)}"
        )
    plans = [PLANNERS[name](request) for name in planners]
    if effort.improvement_rounds == 0:
        best = int(np.argmin(_penalized_s(scorer, plans)))
        return SolvedPlan(plans[best], planners[best], len(plans))
    search = LocalSearch(scorer, request, effort)
    time_s, starts = search.scored(plans)
    best = int(np.argmin(time_s))
    planner = planners[best]
    found = search.run(starts[best], known)
    scored = search.plans_scored + 1
    # The plan itself is scored again: incremental scores may carry rounding.
    time_s = np.append(time_s, _penalized_s(scorer, [found]))
    chosen, ties = _preferred(scorer, [*plans, found], time_s)
    if chosen < len(plans):
        return SolvedPlan(plans[chosen], planners[chosen], scored, ties)
    return SolvedPlan(found, f"{planner} + local search", scored, ties)


def _preferred(
    scorer: PlanScorer, plans: Sequence[ShardingPlan], time_s: NDArray[np.float64]
) -> tuple[int, int]:
    """Returns the best plan, and how many others take as long because the host binds.

    Of plans that tie, the one with the least work on the devices is best, then the one with the
    least time in collectives, then the one that needs the least memory: it stays ahead when the
    host is faster than predicted.

    Args:
        scorer: The performance model of the problem.
        plans: The plans.
        time_s: Their times as of :func:`_penalized_s`; shape `(plans,)`.
    """
    best = int(np.argmin(time_s))

    def within(share: float) -> list[int]:
        near: list[int] = np.flatnonzero(time_s <= time_s[best] * (1 + share)).tolist()
        return near

    tied = within(_TIE)
    if len(tied) == 1:
        # By far the most common case, and what binds makes no difference.
        return best, 0
    host_binds = (
        bool(time_s[best] < OVERFLOW_S)
        and DlrmJob.scored(scorer, plans[best]).simulated().host_share > 0.5
    )
    if not host_binds:
        tied = within(_ROUNDING)
    equal = [plans[place] for place in tied]
    measures = [
        *np.transpose([scorer.work_and_exchange_s(plan) for plan in equal]),
        scorer.score(equal).peak_memory_bytes,
    ]
    left = np.arange(len(tied))
    for measure in measures:
        left = left[measure[left] <= measure[left].min() * (1 + _SAME)]
    chosen = tied[int(left[0])]
    others = {plans[place] for place in tied} - {plans[chosen]}
    return chosen, len(others) if host_binds else 0


def _penalized_s(scorer: PlanScorer, plans: Sequence[ShardingPlan]) -> NDArray[np.float64]:
    """Returns the iteration time of plans that fit; others come after them, by overflow."""
    options = np.array([scorer.placements.options_of(plan) for plan in plans])
    scores = scorer.score_options(options)
    if scores.fits.all():
        return scores.iteration_time_s
    return penalized_s(scorer, scores, scorer.placements.features(options))


def _free_share(scorer: PlanScorer, plan: ShardingPlan) -> float:
    """Returns the share of usable memory that the fullest rank leaves free; negative if none."""
    usable_bytes = scorer.problem.cluster.device.usable_memory_bytes
    return 1.0 - float(scorer.memory.total_bytes(scorer.features(plan)).max()) / usable_bytes


def _with_headroom(scorer: PlanScorer, share: float) -> PlanScorer:
    """Returns the model of devices with a share of their usable memory less."""
    cluster = scorer.problem.cluster
    device = cluster.device
    reserved_bytes = device.reserved_memory_bytes + share * device.usable_memory_bytes
    smaller = replace(cluster, device=replace(device, reserved_memory_bytes=reserved_bytes))
    return PlanScorer(replace(scorer.problem, cluster=smaller))
