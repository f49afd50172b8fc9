"""Sums of physical terms: for kernels whose time is known but for a handful of factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Rounds of reweighting that turn least squares into least absolute errors, and the relative error
#: below which all points weigh the same.
_ROUNDS = 30
_LEAST_ERROR = 0.005

#: Fewest points for each term.
_MIN_POINTS_PER_TERM = 4


@dataclass(frozen=True, slots=True)
class TermCurve:
    """A log ratio that is the logarithm of a weighted sum.

    Each feature is the logarithm of one term of the time (arithmetic, bytes, launches) over the
    reference time; minus infinity where the term is zero.

    Attributes:
        feature_names: Columns of the features, in order.
        weights: What each term is multiplied by; none is negative and not all are zero.
    """

    feature_names: tuple[str, ...]
    weights: tuple[float, ...]

    def log_ratio(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluates the sum; shape `(points, features)` to `(points,)`."""
        return np.asarray(np.log(np.exp(features) @ np.array(self.weights)))


def fit_term_curve(
    feature_names: Sequence[str], features: NDArray[np.float64], log_ratio: NDArray[np.float64]
) -> TermCurve:
    """Fits the weights for the least absolute relative error; none becomes negative.

    Args:
        feature_names: Names of the columns.
        features: Logarithms of the terms over the reference; shape `(points, features)`.
        log_ratio: Logarithm of measured over reference time; shape `(points,)`.

    Raises:
        CalibrationError: Too few points.
    """
    from scipy.optimize import nnls

    least = _MIN_POINTS_PER_TERM * len(feature_names)
    if len(log_ratio) < least:
        raise CalibrationError(
            f"{len(log_ratio)} points are too few for the {len(feature_names)} terms "
            f"{', '.join(feature_names)}; measure at least {least}"
        )
    shares = np.exp(features - log_ratio[:, None])
    weight = np.ones(len(log_ratio))
    found = np.zeros(len(feature_names))
    for _ in range(_ROUNDS):
        found, _ = nnls(shares * weight[:, None], weight)
        weight = 1.0 / np.sqrt(np.maximum(np.abs(shares @ found - 1.0), _LEAST_ERROR))
    if not found.any():
        raise CalibrationError("no term explains the measurements; check their unit")
    return TermCurve(tuple(feature_names), tuple(float(value) for value in found))
