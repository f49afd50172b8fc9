from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.workload.dlrm.solver.bound._durations import envelope

steps = st.lists(st.floats(0, 10), min_size=3, max_size=30)


@given(steps, st.integers(0, 1000))
def test_the_envelope_is_below_every_rising_function_through_the_points(rises, seed):
    values = np.cumsum(rises)
    grid = np.arange(1.0, len(values) + 1.0)
    found = envelope(grid, values)
    assert (np.diff(found.slopes) >= -1e-9).all()
    assert (found.slopes >= 0).all()
    # The lowest function that rises from point to point stays at each value until the next one.
    for x in np.random.default_rng(seed).uniform(grid[0], grid[-1], 50):
        lowest = values[np.searchsorted(grid, x, side="right") - 1]
        assert found.at(x) <= lowest + 1e-9 * max(1.0, values[-1])


def test_a_convex_curve_is_met_but_for_one_step():
    grid = np.linspace(1, 10, 1000)
    found = envelope(grid, grid**2)
    for x in (2.0, 5.0, 9.0):
        assert found.at(x) == pytest.approx(x**2, rel=0.02)
        piece = found.piece_at(x)
        assert found.slopes[piece] * x + found.intercepts[piece] == pytest.approx(found.at(x))


def test_a_concave_curve_becomes_its_chord():
    grid = np.linspace(0, 1, 1001)
    found = envelope(grid, np.sqrt(grid))
    assert found.at(0.25) == pytest.approx(0.25, abs=1e-2)
    assert found.at(1.0) == pytest.approx(1.0, abs=1e-2)


def test_values_that_fall_are_lowered_not_trusted():
    grid = np.array([1.0, 2.0, 3.0, 4.0])
    values = np.array([5.0, 5.0, 4.9, 5.2])
    found = envelope(grid, values)
    assert max(found.at(x) for x in grid[:-1]) <= 4.9


def test_a_constant_is_itself():
    assert envelope(np.array([1.0, 2.0, 5.0]), np.full(3, 7.0)).at(3.0) == 7.0
