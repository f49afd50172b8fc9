"""Overheads of published traces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dse.trace.overheads import check_host_time, extract_overheads, merge_profiles
from tests.trace.published import needs_published_traces, published

pytestmark = needs_published_traces


# All 70 halves take seconds.
@pytest.mark.parametrize(
    "every",
    [pytest.param(7, marks=pytest.mark.part_of_slow), pytest.param(1, marks=pytest.mark.slow)],
)
def test_half_of_the_ranks_predict_the_other_half(every):
    traces, links = published("dlrm")
    errors = []
    for half in list(itertools.combinations(range(8), 4))[::every]:
        rest = [rank for rank in range(8) if rank not in half]
        profile = extract_overheads([traces[r] for r in half], [links[r] for r in half])
        checks = check_host_time([traces[r] for r in rest], [links[r] for r in rest], profile)
        errors += [abs(check.error) for check in checks]
    assert np.mean(errors) < 0.05
    assert max(errors) < 0.12


def test_figures_of_the_dlrm():
    profile = extract_overheads(*published("dlrm"))
    assert profile.source.devices == ("Tesla V100-SXM2-32GB",)
    assert profile.source.as_of == "2023-09-07"
    assert 4e-6 < profile.shared.launch.mean_s < 7e-6
    assert {known.name: known.calls for known in profile.operators}["AddmmBackward0"] == 56
    # Reads of single values wait for the device for up to 1 ms.
    for operator in profile.operators:
        if operator.name in ("aten::item", "aten::to"):
            for figure in (operator.before_launch, operator.after_launch):
                assert figure is None or figure.mean_s < 60e-6


def test_a_shared_profile_of_one_machine_costs_little():
    pairs = {name: published(name) for name in ("linear", "resnet")}
    own = {name: extract_overheads(*pair) for name, pair in pairs.items()}
    shared = merge_profiles(list(own.values()))
    for name, pair in pairs.items():
        (alone,) = check_host_time(*pair, own[name])
        (common,) = check_host_time(*pair, shared)
        assert abs(alone.usual_error) < 0.01
        assert abs(common.usual_error) < 0.05
