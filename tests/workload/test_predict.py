"""Predictions of jobs of any workload: the interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dse.machine.platforms import load_platform
from dse.workload import load_workload, predict_job
from dse.workload._step_errors import FAST_SIDE, TAIL, error_quantiles


@pytest.mark.parametrize("samples", [32, 200])
def test_ninety_percent_of_the_distribution_lie_in_the_interval(monkeypatch, samples):
    parameters = {"platform": "h100_sxm", "world_size": 8, "global_batch_size": 64}
    job = load_workload("gpt_1_7b").job(load_platform("h100_sxm"), parameters)
    times_s = job.simulated().time_s * np.exp(0.1 * error_quantiles(samples))
    monkeypatch.setattr(type(job), "sample_times_s", lambda _: times_s)

    found = predict_job(job)

    # 1.644854 is the normal number that 95 % are below.
    slow = 0.1 * 1.644854 * math.exp(TAIL * 1.644854**2 / 2)
    log_high = math.log(found.iteration_time_p95_s / found.iteration_time_s)
    log_low = math.log(found.iteration_time_p5_s / found.iteration_time_s)
    # Between two samples, of which 32 lie farther apart, the ends are interpolated.
    assert log_high == pytest.approx(slow, rel=0.01)
    assert log_low == pytest.approx(-FAST_SIDE * slow, rel=0.01)
