"""Errors and intervals, by hand."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.ranking import coverage, relative_errors


def test_errors_carry_their_sign():
    assert relative_errors([10, 20, 5], [11, 15, 5]) == pytest.approx([0.1, -0.25, 0])


def test_coverage_counts_the_ends():
    assert coverage([1, 2, 3, 4], [1, 2.5, 2, 1], [2, 3, 3, 3.9]) == pytest.approx(0.5)


def test_an_interval_the_wrong_way_round():
    with pytest.raises(ConfigError, match="interval 1 runs from 3 to 2"):
        coverage([1, 2], [1, 3], [2, 2])
