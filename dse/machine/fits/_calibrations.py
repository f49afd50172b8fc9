"""Calibrations (learned functions with range, error and origin) and the estimates they give."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dse.errors import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike, NDArray

    from dse.machine.fits._size_curve import SizeCurve

#: Standard deviation of the logarithm that is added for each e-fold outside the fitted range.
SPREAD_PER_EFOLD_OUTSIDE = 0.15


#: Spread that repeated measurements of the same thing have at least.
_LEAST_SPREAD = 0.02

#: Residuals below which a fit may not claim more than a model that was fitted nowhere.
_FEW_RESIDUALS = 4
_UNFITTED_SPREAD = 0.25


@dataclass(frozen=True, slots=True)
class Estimate:
    """Durations of operators or collectives of one kind.

    Attributes:
        time_s: Expected seconds, any shape.
        spread: Standard deviation of the logarithm of actual over expected time, same shape.
    """

    time_s: NDArray[np.float64]
    spread: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors on points that the fit did not see.

    Attributes:
        points: Number of points.
        gmae: Geometric mean of the absolute relative errors.
        mape: Their mean.
        p90: Their 90th percentile.
        rule: How the points were chosen.
    """

    points: int
    gmae: float
    mape: float
    p90: float
    rule: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a calibration comes from.

    Attributes:
        name: Name of the calibration, as its file is called.
        device: Device that was measured.
        source: Who measured, with what.
        as_of: When, as an ISO date, year-month or `unknown`.
        points: Measurements that the shipped fit used.
    """

    name: str
    device: str
    source: str
    as_of: str
    points: int


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Range of one size of an operator in which it was measured, both ends included."""

    name: str
    low: float
    high: float


class RatioCurve(Protocol):
    """A learned logarithm of measured over reference time."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Columns that :meth:`log_ratio` expects."""

    def log_ratio(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluates the curve; shape `(points, features)` to `(points,)`."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """What to multiply a reference time by, and how sure that is.

    Attributes:
        factor: Measured over reference time.
        spread: Standard deviation of its logarithm; wider outside the fitted range.
    """

    factor: NDArray[np.float64]
    spread: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class KernelCalibration:
    """A learned ratio of measured to reference time of one operator on one device.

    Attributes:
        op: Operator, by the names of `Platform.kernel_time`.
        precisions: Precisions it holds for; empty for all.
        sizes: Sizes of the operator with their measured ranges, in the order of the curve's
            feature function.
        curve: The learned function.
        spread: Standard deviation of the logarithm of held-out measured over predicted time.
        provenance: Where it comes from.
        held_out: Its error.
        transferred: Why it may serve for a device it was not measured on; empty for its own.
        implementation: Library whose kernels were measured; empty where it is not named.
    """

    op: str
    precisions: tuple[str, ...]
    sizes: tuple[SizeRange, ...]
    curve: RatioCurve
    spread: float
    provenance: Provenance
    held_out: HeldOut
    transferred: str = ""
    implementation: str = ""

    def ratio(
        self,
        sizes: Mapping[str, ArrayLike],
        features: Callable[[Mapping[str, NDArray[np.float64]]], NDArray[np.float64]] | None = None,
    ) -> Ratio:
        """Evaluates the curve for arrays of sizes.

        Outside the measured range the ratio of the nearest point of the range is used, so that the
        reference decides the slope, and the spread grows with the distance.

        Args:
            sizes: Size by name; arrays of shape `(points,)`.
            features: Turns sizes inside the range into the curve's features, of shape
                `(points, features)`; by default the logarithms of the sizes.

        Raises:
            CalibrationError: The curve was fitted on other features.
        """
        inside: dict[str, NDArray[np.float64]] = {}
        efolds: NDArray[np.float64] | float = 0.0
        for size in self.sizes:
            value = np.asarray(sizes[size.name], dtype=np.float64)
            clipped = np.clip(value, size.low, size.high)
            inside[size.name] = clipped
            efolds = efolds + np.abs(log_size(value) - log_size(clipped))
        columns = self._log_sizes(inside) if features is None else features(inside)
        factor = np.exp(self.curve.log_ratio(columns))
        outside = SPREAD_PER_EFOLD_OUTSIDE * np.asarray(efolds)
        return Ratio(factor, np.broadcast_to(np.hypot(self.spread, outside), factor.shape))

    def _log_sizes(self, sizes: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        names = tuple(size.name for size in self.sizes)
        if self.curve.feature_names != log_size_names(names):
            raise CalibrationError(
                f"calibration {self.provenance.name}: {self.op} was fitted on features that this "
                "version does not know; fit it again"
            )
        columns = np.broadcast_arrays(*(log_size(sizes[name]) for name in names))
        return np.stack(columns, axis=-1)


def log_size(values: ArrayLike) -> NDArray[np.float64]:
    """Returns the logarithm of sizes; zero lies as far below one as two lies above it."""
    return np.asarray(np.log(np.maximum(np.asarray(values, dtype=np.float64), 0.5)))


def log_size_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of features that are the logarithms of sizes."""
    return tuple(f"log_{name}" for name in names)


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveCalibration:
    """Measured time of one collective over message size.

    Attributes:
        op: Collective, by the names of `Platform.collective_time`.
        ranks: Ranks that took part, on one node.
        curve: Time over message size.
        spread: Standard deviation of the logarithm of held-out measured over predicted time.
        provenance: Where it comes from.
        held_out: Its error.
        transferred: Why it may serve for an interconnect it was not measured on.
        nccl: Version of the communication library that was measured; empty where it is not known.
    """

    op: str
    ranks: int
    curve: SizeCurve
    spread: float
    provenance: Provenance
    held_out: HeldOut
    transferred: str = ""
    nccl: str = ""


def held_out_errors(
    predicted: NDArray[np.float64], measured: NDArray[np.float64], rule: str
) -> HeldOut:
    """Compares predictions with measurements that the fit did not see.

    Raises:
        CalibrationError: There are no points.
    """
    if not len(measured):
        raise CalibrationError(f"no points are left to check the fit ({rule}); measure more")
    # A hit to the last digit would make the geometric mean zero; 0.01 % is exact here.
    errors = np.maximum(np.abs(predicted / measured - 1.0), 1e-4)
    return HeldOut(
        points=len(errors),
        gmae=float(np.exp(np.log(errors).mean())),
        mape=float(errors.mean()),
        p90=float(np.quantile(errors, 0.9)),
        rule=rule,
    )


def log_spread(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    """Returns the spread of log(measured / predicted) that predictions should state.

    The root mean square of few residuals is itself uncertain. It is widened to the standard
    deviation of a Student t prediction, `s² (n + 1) / (n − 2)`, never below what repeated timing
    differs by, and with very few residuals never below an unfitted model's.

    Args:
        predicted: Times in seconds, shape ``(points,)``.
        measured: Times of the same points.

    Raises:
        CalibrationError: There are no points.
    """
    residuals = np.log(measured / predicted)
    count = len(residuals)
    if not count:
        raise CalibrationError("no points are left for the spread of a fit; measure more")
    square = float(np.mean(residuals**2))
    if count < _FEW_RESIDUALS:
        return max(math.sqrt(square), _UNFITTED_SPREAD)
    return max(math.sqrt(square * (count + 1) / (count - 2)), _LEAST_SPREAD)
