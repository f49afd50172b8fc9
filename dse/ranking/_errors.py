"""Errors of predicted values and coverage of predicted intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.ranking._values import checked

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def relative_errors(measured: ArrayLike, predicted: ArrayLike) -> NDArray[np.float64]:
    """Returns predicted over measured, minus 1, signed; shape `(n,)`.

    Args:
        measured: What was measured, shape `(n,)`, positive.
        predicted: The same quantities by the model, shape `(n,)`, positive.

    Raises:
        ConfigError: The vectors differ in length, are empty, or hold values that are not finite
            and positive.
    """
    actual, expected = checked(measured=measured, predicted=predicted)
    return expected / actual - 1


def coverage(measured: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Returns the share of measurements inside their predicted intervals, ends included.

    For calibrated 90 % intervals this is about 0.9; less means overconfident, more means too wide.

    Args:
        measured: What was measured, shape `(n,)`, positive.
        low: Lower ends of the intervals, shape `(n,)`, positive.
        high: Upper ends, shape `(n,)`.

    Raises:
        ConfigError: The vectors differ in length, are empty, hold values that are not finite and
            positive, or an interval ends before it starts.
    """
    actual, lower, upper = checked(measured=measured, low=low, high=high)
    backwards = np.flatnonzero(lower > upper)
    if len(backwards):
        at = int(backwards[0])
        raise ConfigError(
            f"interval {at} runs from {lower[at]:g} to {upper[at]:g}; give the lower end first"
        )
    return float(((lower <= actual) & (actual <= upper)).mean())
