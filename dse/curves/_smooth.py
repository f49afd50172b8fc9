"""Smooth interpolation of scattered points: for some hundred measurements of smooth kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from dse.errors import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from scipy.interpolate import RBFInterpolator

#: Radial functions, by SciPy's names.
RadialKernel = Literal["linear", "thin_plate_spline"]

#: Radial functions with the degree of the polynomial that SciPy adds to each, and smoothing
#: strengths; cross-validation chooses.
_DEGREE: dict[RadialKernel, int] = {"linear": 0, "thin_plate_spline": 1}
_SMOOTHING = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)

#: Changes of one feature's scale that are tried: how fast the ratio changes along it.
_SCALE_FACTORS = (0.25, 0.5, 2.0, 4.0)
_ROUNDS = 2

#: Factor on the error that a change of the choice has to reach.
_LEAST_GAIN = 0.995

#: Parts of the cross-validation.
_FOLDS = 8

#: Fewest points for which a curve is worth anything, without and for each of its features.
_MIN_POINTS = 4
_MIN_POINTS_PER_FEATURE = 4


@dataclass(frozen=True)
class SmoothCurve:
    """A log ratio interpolated between measured points by radial basis functions.

    Attributes:
        feature_names: Columns of the features, in order.
        kernel: Radial function, by SciPy's name.
        smoothing: Strength of smoothing; zero passes through every point.
        scale: What each feature is divided by.
        nodes: Features of the points; shape `(points, features)`.
        values: Log ratios at the points; shape `(points,)`.
    """

    feature_names: tuple[str, ...]
    kernel: RadialKernel
    smoothing: float
    scale: tuple[float, ...]
    nodes: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

    def log_ratio(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluates the curve; shape `(points, features)` to `(points,)`."""
        return np.asarray(self._interpolator(features / np.array(self.scale)), dtype=np.float64)

    @cached_property
    def _interpolator(self) -> RBFInterpolator[np.float64]:
        nodes = np.array(self.nodes) / np.array(self.scale)
        return _interpolator(nodes, np.array(self.values), self.kernel, self.smoothing)


@dataclass(frozen=True, slots=True)
class SmoothFit:
    """A smooth curve with what cross-validation says of it.

    Attributes:
        curve: Fitted on all points.
        out_of_fold: Log ratios predicted for each point by a fit without it; shape `(points,)`.
    """

    curve: SmoothCurve
    out_of_fold: NDArray[np.float64]


def fit_smooth_curve(
    feature_names: Sequence[str], features: NDArray[np.float64], log_ratio: NDArray[np.float64]
) -> SmoothFit:
    """Fits radial basis functions; kernel, smoothing and scales by cross-validation.

    Args:
        feature_names: Names of the columns.
        features: Shape `(points, features)`.
        log_ratio: Logarithm of measured over reference time; shape `(points,)`.

    Raises:
        CalibrationError: Too few points.
    """
    count = len(log_ratio)
    least = _MIN_POINTS + _MIN_POINTS_PER_FEATURE * len(feature_names)
    if count < least:
        raise CalibrationError(
            f"{count} points are too few for a curve over {', '.join(feature_names)}; "
            f"measure at least {least}"
        )
    spans = np.ptp(features, axis=0)
    scale = np.where(spans > 0, spans, 1.0)
    # A column that never varies would make the linear part of a spline singular.
    kernels = [kernel for kernel, degree in _DEGREE.items() if degree == 0 or spans.all()]
    choice = _Choice(kernels[0], _SMOOTHING[0], scale)
    search = _Search(features, log_ratio)
    for kernel in kernels:
        for smoothing in _SMOOTHING:
            choice = search.better(choice, replace(choice, kernel=kernel, smoothing=smoothing))
    for _ in range(_ROUNDS):
        for feature in range(features.shape[1]):
            for factor in _SCALE_FACTORS:
                other = choice.scale.copy()
                other[feature] *= factor
                choice = search.better(choice, replace(choice, scale=other))
        for smoothing in _SMOOTHING:
            choice = search.better(choice, replace(choice, smoothing=smoothing))
    curve = SmoothCurve(
        tuple(feature_names),
        choice.kernel,
        choice.smoothing,
        tuple(float(value) for value in choice.scale),
        tuple(tuple(float(value) for value in row) for row in features),
        tuple(float(value) for value in log_ratio),
    )
    return SmoothFit(curve, search.out_of_fold(choice))


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """What cross-validation chooses."""

    kernel: RadialKernel
    smoothing: float
    scale: NDArray[np.float64]


class _Search:
    """Compares choices by the error of predictions from the other parts of the points."""

    def __init__(self, features: NDArray[np.float64], log_ratio: NDArray[np.float64]) -> None:
        self._features = features
        self._log_ratio = log_ratio
        self._folds = np.random.default_rng(0).permutation(len(log_ratio)) % _FOLDS
        self._known: dict[tuple[object, ...], float] = {}

    def better(self, known: _Choice, other: _Choice) -> _Choice:
        """Returns the other choice when it is better by more than chance, else the known one."""
        return other if self._error(other) < _LEAST_GAIN * self._error(known) else known

    def out_of_fold(self, choice: _Choice) -> NDArray[np.float64]:
        """Returns the log ratio of each point, predicted without its part of the points."""
        nodes = self._features / choice.scale
        predicted = np.empty(len(self._log_ratio))
        for fold in range(_FOLDS):
            out = self._folds == fold
            model = _interpolator(
                nodes[~out], self._log_ratio[~out], choice.kernel, choice.smoothing
            )
            predicted[out] = model(nodes[out])
        return predicted

    def _error(self, choice: _Choice) -> float:
        key = (choice.kernel, choice.smoothing, *choice.scale)
        if key not in self._known:
            self._known[key] = float(np.mean(np.abs(self.out_of_fold(choice) - self._log_ratio)))
        return self._known[key]


def _interpolator(
    nodes: NDArray[np.float64], values: NDArray[np.float64], kernel: RadialKernel, smoothing: float
) -> RBFInterpolator[np.float64]:
    from scipy.interpolate import RBFInterpolator

    return RBFInterpolator(
        nodes, values, kernel=kernel, smoothing=smoothing, degree=_DEGREE[kernel]
    )
