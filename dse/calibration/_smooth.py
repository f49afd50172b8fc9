"""Fitting operators that are smooth in their sizes: all but GEMM tables with their jumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.calibration._checked import checked, unchecked
from dse.errors import CalibrationError
from dse.machine.fits import (
    fit_smooth_curve,
    log_size,
    log_size_names,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dse.calibration._origin import FitOrigin
    from dse.machine.fits import KernelCalibration

#: Part of a time that the ratio explains at least, when fixed costs are subtracted from it.
_LEAST_BUSY_SHARE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class SmoothPoints:
    """Measurements of one operator in one precision.

    Attributes:
        sizes: Size by name; shape `(points,)` each.
        time_s: Measured; shape `(points,)`.
        reference_s: What the ratio multiplies; shape `(points,)`.
        fixed_s: What is added to it (launches of a fused kernel); shape `(points,)` or zero.
        held_out: Points for checking only; none for cross-validation. Shape `(points,)`.
    """

    sizes: Mapping[str, NDArray[np.float64]]
    time_s: NDArray[np.float64]
    reference_s: NDArray[np.float64]
    fixed_s: NDArray[np.float64] | float
    held_out: NDArray[np.bool_]


def fit_smooth(
    op: str, precisions: tuple[str, ...], points: SmoothPoints, origin: FitOrigin
) -> KernelCalibration:
    """Fits a smooth ratio over the logarithms of the sizes.

    The error is that on the held-out points. Without any, a quarter of the points is held out, and
    the result is then fitted on all of them.

    Raises:
        CalibrationError: Too few points.
    """
    names = tuple(name for name, size in points.sizes.items() if np.ptp(size) > 0)
    if not names:
        raise CalibrationError(f"{op}: all points have the same sizes; measure different ones")
    features = np.column_stack([log_size(points.sizes[name]) for name in names])
    busy_s = np.maximum(points.time_s - points.fixed_s, _LEAST_BUSY_SHARE * points.time_s)
    log_ratio = np.log(busy_s / points.reference_s)
    unseen = points.held_out if points.held_out.any() else _quarter(len(log_ratio))
    rule = "held-out points of the session" if points.held_out.any() else "a quarter of the points"
    seen = ~unseen
    curve = fit_smooth_curve(log_size_names(names), features[seen], log_ratio[seen])
    predicted = curve.log_ratio(
        np.clip(features[unseen], features[seen].min(axis=0), features[seen].max(axis=0))
    )
    fixed_s = np.broadcast_to(points.fixed_s, points.time_s.shape)
    predicted_s = fixed_s[unseen] + np.exp(predicted) * points.reference_s[unseen]
    if not points.held_out.any():
        seen = np.ones(len(log_ratio), dtype=bool)
        curve = fit_smooth_curve(log_size_names(names), features, log_ratio)
    sizes = {name: points.sizes[name][seen] for name in names}
    found = unchecked(op, precisions, sizes, curve, origin)
    return checked(found, predicted_s, points.time_s[unseen], rule)


def _quarter(count: int) -> NDArray[np.bool_]:
    chosen = np.zeros(count, dtype=bool)
    chosen[np.random.default_rng(0).permutation(count)[: max(1, count // 4)]] = True
    return chosen
