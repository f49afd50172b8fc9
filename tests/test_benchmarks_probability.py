"""The reliability of predicted distributions, by hand."""

from __future__ import annotations

import importlib
import math
import sys

import numpy as np
import pytest

from dse.machine.platforms import load_platform
from dse.workload import load_workload
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
    assert probability.largest_deviation([0.0]) == pytest.approx(0.9)


def test_chance_shrinks_with_cases(benchmark):
    by_chance = benchmark("probability").by_chance
    few, many = by_chance(10), by_chance(1000)
    assert many < 0.03 < few < 0.3


def test_the_share_of_faster_times_of_a_step(benchmark):
    steps = benchmark("published_steps")
    parameters = {"platform": "h100_sxm", "world_size": 8, "global_batch_size": 64}
    job = load_workload("gpt_1_7b").job(load_platform("h100_sxm"), parameters)
    samples_s = job.sample_times_s()
    quarter_s = float(np.quantile(samples_s, 0.25))
    step = steps.PublishedStep("one", "megatron", quarter_s, job)
    assert step.share_faster == pytest.approx(0.25, abs=0.005)
    assert math.isnan(steps.PublishedStep("one", "megatron", math.nan, job).share_faster)
    assert math.isnan(steps.PublishedStep("one", "megatron", 1.0).share_faster)
