"""Orders compared, by hand and against a count over all pairs."""

from __future__ import annotations

from itertools import combinations
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.ranking import kendall_tau, pairwise_accuracy

VALUES = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=2, max_size=12).map(
    lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs])
)


def test_tau_of_four_by_hand():
    # Of the six pairs only (2, 3) is turned around: (5 − 1) / 6.
    assert kendall_tau([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(4 / 6)


def test_tau_with_a_tie_by_hand():
    # Pairs: (1,2) and (1,3) agree, (2,3) is tied in the prediction: 2 / sqrt(3 · 2).
    assert kendall_tau([1, 2, 3], [1, 5, 5]) == pytest.approx(2 / math.sqrt(6))


def test_tau_of_the_same_and_the_reverse_order():
    assert kendall_tau([3, 1, 2], [30, 10, 20]) == pytest.approx(1)
    assert kendall_tau([3, 1, 2], [1, 3, 2]) == pytest.approx(-1)


def test_no_order_to_compare():
    assert math.isnan(kendall_tau([1], [1]))
    assert math.isnan(kendall_tau([1, 2], [5, 5]))


def test_pairs_by_hand():
    # (100, 104) differs by 4 % and does not count; (100, 120) is right; (104, 120) is wrong.
    measured, predicted = [100, 104, 120], [10, 30, 20]
    assert pairwise_accuracy(measured, predicted, 0.05) == pytest.approx(1 / 2)
    assert pairwise_accuracy(measured, predicted, 0) == pytest.approx(2 / 3)


def test_a_pair_at_the_limit_does_not_count():
    assert math.isnan(pairwise_accuracy([4, 5], [1, 2], 0.25))
    assert pairwise_accuracy([4, 5], [1, 2], 0.24) == 1


def test_equal_predictions_are_half_right():
    assert pairwise_accuracy([1, 2, 4], [7, 7, 9]) == pytest.approx((0.5 + 1 + 1) / 3)


@given(VALUES, st.sampled_from([0.0, 0.05, 0.5]))
def test_pairs_counted_one_by_one(values, limit):
    measured, predicted = values
    scores = []
    for one, other in combinations(range(len(measured)), 2):
        low, high = sorted((one, other), key=lambda at: measured[at])
        if measured[high] / measured[low] - 1 > limit:
            difference = predicted[high] - predicted[low]
            scores.append(1.0 if difference > 0 else 0.5 if difference == 0 else 0.0)
    accuracy = pairwise_accuracy(measured, predicted, limit)
    if scores:
        assert accuracy == pytest.approx(sum(scores) / len(scores))
    else:
        assert math.isnan(accuracy)


@given(VALUES)
def test_without_ties_tau_is_twice_the_accuracy_less_one(values):
    measured, predicted = ([value + at / 100 for at, value in enumerate(side)] for side in values)
    accuracy = pairwise_accuracy(measured, predicted, 0)
    assert kendall_tau(measured, predicted) == pytest.approx(2 * accuracy - 1)


@pytest.mark.parametrize("judge", [kendall_tau, pairwise_accuracy])
@pytest.mark.parametrize(
    ("measured", "predicted", "message"),
    [
        ([1, 2], [1], "1 predicted values .* 2 measured"),
        ([], [], "at least one number"),
        ([1, math.nan], [1, 2], "measured value 1 is nan"),
        ([1, 2], [0, 2], "predicted value 0 is 0"),
        ([[1, 2]], [[1, 2]], r"shape \(1, 2\)"),
    ],
)
def test_what_cannot_be_compared(judge, measured, predicted, message):
    with pytest.raises(ConfigError, match=message):
        judge(measured, predicted)


def test_a_negative_difference_is_refused():
    with pytest.raises(ConfigError, match="use 0 or more"):
        pairwise_accuracy([1, 2], [1, 2], -0.1)
