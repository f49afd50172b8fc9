"""Whether two predicted steps can be told apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
import zlib

import numpy as np

from dse.workload.dlrm import PairedComparison
from dse.workload.transformer._check import check_parallelism
from dse.workload.transformer._cost import Cost
from dse.workload.transformer._costs import StepCosts, structure_of
from dse.workload.transformer._evaluate import run
from dse.workload.transformer._predict import _step_spread
from dse.workload.transformer._program import program_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.workload.transformer._types import StepProblem

_SAMPLES = 2000


def compare_steps(first: StepProblem, second: StepProblem) -> PairedComparison:
    """Compares the throughput of two predicted steps.

    Errors of the same model, such as one that is wrong about all products alike, are half shared
    by both steps and half their own (in variance), as for recommendation models.

    Args:
        first: What is trained, where and how.
        second: The same of the other.

    Raises:
        ConfigError: A configuration is impossible; see :func:`check_parallelism`.
    """
    times_s, samples = [], []
    for problem in (first, second):
        expected_s, drawn_s = _samples(problem)
        times_s.append(expected_s / problem.global_batch_size)
        samples.append(drawn_s / problem.global_batch_size)
    ratios = samples[0] / samples[1]
    low, high = (float(value) for value in np.quantile(ratios, (0.05, 0.95)))
    ratio = times_s[0] / times_s[1]
    return PairedComparison(
        ratio=ratio,
        ratio_p5=min(low, ratio),
        ratio_p95=max(high, ratio),
        faster_share=float((ratios > 1.0).mean()),
        tie=low <= 1.0 <= high,
    )


def _samples(problem: StepProblem) -> tuple[float, NDArray[np.float64]]:
    """Expected time of a step, and times under errors of the models along its critical path."""
    check_parallelism(
        problem.model, problem.cluster, problem.global_batch_size, problem.parallelism
    )
    program, costs = program_of(structure_of(problem)), StepCosts(problem)
    result = run(program, [costs.of(kind) for kind in program.kinds])
    critical = np.array(result.critical)
    shape = (len(critical), _SAMPLES)
    shared = np.random.default_rng(0).standard_normal(shape)
    # Different steps have errors of their own; the same step has the same.
    stream = np.random.default_rng(zlib.crc32(critical.tobytes()))
    exponents = math.sqrt(0.5) * (shared + stream.standard_normal(shape))
    exponents *= _part_spreads(problem, costs.product_spread)[:, None]
    return result.makespan_s, critical @ np.exp(exponents)


def _part_spreads(problem: StepProblem, product_spread: float) -> NDArray[np.float64]:
    """Spread of each part of a cost, what is common to all of a step included."""
    whole = np.eye(len(Cost._fields)).tolist()
    return np.array([_step_spread(problem, Cost(*one), product_spread) for one in whole])
