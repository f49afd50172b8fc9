"""Fitting GEMM: boosted trees on thousands of points, smooth interpolation on hundreds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.calibration._checked import checked, unchecked
from dse.calibration._held_out import held_out_groups
from dse.calibration.measurements import check_units
from dse.errors import CalibrationError
from dse.machine import Precision
from dse.machine.fits import (
    fit_smooth_curve,
    fit_tree_curve,
    log_size,
    log_size_names,
)
from dse.machine.kernels import (
    GEMM_FEATURES,
    GEMM_OFFSET_FEATURE,
    gemm_curve_features,
    gemm_features,
    gemm_reference_s,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.calibration._origin import FitOrigin
    from dse.calibration.measurements import GemmSamples
    from dse.machine import DeviceSpec
    from dse.machine.fits import KernelCalibration, RatioCurve

#: From so many points on trees learn more than smooth interpolation.
_MIN_TREE_POINTS = 1000

#: From so many points on, trees of depth six learn more than those of depth four, which are less
#: than half as large.
_MANY_POINTS = 10_000

#: Sizes of a layer's weights: a fit knows the layer or not at all.
_WEIGHTS = ("n", "k")

_SHAPE = ("m", "n", "k")


@dataclass(frozen=True, slots=True, eq=False)
class GemmSplit:
    """Points of one precision with the mask of those held out.

    Attributes:
        sizes: `m`, `n` and `k`; shape `(points,)` each.
        time_s: Measured; shape `(points,)`.
        reference_s: Launch floor plus roofline; shape `(points,)`.
        held_out: Shape `(points,)`.
    """

    sizes: dict[str, NDArray[np.float64]]
    time_s: NDArray[np.float64]
    reference_s: NDArray[np.float64]
    held_out: NDArray[np.bool_]

    def select(self, chosen: NDArray[np.bool_]) -> GemmSplit:
        """Returns the points of a mask."""
        sizes = {name: size[chosen] for name, size in self.sizes.items()}
        return GemmSplit(
            sizes, self.time_s[chosen], self.reference_s[chosen], self.held_out[chosen]
        )


def split_gemm(
    device: DeviceSpec, samples: GemmSamples, precision: Precision, seed: int = 0
) -> GemmSplit:
    """Holds out a quarter of the (n, k) pairs of one precision.

    Raises:
        CalibrationError: The times cannot be seconds on this device, or there are too few pairs.
    """
    chosen = samples.select(samples.precision == precision.value)
    sizes = {name: getattr(chosen, name).astype(np.float64) for name in _SHAPE}
    reference_s = gemm_reference_s(device, sizes["m"], sizes["n"], sizes["k"], precision)
    check_units(chosen, reference_s)
    held_out = held_out_groups(f"gemm in {precision.value}", sizes, _WEIGHTS, seed)
    return GemmSplit(sizes, chosen.time_s, reference_s, held_out)


def fit_gemm(
    device: DeviceSpec, samples: GemmSamples, origin: FitOrigin
) -> tuple[KernelCalibration, ...]:
    """Fits one calibration for each precision among the samples.

    The error is that of a fit without the held-out pairs; the result is fitted on all points.

    Args:
        device: The device that was measured.
        samples: Measurements.
        origin: Where they come from.

    Raises:
        CalibrationError: Too few points or pairs, or times that cannot be seconds.
    """
    precisions = [_precision(str(value)) for value in np.unique(samples.precision)]
    # All are split before the first is fitted, so that minutes of fitting do not end in a refusal.
    splits = [split_gemm(device, samples, precision) for precision in precisions]
    return tuple(
        _fit_precision(split, device, precision, origin)
        for split, precision in zip(splits, precisions, strict=True)
    )


def _fit_precision(
    split: GemmSplit, device: DeviceSpec, precision: Precision, origin: FitOrigin
) -> KernelCalibration:
    unseen = split.held_out
    without = _fit(split.select(~unseen), device, precision, origin)
    left_out = split.select(unseen)
    ratio = without.ratio(left_out.sizes, gemm_curve_features(without, device, precision))
    predicted_s = left_out.reference_s * ratio.factor
    rule = f"a quarter of the (n, k) pairs ({int(unseen.sum())} of {len(unseen)} points), seed 0"
    return checked(_fit(split, device, precision, origin), predicted_s, left_out.time_s, rule)


def _fit(
    split: GemmSplit, device: DeviceSpec, precision: Precision, origin: FitOrigin
) -> KernelCalibration:
    """Fits all points of a split; error and spread are still unknown."""
    log_ratio = np.log(split.time_s / split.reference_s)
    curve: RatioCurve
    if len(split.time_s) >= _MIN_TREE_POINTS:
        features = gemm_features(device, precision, split.sizes)
        curve = fit_tree_curve(
            GEMM_FEATURES,
            features,
            log_ratio,
            offset_feature=GEMM_OFFSET_FEATURE,
            depth=6 if len(split.time_s) >= _MANY_POINTS else 4,
        )
    else:
        sizes = np.column_stack([log_size(split.sizes[name]) for name in _SHAPE])
        curve = fit_smooth_curve(log_size_names(_SHAPE), sizes, log_ratio)
    return unchecked("gemm", (precision.value,), split.sizes, curve, origin)


def _precision(name: str) -> Precision:
    known = [precision.value for precision in Precision]
    if name not in known:
        raise CalibrationError(
            f"products in {name} cannot be used: the precisions of dse are {', '.join(known)}; "
            "filter the rows by their precision"
        )
    return Precision(name)
