"""Smooth interpolation of scattered points: for some hundred measurements of smooth kernels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

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

#: Smallest over largest singular value of the polynomial's columns below which a spline counts as
#: singular: for points to fit, where sizes that depend on each other are rounded to whole numbers,
#: and for a given curve, whose system loses its digits there.
_LEAST_SINGULAR_FITTED = 1e-6
_LEAST_SINGULAR = 1e-9

#: Largest coordinate of a node: differences of larger ones say nothing.
_MAX_COORDINATE = 1e9


@dataclass(frozen=True)
class SmoothCurve:
    """A log ratio interpolated between measured points by radial basis functions.

    Attributes:
        feature_names: Columns of the features, in order.
        kernel: Radial function, by SciPy's name.
        smoothing: Strength of smoothing; zero passes through every point.
        scale: What each feature is divided by.
        nodes: Features of the points, all different; shape `(points, features)`.
        values: Log ratios at the points; shape `(points,)`.
    """

    #: Most nodes: the dense system of so many takes 32 MB and a tenth of a second; memory grows
    #: with the square of the nodes and time with the cube.
    MAX_NODES: ClassVar[int] = 2000

    feature_names: tuple[str, ...]
    kernel: RadialKernel
    smoothing: float
    scale: tuple[float, ...]
    nodes: tuple[tuple[float, ...], ...] = field(repr=False)
    values: tuple[float, ...] = field(repr=False)

    def log_ratio(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluates the curve; shape `(points, features)` to `(points,)`.

        Raises:
            CalibrationError: The nodes do not determine a curve.
        """
        return np.asarray(self._interpolator(features / np.array(self.scale)), dtype=np.float64)

    def problem(self) -> str:
        """Returns why the nodes do not determine a curve, with the next step; empty if they do."""
        if not self.nodes:
            return "expected at least one node, found none; fit it again"
        with np.errstate(over="ignore"):
            nodes = np.array(self.nodes) / np.array(self.scale)
        if not (np.abs(nodes) <= _MAX_COORDINATE).all():
            return (
                f"expected nodes of at most {_MAX_COORDINATE:g} times their scale, found "
                f"{np.abs(nodes).max():g} times; fit it again"
            )
        _, first, group = np.unique(nodes, axis=0, return_index=True, return_inverse=True)
        if len(first) < len(nodes):
            again = int(np.argmax(first[group.ravel()] != np.arange(len(nodes))))
            return (
                f"expected different nodes, found that nodes {first[group.ravel()[again]]} and "
                f"{again} coincide; make them one with their mean value, or fit it again"
            )
        if _DEGREE[self.kernel] and not _spans_space(nodes, _LEAST_SINGULAR):
            return (
                f"expected nodes for `{self.kernel}` that vary in all {nodes.shape[1]} features "
                f"independently, found {len(nodes)} that do not; use the kernel `linear`, or fit "
                "it again"
            )
        return ""

    @cached_property
    def _interpolator(self) -> RBFInterpolator[np.float64]:
        nodes = np.array(self.nodes) / np.array(self.scale)
        try:
            return _interpolator(nodes, np.array(self.values), self.kernel, self.smoothing)
        except (np.linalg.LinAlgError, ValueError) as error:
            raise CalibrationError(
                f"a curve with {len(self.nodes)} nodes over {', '.join(self.feature_names)} has "
                f"no solution ({error}); fit it again with this version"
            ) from error


