"""Whether predicted figures, and the intervals around them, are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.ranking._values import checked

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def relative_errors(measured: ArrayLike, predicted: ArrayLike) -> NDArray[np.float64]:
    """Returns predicted over measured, less 1, with its sign; shape `(n,)`.

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

    Of honest 90 % intervals about 0.9 hold their measurement; less means overconfidence, more
    means intervals that are wider than they need to be.

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
