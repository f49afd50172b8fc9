"""One configuration in, one prediction with its interval out."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING
import zlib

import numpy as np

from dse.graph import meeting_members
from dse.simulate import SyncScope, Timeline, breakdown, breakdown_of_copies
from dse.workload.dlrm._slots import DurationClass
from dse.workload.dlrm._types import Prediction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.sharding import ShardingPlan
    from dse.simulate import RankBreakdown, SymmetricRanks
    from dse.workload.dlrm._filled import FilledIteration
    from dse.workload.dlrm._scorer import PlanScorer
    from dse.workload.dlrm._types import RankMemory

_GIB = 2**30

_SAMPLES = 200


@dataclass(frozen=True, slots=True)
class Interval:
    """A 90 % interval in seconds."""

    p5_s: float
    p95_s: float


def predict_plan(
    scorer: PlanScorer, plan: ShardingPlan, price_usd_per_hour: float | None
) -> Prediction:
    """Predicts one plan with breakdown, memory and uncertainty.

    Args:
        scorer: The performance model of the problem.
        plan: A plan that has been checked against model and cluster.
        price_usd_per_hour: Price of the whole cluster, or None when unknown.
    """
    problem = scorer.problem
    filled = scorer.filled(plan)
    start_s, end_s = (
        times[..., 0] for times in filled.ranks.times_s(filled.duration_s[..., None])
    )
    iteration_time_s = float(end_s.max(initial=0.0))
    interval = _interval(filled, problem.software.spread, iteration_time_s)
    features = scorer.features(plan)
    memory = tuple(
        scorer.memory.by_purpose(features, rank) for rank in range(problem.cluster.world_size)
    )
    usable_bytes = problem.cluster.device.usable_memory_bytes
    reason = _memory_reason(memory, usable_bytes, problem.cluster.device.name)
    reason = reason or _host_memory_reason(memory, problem.cluster)
    throughput = problem.global_batch_size / iteration_time_s
    cost = None if price_usd_per_hour is None else price_usd_per_hour / 3600 / throughput * 1e6
    return Prediction(
        iteration_time_s=iteration_time_s,
        iteration_time_p5_s=interval.p5_s,
        iteration_time_p95_s=interval.p95_s,
        throughput_samples_per_s=throughput,
        price_usd_per_hour=price_usd_per_hour,
        cost_usd_per_million_samples=cost,
        breakdown=_breakdown(filled, start_s, end_s),
        memory=memory,
        usable_memory_bytes=usable_bytes,
        feasible=not reason,
        infeasible_reason=reason,
    )


def sample_iteration_times_s(scorer: PlanScorer, plan: ShardingPlan) -> NDArray[np.float64]:
    """Draws iteration times of a plan under the spread of the models.

    Each duration varies by the spread that its model states: that of held-out residuals where it
    was fitted, an assumption elsewhere.

    Errors are half shared and half individual (in variance): a model that is wrong about lookups
    is wrong about all of them in the same way, and besides about each one in its own. The shared
    part uses the same random numbers for every plan, so that samples of two plans can be compared
    pairwise and only what differs between the plans decides.

    Args:
        scorer: The performance model of the problem.
        plan: A plan that has been checked against model and cluster.

    Returns:
        Seconds; shape `(samples,)`. The seed is fixed: the spread is a property of the
        configuration, not of the run.
    """
    return _sample(scorer.filled(plan), scorer.problem.software.spread)


def _breakdown(
    filled: FilledIteration, start_s: NDArray[np.float64], end_s: NDArray[np.float64]
) -> tuple[RankBreakdown, ...]:
    """Returns where each rank's time goes; times have shape `(tasks, copies)`."""
    graph = filled.layout.graph
    if len({lane.rank for lane in graph.lanes}) == 1:
        return breakdown_of_copies(graph, start_s, end_s)
    return breakdown(Timeline(graph, start_s[:, 0], start_s[:, 0], end_s[:, 0]))