def fit_smooth_curve(
    feature_names: Sequence[str], features: NDArray[np.float64], log_ratio: NDArray[np.float64]
) -> SmoothCurve:
    """Fits radial basis functions; kernel, smoothing and scales by cross-validation.

    Repeated points become one with their mean value. A spline is only tried where the points of
    every part of the cross-validation determine its polynomial.

    Args:
        feature_names: Names of the columns.
        features: Shape `(points, features)`.
        log_ratio: Logarithm of measured over reference time; shape `(points,)`.

    Raises:
        CalibrationError: Too few points, or too many.
    """
    nodes, values = _merged(features, log_ratio)
    _check_count(len(values), len(log_ratio), feature_names)
    spans = np.ptp(nodes, axis=0)
    scale = np.where(spans > 0, spans, 1.0)
    search = _Search(nodes, values)
    kernels = [
        kernel for kernel, degree in _DEGREE.items() if degree == 0 or search.determines_planes()
    ]
    choice = _Choice(kernels[0], _SMOOTHING[0], scale)
    for kernel in kernels:
        for smoothing in _SMOOTHING:
            choice = search.better(choice, replace(choice, kernel=kernel, smoothing=smoothing))
    for _ in range(_ROUNDS):
        for feature in range(nodes.shape[1]):
            for factor in _SCALE_FACTORS:
                other = choice.scale.copy()
                other[feature] *= factor
                choice = search.better(choice, replace(choice, scale=other))
        for smoothing in _SMOOTHING:
            choice = search.better(choice, replace(choice, smoothing=smoothing))
    return SmoothCurve(
        tuple(feature_names),
        choice.kernel,
        choice.smoothing,
        tuple(float(value) for value in choice.scale),
        tuple(tuple(float(value) for value in row) for row in nodes),
        tuple(float(value) for value in values),
    )


def _spans_space(nodes: NDArray[np.float64], least: float) -> bool:
    """Returns whether nodes determine a linear function: not all of them lie in one plane."""
    low, high = nodes.min(axis=0), nodes.max(axis=0)
    if len(nodes) <= nodes.shape[1] or not (high > low).all():
        return False
    even = 2 * (nodes - low) / (high - low) - 1
    singular = np.linalg.svd(np.column_stack([np.ones(len(nodes)), even]), compute_uv=False)
    return bool(singular[-1] > least * singular[0])


def _merged(
    features: NDArray[np.float64], log_ratio: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns different points by first appearance, and their mean values."""
    _, first, group = np.unique(features, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    node_of_point = np.argsort(order)[group.ravel()]
    means = np.bincount(node_of_point, log_ratio) / np.bincount(node_of_point)
    return features[first[order]], means


def _check_count(different: int, given: int, feature_names: Sequence[str]) -> None:
    least = _MIN_POINTS + _MIN_POINTS_PER_FEATURE * len(feature_names)
    points = (
        f"{given} points" if different == given else f"{different} different points of {given}"
    )
    over = f"for a curve over {', '.join(feature_names)}"
    if different < least:
        raise CalibrationError(f"{points} are too few {over}; measure at least {least}")
    if different > SmoothCurve.MAX_NODES:
        raise CalibrationError(
            f"{points} are too many {over}: at most {SmoothCurve.MAX_NODES} can be solved for; "
            "choose rows with --where, or leave some out"
        )


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

    def determines_planes(self) -> bool:
        """Returns whether the points without any one part, too, determine a linear function."""
        return all(
            _spans_space(self._features[self._folds != fold], _LEAST_SINGULAR_FITTED)
            for fold in range(_FOLDS)
        )

    def better(self, known: _Choice, other: _Choice) -> _Choice:
        """Returns the other choice when it is better by more than chance, else the known one."""
        return other if self._error(other) < _LEAST_GAIN * self._error(known) else known

    def _out_of_fold(self, choice: _Choice) -> NDArray[np.float64]:
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
            self._known[key] = float(np.mean(np.abs(self._out_of_fold(choice) - self._log_ratio)))
        return self._known[key]


def _interpolator(
    nodes: NDArray[np.float64], values: NDArray[np.float64], kernel: RadialKernel, smoothing: float
) -> RBFInterpolator[np.float64]:
    from scipy.interpolate import RBFInterpolator

    return RBFInterpolator(
        nodes, values, kernel=kernel, smoothing=smoothing, degree=_DEGREE[kernel]
    )
