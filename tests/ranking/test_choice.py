"""The cost of the model's favourite, by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.ranking import success_within, top1_regret

TIMES = st.lists(st.floats(0.001, 1000), min_size=1, max_size=8)


def test_regret_of_times():
    # The model takes the second, which needs 11 s; the best needs 10 s.
    assert top1_regret([10, 11, 20], [3, 2, 5]) == pytest.approx(0.1)
    assert top1_regret([10, 11, 20], [1, 2, 5]) == 0


def test_regret_of_rates():
    # The model takes the first, 80 a second; the best makes 100: 25 % more time for the same work.
    rates = [80, 100, 50]
    assert top1_regret(rates, [9, 8, 1], larger_is_better=True) == pytest.approx(0.25)


def test_of_equal_favourites_the_worst_counts():
    assert top1_regret([10, 15, 12], [4, 4, 5]) == pytest.approx(0.5)


def test_success_is_the_best_or_within_a_tenth():
    assert success_within([10, 10.9], [2, 1])
    assert not success_within([10, 11.1], [2, 1])
    assert success_within([10, 11.1], [2, 1], tolerance=0.2)
    assert success_within([10, 20], [1, 2], tolerance=0)
    assert not success_within([20, 10], [1, 2], larger_is_better=True)


@given(TIMES, st.data())
def test_regret_is_never_negative_and_none_for_the_truth(measured, data):
    predicted = data.draw(st.permutations(measured))
    assert top1_regret(measured, predicted) >= 0
    assert top1_regret(measured, measured) == 0


def test_a_negative_tolerance_is_refused():
    with pytest.raises(ConfigError, match="use 0 or more"):
        success_within([1], [1], tolerance=-0.1)
