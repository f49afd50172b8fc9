"""The reliability of predicted distributions, by hand."""

from __future__ import annotations

import importlib
import json
import math
import sys

import numpy as np
import pytest

from dse.machine.platforms import load_platform
from dse.workload import load_workload
from dse.workload._step_errors import (
    TAIL,
    TRANSFORMER_MEDIAN,
    ErrorShape,
    StepErrors,
    error_quantiles,
)
from tests.conftest import ROOT


@pytest.fixture
def benchmark(monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if not name.startswith(("dse", "numpy", "pandas", "scipy")):
            sys.modules.pop(name, None)


def test_reliability_by_hand(benchmark):
    probability = benchmark("probability")
    # Twenty measured times, one at each twentieth of its own prediction.
    even = [(place + 0.5) / 20 for place in range(20)]
    assert probability.largest_deviation(even) == pytest.approx(0.0)
    assert probability.reliability(even)[0.75] == pytest.approx(0.75)
    # All measured in the middle: no one is below the lower quarter, all below the upper one.
    middle = [0.49] * 8
    assert probability.reliability(middle)[0.25] == 0.0
    assert probability.reliability(middle)[0.75] == 1.0
    assert probability.largest_deviation(middle) == pytest.approx(0.5)
    # Every prediction far too slow.
    assert probability.largest_deviation([0.0]) == pytest.approx(0.95)


def test_chance_shrinks_with_cases(benchmark):
    by_chance = benchmark("probability").by_chance
    few, many = by_chance(10), by_chance(1000)
    assert many < 0.03 < few < 0.3


def test_the_error_of_a_published_step(benchmark):
    steps = benchmark("published_steps")
    parameters = {"platform": "h100_sxm", "world_size": 8, "global_batch_size": 64}
    job = load_workload("gpt_1_7b").job(load_platform("h100_sxm"), parameters)
    samples_s = job.sample_times_s()
    quarter_s = float(np.quantile(samples_s, 0.25, method="hazen"))
    error = steps.PublishedStep("one", "megatron", quarter_s, job).step_error
    assert error.share_faster == pytest.approx(0.25)
    assert error.log_error == pytest.approx(math.log(quarter_s / job.simulated().time_s))
    assert 0 < error.kernel_spread < 0.5
    assert steps.PublishedStep("one", "megatron", math.nan, job).step_error is None
    assert steps.PublishedStep("one", "megatron", 1.0).step_error is None


def drawn(benchmark, program, spread, count=900, experts=0.0, tail=TAIL, median=0.0):
    """Steps of a program whose errors are drawn, without errors of kernels."""
    step_errors = benchmark("step_errors")
    errors = np.hypot(spread, experts) * error_quantiles(count, tail, median)
    return [
        step_errors.StepError(
            *(program, f"m{place % 9}", "", 8, experts > 0, error, 0.0, math.nan, median > 0)
        )
        for place, error in enumerate(errors)
    ]


def test_spreads_that_steps_were_drawn_with_are_found(benchmark):
    step_errors = benchmark("step_errors")
    steps = drawn(benchmark, "a", 0.03) + drawn(benchmark, "b", 0.2)
    found = step_errors.fitted(steps + drawn(benchmark, "a", 0.03, experts=0.1))
    for name, spread in (("a", 0.03), ("b", 0.2)):
        assert found.programs[name][:2] == pytest.approx((spread, TAIL), rel=0.1)
    assert found.experts == pytest.approx(0.1, rel=0.1)
    assert found.without_steps == pytest.approx(math.sqrt((0.03**2 + 0.2**2) / 2), rel=0.1)
    shares = step_errors.shares_faster(steps[900:], found)
    assert benchmark("probability").largest_deviation(shares) < 0.03


def test_programs_have_tails_of_their_own(benchmark):
    step_errors = benchmark("step_errors")
    steps = drawn(benchmark, "a", 0.05, tail=0.15) + drawn(benchmark, "b", 0.05, tail=0.9)
    found = step_errors.fitted(steps)
    for name, tail in (("a", 0.15), ("b", 0.9)):
        assert found.programs[name][:2] == pytest.approx((0.05, tail), rel=0.3)
    one = step_errors.fitted(steps, step_errors.Shape(tail_spread=0.0))
    assert {shape.tail for shape in one.programs.values()} == {TAIL}
    # The distribution of a program with many outliers is right with its own tail alone.
    deviation = benchmark("probability").largest_deviation
    own, common = (step_errors.shares_faster(steps[900:], shapes) for shapes in (found, one))
    assert deviation(own) < deviation(common) / 2


def test_few_steps_that_agree_make_no_certainty(benchmark):
    step_errors = benchmark("step_errors")
    many, few = drawn(benchmark, "a", 0.1), drawn(benchmark, "b", 0.001, count=2)
    assert step_errors.fitted(many + few).programs["b"].scale > 0.01


def test_a_left_out_program_has_the_spread_of_the_others(benchmark):
    step_errors = benchmark("step_errors")
    steps = drawn(benchmark, "a", 0.1, count=90) + drawn(benchmark, "b", 0.1, count=90)
    shares = step_errors.left_out(steps, "program")
    assert benchmark("probability").inside(shares) == pytest.approx(0.9, abs=0.05)
    # Both are as fast as predicted in the middle, so nothing is there to be removed.
    np.testing.assert_allclose(
        step_errors.left_out(steps, "program", centred=True), shares, atol=0.01
    )


def test_groups_that_agree_leave_no_doubt(benchmark):
    step_errors = benchmark("step_errors")
    steps = drawn(benchmark, "a", 0.1, count=9)
    assert step_errors.group_error(steps, np.zeros(9), lambda values: float(values.mean())) == 0.0
    assert math.isnan(step_errors.group_error(steps[:1], np.zeros(1), len))


def test_what_is_written_is_what_dse_reads(benchmark, tmp_path):
    step_errors = benchmark("step_errors")
    found = StepErrors({"a": ErrorShape(0.0312, 0.3), "b": ErrorShape(0.2, 0.511)}, 0.1, 0.07)
    step_errors.write(tmp_path / "found.json", found, drawn(benchmark, "a", 0.03, count=18))
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["spreads"] == {
        "programs": {"a": {"scale": 0.031, "tail": 0.3}, "b": {"scale": 0.2, "tail": 0.51}},
        "experts": 0.1,
        "without_steps": 0.07,
    }
    assert document["origin"] == "fitted"


def test_scores_are_best_for_the_shape_that_was_drawn(benchmark):
    step_errors = benchmark("step_errors")
    medians = {"a": 0.0, "b": TRANSFORMER_MEDIAN, "c": TRANSFORMER_MEDIAN}
    steps = [
        step
        for name, median in medians.items()
        for step in drawn(benchmark, name, 0.05, count=300, median=median)
    ]
    of_shape = {
        shape: step_errors.left_out_scores(steps, "model", shape)
        for shape in (
            step_errors.Shape(),
            step_errors.Shape(fast_side=1.0),
            step_errors.Shape(tail=1e-6),
            step_errors.Shape(median=-0.4),
        )
    }
    best = of_shape.pop(step_errors.Shape())
    assert best.inside == pytest.approx(0.9, abs=0.02)
    for other in of_shape.values():
        assert best.log_likelihood > other.log_likelihood
        assert best.crps < other.crps
        assert best.interval_score < other.interval_score


def test_scores_by_hand(benchmark):
    step_errors = benchmark("step_errors")
    # Two groups that tell each other the spread; nearly normal, without a faster side.
    shape = step_errors.Shape(kernel_share=0.0, fast_side=1.0, tail=1e-9)
    steps = [
        step_errors.StepError(name, "m", "", 8, False, error, 0.0, math.nan)
        for name in "ab"
        for error in (0.0, 0.5)
    ]
    found = step_errors.left_out_scores(steps, "program", shape)
    spread = step_errors.fitted(steps[:2], shape).without_steps
    low, high = -1.644854 * spread, 1.644854 * spread
    assert found.width == pytest.approx(high - low, rel=1e-5)
    missed = max(0.5 - high, 0.0)
    assert found.interval_score == pytest.approx(high - low + 20 * missed / 2, rel=1e-5)
    assert found.inside == (0.5 if missed else 1.0)
    # The score of a normal distribution (Gneiting and Raftery, 2007, equation 5), at 0 and at 0.5.
    normal = [
        spread
        * (
            z * math.erf(z / math.sqrt(2))
            + math.sqrt(2 / math.pi) * math.exp(-z * z / 2)
            - 1 / math.sqrt(math.pi)
        )
        for z in (0.0, 0.5 / spread)
    ]
    assert found.crps == pytest.approx(sum(normal) / 2, rel=0.01)
    density = -math.log(2 * math.pi * spread**2) - (0.5 / spread) ** 2 / 2
    assert found.log_likelihood == pytest.approx(2 * density / math.sqrt(2), rel=1e-5)
