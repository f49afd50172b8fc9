"""The hypervolume against counting cells and against samples."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import ConfigError
from dse.search.analyse import hypervolume

SIDE = 5


@st.composite
def fronts(draw):
    count = draw(st.integers(1, 3))
    maximize = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    cell = st.tuples(*[st.integers(0, SIDE)] * count)
    return draw(st.lists(cell, max_size=9)), maximize


def cells_covered(points, maximize):
    """Unit cells of the grid that some point dominates."""
    count = len(maximize)
    covered = 0
    for corner in product(range(SIDE), repeat=count):
        middle = [value + 0.5 for value in corner]
        covered += any(
            all(
                own >= theirs if more else own <= theirs
                for own, theirs, more in zip(point, middle, maximize, strict=True)
            )
            for point in points
        )
    return covered


@given(fronts())
def test_whole_numbers_are_cells(case):
    points, maximize = case
    reference = [0 if more else SIDE for more in maximize]
    values = np.array(points, dtype=float).reshape(-1, len(maximize))
    assert hypervolume(values, reference, maximize) == pytest.approx(
        cells_covered(points, maximize)
    )


@pytest.mark.parametrize("count", [2, 3])
def test_against_samples(count):
    rng = np.random.default_rng(0)
    points = rng.random((40, count))
    samples = rng.random((100_000, count))
    covered = np.zeros(len(samples), dtype=bool)
    for point in points:
        covered |= (samples >= point).all(axis=1)
    exact = hypervolume(points, np.ones(count), [False] * count)
    assert exact == pytest.approx(covered.mean(), abs=0.01)


def test_by_hand():
    assert hypervolume([[1.0, 3.0], [2.0, 1.0]], [4.0, 4.0], [False, False]) == 1 * 1 + 2 * 3
    # Two boxes of 2 × 2 × 1 and 1 × 1 × 3 that share 1 × 1 × 1.
    points = [[1.0, 1.0, 2.0], [2.0, 2.0, 0.0]]
    assert hypervolume(points, [3.0, 3.0, 3.0], [False] * 3) == 4 + 3 - 1


def test_what_adds_nothing():
    front = [[1.0, 2.0], [2.0, 1.0]]
    volume = hypervolume(front, [3.0, 3.0], [False, False])
    more = [*front, [2.5, 2.5], [1.0, 2.0], [5.0, 0.0], [float("nan"), 0.0], [3.0, 0.0]]
    assert hypervolume(more, [3.0, 3.0], [False, False]) == volume
    assert hypervolume(np.empty((0, 2)), [3.0, 3.0], [False, False]) == 0.0


@pytest.mark.parametrize(
    ("points", "reference", "maximize"),
    [
        ([[1.0, 2.0]], [3.0], [True, True]),
        ([[1.0, 2.0, 3.0]], [3.0, 3.0], [True, True]),
        ([[1.0] * 4], [0.0] * 4, [True] * 4),
        ([], [], []),
    ],
)
def test_wrong_shapes(points, reference, maximize):
    with pytest.raises(ConfigError, match="hypervolume of"):
        hypervolume(points, reference, maximize)
