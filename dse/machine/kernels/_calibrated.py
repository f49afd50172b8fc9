"""Calibrations whose features are the logarithms of an operator's sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.fits import Ratio, log_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dse.machine.fits import KernelCalibration

#: Knots of the table that replaces a curve over one size.
_KNOTS = 1024


def ratio_by_sizes(
    calibration: KernelCalibration, sizes: Mapping[str, NDArray[np.float64]]
) -> Ratio:
    """Evaluates a calibration over size logarithms for sizes of any shape.

    Curves over one size are tabulated once; then their evaluation costs a search in a sorted
    table, whatever the curve.

    Args:
        calibration: What was learned, on the logarithms of its sizes.
        sizes: At least the calibration's sizes, in one common shape.

    Returns:
        Factor and spread in that shape.

    Raises:
        CalibrationError: The curve was fitted on other features.
    """
    if len(calibration.sizes) == 1:
        calibration = _tabulated(calibration)
    chosen = {size.name: np.asarray(sizes[size.name]) for size in calibration.sizes}
    shape = next(iter(chosen.values())).shape
    ratio = calibration.ratio({name: values.ravel() for name, values in chosen.items()})
    return Ratio(ratio.factor.reshape(shape), ratio.spread.reshape(shape))


def factor_by_size(
    calibration: KernelCalibration, values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the factor of :func:`ratio_by_sizes` for a calibration over one size, quickly.

    Args:
        calibration: What was learned, on the logarithm of its size.
        values: That size, any shape.
    """
    # The table continues its ends, as the calibration does.
    log_ratio = _tabulated(calibration).curve.log_ratio(log_size(values).reshape(-1, 1))
    return np.asarray(np.exp(log_ratio)).reshape(values.shape)


@dataclass(frozen=True, slots=True, eq=False)
class _TableCurve:
    """Linear interpolation over the logarithm of a size."""

    feature_names: tuple[str, ...]
    knots: NDArray[np.float64]
    values: NDArray[np.float64]

    def log_ratio(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.interp(features[:, 0], self.knots, self.values))


@lru_cache(maxsize=64)
def _tabulated(calibration: KernelCalibration) -> KernelCalibration:
    (size,) = calibration.sizes
    knots = np.unique(np.linspace(log_size(size.low), log_size(size.high), _KNOTS))
    values = np.log(calibration.ratio({size.name: np.exp(knots)}).factor)
    return replace(calibration, curve=_TableCurve(calibration.curve.feature_names, knots, values))
