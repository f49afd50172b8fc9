from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.search.analyse import pareto_mask


def test_by_hand_with_duplicates_and_nan():
    values = np.array(
        [[1, 5], [2, 4], [3, 3], [3, 3], [2, 2], [4, 1], [1, 1], [np.nan, 9], [0, 5.0]]
    )
    front = [0, 1, 2, 3, 5]
    assert np.flatnonzero(pareto_mask(values, [True, True])).tolist() == front


def test_directions():
    values = np.array([[10.0, 1.0], [20.0, 2.0], [15.0, 3.0]])
    assert pareto_mask(values, [True, False]).tolist() == [True, True, False]


@pytest.mark.parametrize("objectives", [1, 2, 3])
@given(data=st.data())
def test_against_brute_force(objectives, data):
    small = st.sampled_from([0.0, 1.0, 2.0, 3.0, float("nan")])
    rows = data.draw(st.lists(st.tuples(*[small] * objectives), max_size=25))
    maximize = data.draw(st.tuples(*[st.booleans()] * objectives))
    values = np.array(rows).reshape(-1, objectives)
    signs = np.where(maximize, 1, -1)

    def dominates(a, b):
        return np.all(a * signs >= b * signs) and np.any(a * signs > b * signs)

    expected = [
        not np.isnan(row).any() and not any(dominates(other, row) for other in values)
        for row in values
    ]
    assert pareto_mask(values, maximize).tolist() == expected