def _sample(filled: FilledIteration, software_spread: float) -> NDArray[np.float64]:
    shared = np.random.default_rng(0).standard_normal((len(DurationClass), _SAMPLES))
    # Different durations give a different stream, so two plans' individual errors are independent.
    stream = zlib.crc32(filled.duration_s.tobytes())
    shape = (*filled.duration_s.shape, _SAMPLES)
    exponents = np.random.default_rng(stream).standard_normal(shape)
    exponents += shared[filled.layout.duration_class][:, None]
    exponents *= filled.spread[:, None, None] * math.sqrt(0.5)
    np.exp(exponents, out=exponents)
    exponents *= filled.duration_s[..., None]
    share_within_meetings(filled.ranks, exponents)
    times_s = filled.ranks.last_end_s(exponents)
    # What is not known of the program is the same for every plan.
    unknown = np.random.default_rng(1).standard_normal(_SAMPLES)
    return np.asarray(times_s * np.exp(software_spread * unknown))


def share_within_meetings(ranks: SymmetricRanks, durations: NDArray[np.float64]) -> None:
    """Gives all members of a meeting the first member's sample: it is one transfer.

    Args:
        ranks: The graph.
        durations: Samples, changed in place; shape `(tasks, copies, samples)`.
    """
    for index, members in meeting_members(ranks.graph).items():
        drawn = durations[members[0]].reshape(ranks.node_count, ranks.local_size, -1)
        meets = ranks.scopes[index]
        first = drawn[
            : 1 if meets & SyncScope.ACROSS else ranks.node_count,
            : 1 if meets & SyncScope.NODE else ranks.local_size,
        ]
        drawn[:] = first
        durations[members] = durations[members[0]]


def _interval(
    filled: FilledIteration, software_spread: float, iteration_time_s: float
) -> Interval:
    low, high = np.quantile(_sample(filled, software_spread), (0.05, 0.95))
    return Interval(min(float(low), iteration_time_s), max(float(high), iteration_time_s))


def _memory_reason(memory: tuple[RankMemory, ...], usable_bytes: float, device: str) -> str:
    """Says which rank does not fit, by how much, and what fills it; empty when all fit."""
    totals = [rank_memory.total_bytes for rank_memory in memory]
    fullest = int(np.argmax(totals))
    if totals[fullest] <= usable_bytes:
        return ""
    parts = {
        "embedding weights": memory[fullest].embedding_weights_bytes,
        "embedding optimizer state": memory[fullest].embedding_optimizer_bytes,
        "dense parameters": memory[fullest].dense_parameters_bytes,
        "activations": memory[fullest].activations_bytes,
        "indices and pooled embeddings": memory[fullest].embedding_io_bytes,
        "communication buffers": memory[fullest].communication_buffers_bytes,
    }
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    named = ", ".join(f"{name} {size / _GIB:.1f} GiB" for name, size in largest)
    over = sum(total > usable_bytes for total in totals)
    others = f" ({over} of {len(totals)} ranks do not fit)" if over > 1 else ""
    return (
        f"out of memory: rank {fullest} needs {totals[fullest] / _GIB:.1f} GiB ({named}) of "
        f"{usable_bytes / _GIB:.1f} GiB usable on {device}{others}"
    )


def _host_memory_reason(memory: tuple[RankMemory, ...], cluster: Cluster) -> str:
    """Says which node's host memory is too small; empty when all fit or the size is not known."""
    limit_bytes = cluster.host_memory_bytes
    if limit_bytes is None:
        return ""
    held = [0.0] * cluster.node_count
    for rank, rank_memory in enumerate(memory):
        held[cluster.node_of(rank)] += rank_memory.embedding_host_bytes
    fullest = int(np.argmax(held))
    if held[fullest] <= limit_bytes:
        return ""
    return (
        f"out of host memory: tables of node {fullest} need {held[fullest] / _GIB:.1f} GiB of "
        f"{limit_bytes / _GIB:.1f} GiB; spread them over more nodes or keep more on the devices"
    )
