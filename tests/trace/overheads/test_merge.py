"""Merging host profiles."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.machine.host import Figure, HostProfile, OperatorFigures, ProfileSource, SharedFigures
from dse.trace.overheads import merge_profiles


def test_counts_weigh_when_profiles_are_merged():
    def alone(mean_s, spread, count, calls, launches):
        figure = Figure(mean_s, spread, count)
        return HostProfile(
            f"p{count}",
            ProfileSource((f"{count}.json",), ("d",), "unknown"),
            SharedFigures(launch=figure),
            (OperatorFigures("a", calls, launches, before_launch=figure),),
        )

    both = merge_profiles([alone(2e-6, 0.0, 30, 30, 1.0), alone(6e-6, 0.0, 10, 10, 3.0)])
    assert both.name == "p30+p10"
    assert both.shared.launch.mean_s == pytest.approx(3e-6)
    # Means of 2 (three times) and 6 (once) have a variance of 3.
    assert both.shared.launch.variance_s2 == pytest.approx(3e-12)
    assert both.shared.launch.count == 40
    assert (both.operators[0].calls, both.operators[0].launches) == (40, 1.5)
    assert both.shared.before_launch is None
    with pytest.raises(ConfigError, match="at least one"):
        merge_profiles([])


def test_merging_a_profile_with_itself_changes_counts_only():
    figure = Figure(4.25e-6, 1.25, 200)
    profile = HostProfile(
        "mine",
        ProfileSource(("rank0.json",), ("Tesla V100",), "2023-09-08"),
        SharedFigures(between_operators=figure),
        (OperatorFigures("Lookup", 10, 1.5, figure), OperatorFigures("aten::view", 0, 0.0)),
    )
    twice = merge_profiles([profile, profile])
    assert twice.name == profile.name
    assert twice.source == profile.source
    for one, two in zip(profile.operators, twice.operators, strict=True):
        assert (two.name, two.calls, two.launches) == (one.name, 2 * one.calls, one.launches)
    merged = twice.shared.between_operators
    assert merged.mean_s == pytest.approx(4.25e-6)
    assert merged.spread == pytest.approx(1.25)
    assert merged.count == 400
