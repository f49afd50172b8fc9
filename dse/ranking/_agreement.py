"""Rank agreement of predictions and measurements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.ranking._values import checked

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def kendall_tau(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Returns Kendall's rank correlation τ-b of predictions and measurements.

    1 for the same order, −1 for the reverse, 0 on average for a blind guess. Ties are taken out of
    both sides of the ratio (Kendall, The treatment of ties in ranking problems, 1945).

    Args:
        measured: Times or rates of the candidates, shape `(n,)`, positive.
        predicted: The same quantity of the same candidates by the model, shape `(n,)`.

    Returns:
        τ-b in [−1, 1]; NaN for fewer than two candidates and where all values of one side are the
        same, because then there is no order to compare.

    Raises:
        ConfigError: The vectors differ in length, are empty, or hold values that are not finite
            and positive.
    """
    from scipy.stats import kendalltau

    actual, expected = checked(measured=measured, predicted=predicted)
    if len(actual) < 2:
        return math.nan
    return float(kendalltau(actual, expected).statistic)


def pairwise_accuracy(
    measured: ArrayLike, predicted: ArrayLike, min_relative_difference: float = 0.05
) -> float:
    """Returns the fraction of clearly different pairs that the model orders correctly.

    Pairs whose measurements hardly differ are ignored: their order is noise, and a wrong order
    costs nothing. A predicted tie counts as half right.

    Args:
        measured: Times or rates of the candidates, shape `(n,)`, positive.
        predicted: The same quantity of the same candidates by the model, shape `(n,)`.
        min_relative_difference: A pair counts when its larger measurement exceeds its smaller by
            more than this share of the smaller.

    Returns:
        A share in [0, 1]; NaN where no pair differs by that much.

    Raises:
        ConfigError: The vectors differ in length, are empty, or hold values that are not finite
            and positive; or the difference is below 0.
    """
    actual, expected = checked(measured=measured, predicted=predicted)
    if not min_relative_difference >= 0:
        raise ConfigError(
            f"the smallest relative difference is {min_relative_difference:g}; use 0 or more"
        )
    first, second = np.triu_indices(len(actual), k=1)
    ratio = actual[first] / actual[second]
    counted = np.maximum(ratio, 1 / ratio) - 1 > min_relative_difference
    if not counted.any():
        return math.nan
    same = np.sign(actual[first] - actual[second]) * np.sign(expected[first] - expected[second])
    return float((1 + same[counted]).mean() / 2)
