"""Sharding of a model: the best plan found, with its bound, or the reason why none fits."""

from __future__ import annotations

from dataclasses import replace
import math
import time
from typing import TYPE_CHECKING

from dse.errors import ConfigError, InfeasibleError
from dse.sharding import (
    ShardingType,
    check_constraints,
    check_plan,
    explain_infeasible,
    format_size,
    total_bytes,
    total_device_bytes,
)
from dse.workload import predict_job
from dse.workload.dlrm._job import DlrmJob
from dse.workload.dlrm.solver._result import ShardingSolution
from dse.workload.dlrm.solver._search import THOROUGHLY, planning_request, solve
from dse.workload.dlrm.solver.bound._lower_bound import lower_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.sharding import PlanningRequest, TableConstraints
    from dse.workload import PlanEffort
    from dse.workload.dlrm.scoring._scorer import PlanScorer

_ALL_TYPES = frozenset(ShardingType)


def find_plan(
    scorer: PlanScorer,
    effort: PlanEffort = THOROUGHLY,
    *,
    allowed_types: frozenset[ShardingType] = _ALL_TYPES,
    constraints: Sequence[TableConstraints] = (),
    allow_uvm: bool = False,
) -> ShardingSolution:
    """Finds the sharding plan with the shortest iteration that fits, and a bound on all of them.

    The plan is that of :func:`dse.workload.dlrm.solver.solve`.

    Args:
        scorer: Performance model of the problem.
        effort: How much to search. The bound takes time beyond its limit.
        allowed_types: Sharding types that may be used.
        constraints: Constraints on single tables.
        allow_uvm: Whether tables may live in host memory.

    Raises:
        ConfigError: Constraints exclude each other, or UVM is requested on a device without its
            own memory.
        InfeasibleError: No plan fits.
    """
    started = time.monotonic()
    request = replace(
        planning_request(scorer, allowed_types, effort.seed),
        constraints=tuple(constraints),
        allow_uvm=allow_uvm,
    )
    check_request(scorer, request)
    reason = _why_infeasible(scorer, request)
    if reason:
        raise InfeasibleError(reason)

    solved = solve(
        scorer,
        effort,
        allowed_types=allowed_types,
        constraints=constraints,
        allow_uvm=allow_uvm,
    )
    checked = check_plan(solved.plan, request.tables, request.world_size, request.devices_per_node)
    prediction = predict_job(DlrmJob.scored(scorer, checked))
    if not prediction.feasible:
        raise InfeasibleError(_not_found(scorer, request, prediction.infeasible_reason))
    planned = time.monotonic()
    bound = lower_bound(scorer, request, incumbent_s=prediction.iteration_time_s)
    return ShardingSolution(
        plan=checked,
        iteration_time_s=prediction.iteration_time_s,
        lower_bound_s=bound.iteration_time_s,
        gap=bound.gap(prediction.iteration_time_s),
        planning_time_s=planned - started,
        bound_time_s=time.monotonic() - planned,
        plans_scored=solved.plans_scored,
        planner=solved.planner,
        fits=prediction.feasible,
        peak_memory_bytes=max(prediction.memory_bytes_per_rank),
        ties=solved.ties,
        time_without_hot_rows_s=solved.time_without_hot_rows_s,
    )


def check_request(scorer: PlanScorer, request: PlanningRequest) -> None:
    """Checks that every table has a place.

    Args:
        scorer: Performance model of the problem.
        request: What may be placed where.

    Raises:
        ConfigError: Constraints exclude each other, or UVM is requested on a device without its
            own memory.
    """
    device = scorer.problem.cluster.device
    if device.kind != "gpu" and request.may_use_host:
        raise ConfigError(
            f"tables in host memory need a device with its own memory, which {device.name} does "
            "not have; leave UVM out"
        )
    check_constraints(request)


def _free_bytes(scorer: PlanScorer) -> float:
    """Returns the memory of a rank that is free for tables."""
    return scorer.problem.cluster.device.usable_memory_bytes - scorer.memory.fixed_bytes


def _free_bytes_at(scorer: PlanScorer, world_size: int) -> float | None:
    """Returns the same on another number of ranks; None where the job cannot run."""
    problem = scorer.problem
    cluster = replace(problem.cluster, world_size=world_size)
    if not cluster.evenly_filled:
        return None
    try:
        there = replace(problem, cluster=cluster)
    except ConfigError:
        return None
    return problem.cluster.device.usable_memory_bytes - scorer.memory.of(there).fixed_bytes


def _why_infeasible(scorer: PlanScorer, request: PlanningRequest) -> str:
    free_bytes = _free_bytes(scorer)
    # Planners leave room for indices and buffers; remedies leave the same share.
    share = request.embedding_memory_bytes / free_bytes if free_bytes > 0 else 0.0

    def memory_at(world_size: int) -> float | None:
        there = _free_bytes_at(scorer, world_size)
        return None if there is None else share * max(0.0, there)

    def host_at(world_size: int) -> float:
        cluster = replace(scorer.problem.cluster, world_size=world_size)
        if cluster.host_memory_bytes is None:
            return math.inf
        return cluster.host_memory_bytes * cluster.node_count

    return explain_infeasible(request, free_bytes, memory_at, host_at)


def _not_found(scorer: PlanScorer, request: PlanningRequest, reason: str) -> str:
    cluster = scorer.problem.cluster
    available = request.world_size * _free_bytes(scorer)
    hints = ["more sharding types"] if request.allowed_types != _ALL_TYPES else []
    hints += ["fewer constraints"] if request.constraints else []
    hints += [] if request.allow_uvm else ["--allow-uvm"]
    least, host = total_device_bytes(request), ""
    if request.may_use_host:
        least = total_bytes(request.tables, request.optimizer)
        if cluster.host_memory_bytes is not None:
            host = f", and of {format_size(cluster.host_memory_bytes)} of host memory a node"
    remedies = ", ".join([*hints, "more ranks"])
    return (
        f"no plan was found that fits; the best plan found: {reason}. All tables together take at "
        f"least {format_size(least)} of the {format_size(available)} that "
        f"{request.world_size} ranks have for them{host}; allow {remedies}"
    )
