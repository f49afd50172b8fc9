"""One problem in, one prediction with its interval out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse.workload.transformer._check import check_parallelism
from dse.workload.transformer._cost import Cost
from dse.workload.transformer._costs import StepCosts, structure_of
from dse.workload.transformer._evaluate import run
from dse.workload.transformer._memory import memory_reason, stage_memory
from dse.workload.transformer._program import program_of
from dse.workload.transformer._types import StepPrediction

if TYPE_CHECKING:
    from dse.workload.transformer._types import StepProblem

#: Standard deviation of the logarithm of actual over expected time, by kind of model. That of
#: products comes from their calibration.
_SPREAD = Cost(attention_s=0.08, stream_s=0.10, host_s=0.30, inside_s=0.15, network_s=0.30)

#: Spread of whole steps beside that of their parts: power, temperature, allocator, data loading.
_STEP_SPREAD = 0.025

#: Arithmetic rate of one compute unit of the device that sustained rates and fused attention were
#: fitted on (A100), and spreads for each e-fold away from it; assumed.
_FITTED_UNIT_RATE = 312e12 / 108
_SUSTAINED_SPREAD_PER_EFOLD = 0.07
_ATTENTION_SPREAD_PER_EFOLD = 0.20

#: Share of a product's spread that all products of a step have in common; the rest averages out
#: over the products of a layer. Chosen so that 90 % of the published steps lie in their interval.
_COMMON_SHARE = 0.6

#: Standard deviations from the median to the ends of a 90 % interval.
_NINETY = 1.645


def predict_step(problem: StepProblem, price_usd_per_hour: float | None = None) -> StepPrediction:
    """Predicts one training step.

    Args:
        problem: What is trained, where and how.
        price_usd_per_hour: Price of the whole cluster, or None when unknown.

    Raises:
        ConfigError: The configuration is impossible; see :func:`check_parallelism`. One that only
            does not fit the memory is predicted and marked as not feasible.
    """
    check_parallelism(
        problem.model, problem.cluster, problem.global_batch_size, problem.parallelism
    )
    program, costs = program_of(structure_of(problem)), StepCosts(problem)
    result = run(program, [costs.of(kind) for kind in program.kinds])
    seconds = result.makespan_s
    width = math.exp(_NINETY * _step_spread(problem, result.critical, costs.product_spread))
    model, device = problem.model, problem.cluster.device
    memory = tuple(stage_memory(problem, stage) for stage in range(problem.parallelism.pipeline))
    reason = memory_reason(memory, device.usable_memory_bytes, device.name)
    throughput = problem.global_batch_size / seconds
    cost = None if price_usd_per_hour is None else price_usd_per_hour / 3600 / throughput * 1e6
    peak = device.peak.of(problem.precision) * problem.cluster.world_size
    return StepPrediction(
        iteration_time_s=seconds,
        iteration_time_p5_s=seconds / width,
        iteration_time_p95_s=seconds * width,
        throughput_samples_per_s=throughput,
        throughput_tokens_per_s=throughput * model.sequence_length,
        model_flops_utilization=model.model_flops_per_sample * throughput / peak,
        price_usd_per_hour=price_usd_per_hour,
        cost_usd_per_million_samples=cost,
        breakdown=result.breakdown,
        memory=memory,
        usable_memory_bytes=device.usable_memory_bytes,
        feasible=not reason,
        infeasible_reason=reason,
    )


def _step_spread(problem: StepProblem, critical: Cost, product_spread: float) -> float:
    """Spread of a step from the shares of its critical path.

    Errors of one kind of model go together, those of different kinds are independent.
    """
    device = problem.cluster.device
    unit_rate = device.peak.of(problem.precision) / device.compute_units
    efolds = abs(math.log(unit_rate / _FITTED_UNIT_RATE))
    spreads = _SPREAD._replace(
        product_s=math.hypot(_COMMON_SHARE * product_spread, _SUSTAINED_SPREAD_PER_EFOLD * efolds),
        attention_s=math.hypot(_SPREAD.attention_s, _ATTENTION_SPREAD_PER_EFOLD * efolds),
    )
    total_s = critical.total_s
    parts = (part * spread / total_s for part, spread in zip(critical, spreads, strict=True))
    return math.hypot(_STEP_SPREAD, *parts)
