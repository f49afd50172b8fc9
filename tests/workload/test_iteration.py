"""The interval of a step depends on its durations, and not on their last bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.machine.platforms import load_platform
from dse.workload import PlanEffort, load_workload


@pytest.fixture(scope="module")
def step():
    chosen = {"world_size": 8, "global_batch_size": 16384, "program": "torchrec"}
    job = load_workload("dlrm_tiny").job(load_platform("h100_sxm"), chosen)
    return job.planned(PlanEffort(quick=True)).iteration()


@pytest.mark.parametrize("seed", range(3))
def test_last_bits_of_durations_move_no_interval(step, seed):
    """They differ between versions of libraries; p5 and p95 moved by up to 4 %."""
    bits = np.random.default_rng(seed).integers(-2, 3, step.duration_s.shape)
    changed = step.duration_s * (1 + bits * np.finfo(np.float64).eps)
    assert (changed != step.duration_s).any()
    found = replace(step, duration_s=changed).sample_times_s()
    np.testing.assert_allclose(found, step.sample_times_s(), rtol=1e-9)


def test_steps_of_other_durations_have_other_errors(step):
    times_s = step.sample_times_s()
    slower = replace(step, duration_s=1.01 * step.duration_s).sample_times_s()
    assert np.abs(slower / (1.01 * times_s) - 1).max() > 1e-3
