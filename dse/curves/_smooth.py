"""Smooth interpolation of scattered points: for some hundred measurements of smooth kernels."""

from __future__ import annotations

from dataclasses import dataclass
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
        scale: Width of each feature's range; features are divided by it.
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
    """Fits radial basis functions; kernel and smoothing by cross-validation.

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
    nodes = features / scale
    folds = np.random.default_rng(0).permutation(count) % _FOLDS
    best: tuple[float, RadialKernel, float, NDArray[np.float64]] | None = None
    for kernel in kernels:
        for smoothing in _SMOOTHING:
            predicted = np.empty(count)
            for fold in range(_FOLDS):
                left_out = folds == fold
                model = _interpolator(nodes[~left_out], log_ratio[~left_out], kernel, smoothing)
                predicted[left_out] = model(nodes[left_out])
            error = float(np.mean(np.abs(predicted - log_ratio)))
            if best is None or error < best[0]:
                best = (error, kernel, smoothing, predicted)
    assert best is not None
    curve = SmoothCurve(
        tuple(feature_names),
        best[1],
        best[2],
        tuple(float(value) for value in scale),
        tuple(tuple(float(value) for value in row) for row in features),
        tuple(float(value) for value in log_ratio),
    )
    return SmoothFit(curve, best[3])


def _interpolator(
    nodes: NDArray[np.float64], values: NDArray[np.float64], kernel: RadialKernel, smoothing: float
) -> RBFInterpolator[np.float64]:
    from scipy.interpolate import RBFInterpolator

    return RBFInterpolator(
        nodes, values, kernel=kernel, smoothing=smoothing, degree=_DEGREE[kernel]
    )
