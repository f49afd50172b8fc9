"""Measurements of a machine, moved to one that differs from it in some figures.

A measured kernel is an analytical time of the device multiplied by a learned ratio. Under a change
the ratio stays that of the measured device, and only the analytical time moves: so more bandwidth
is never slower, whatever the shape of the learned ratio. Ratios that depend on sizes alone stay by
themselves; those of products also depend on the device (:data:`GEMM_FEATURES`) and are pinned.

How measured collectives move with their link is in :mod:`dse.machine.collectives`. Here the curves
of one device become those of another one's link: a curve around a line of latency and bandwidth,
which moves by the factors between the figures of both links and keeps its shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine import LinkKind, Precision
from dse.machine.fits import SizeCurve
from dse.machine.kernels import GEMM_FEATURES, gemm_features

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.machine import DeviceSpec, LinkSpec
    from dse.machine.fits import CollectiveCalibration, KernelCalibration, RatioCurve

#: Standard deviation of the logarithm of actual over expected time that the curves of another link
#: get: of the same kind and generation (rates within a quarter), of the same kind, of another. The
#: first two are the misses of measured systems that are left out; the last is assumed.
_SPREAD_SAME_GENERATION = 0.08
_SPREAD_SAME_KIND = 0.20
_SPREAD_OTHER_KIND = 0.40
_SAME_GENERATION = 1.25

#: Sizes of a product that features hold as logarithms.
_SIZES = ("m", "n", "k")
_PLACES = tuple(GEMM_FEATURES.index(f"log_{size}") for size in _SIZES)

#: Relative rounding error of a size that went through its logarithm.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class _PinnedCurve:
    """A learned ratio of products, evaluated for the measured device on any other device.

    Attributes:
        curve: The learned ratio.
        device: The device that it was learned on.
        precision: Arithmetic of the products.
    """

    curve: RatioCurve
    device: DeviceSpec
    precision: Precision

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.curve.feature_names

    def log_ratio(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluates the curve for the sizes among the features."""
        sizes = dict(zip(_SIZES, (_size(features[:, place]) for place in _PLACES), strict=True))
        return self.curve.log_ratio(gemm_features(self.device, self.precision, sizes))


def _size(logarithm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns sizes from their logarithms; whole ones exactly, as remainders depend on it."""
    size = np.exp(logarithm)
    whole = np.rint(size)
    return np.where(np.abs(size - whole) <= _ROUNDING * size, whole, size)


def pinned_calibrations(device: DeviceSpec) -> tuple[KernelCalibration, ...]:
    """Returns a device's kernel calibrations such that they hold for a changed device.

    Args:
        device: The device as it was measured.
    """
    bare = replace(device, calibrations=())
    return tuple(
        pinned for calibration in device.calibrations for pinned in _pinned(calibration, bare)
    )


def _pinned(calibration: KernelCalibration, device: DeviceSpec) -> list[KernelCalibration]:
    curve = calibration.curve
    if curve.feature_names != GEMM_FEATURES or isinstance(curve, _PinnedCurve):
        return [calibration]
    # Features depend on the precision, so each gets its own curve.
    precisions = calibration.precisions or tuple(precision.value for precision in Precision)
    return [
        replace(
            calibration,
            precisions=(precision,),
            curve=_PinnedCurve(curve, device, Precision(precision)),
        )
        for precision in precisions
    ]


def transferred_curves(
    curves: Sequence[CollectiveCalibration], old: LinkSpec | None, new: LinkSpec
) -> tuple[CollectiveCalibration, ...]:
    """Returns measured collectives of another device as those of a link, with a wider spread.

    Args:
        curves: The measured collectives.
        old: The link that they were measured on; where it is not known they stay as they are.
        new: The link that they are lent to.
    """
    if old is None:
        moved, added = tuple(curves), _SPREAD_OTHER_KIND
    else:
        moved = tuple(_moved(one, old, new) for one in curves)
        added = _transfer_spread(old, new)
    return tuple(replace(one, spread=math.hypot(one.spread, added)) for one in moved)


def _transfer_spread(old: LinkSpec, new: LinkSpec) -> float:
    if old.kind is not new.kind:
        return _SPREAD_OTHER_KIND
    ratio = abs(math.log(new.bandwidth_bytes_per_s / old.bandwidth_bytes_per_s))
    same = ratio <= math.log(_SAME_GENERATION)
    return _SPREAD_SAME_GENERATION if same else _SPREAD_SAME_KIND


def _bandwidth(link: LinkSpec, ranks: int) -> float:
    """Returns the bandwidth that limits so many ranks: two are a pair where links are pairs."""
    pair = link.pair_bandwidth_bytes_per_s
    if pair is None:
        return link.bandwidth_bytes_per_s
    if link.kind is LinkKind.FULL_MESH:
        return min(link.bandwidth_bytes_per_s, (ranks - 1) * pair)
    return pair if ranks == 2 else link.bandwidth_bytes_per_s


def _moved(
    calibration: CollectiveCalibration, old: LinkSpec, new: LinkSpec
) -> CollectiveCalibration:
    curve = calibration.curve
    latency = new.latency_s / old.latency_s if old.latency_s > 0 else 1.0
    bandwidth = _bandwidth(new, calibration.ranks) / _bandwidth(old, calibration.ranks)
    if latency == bandwidth == 1.0:
        return calibration
    size = np.array(curve.size_bytes)
    latency_s = curve.latency_s * latency
    rate = curve.bandwidth_bytes_per_s * bandwidth
    changed_s = np.array(curve.time_s) * (latency_s + size / rate) / curve.line_s(size)
    # A larger message never takes less time.
    time_s = np.maximum.accumulate(changed_s)
    moved = SizeCurve(latency_s, rate, curve.size_bytes, tuple(time_s.tolist()))
    return replace(calibration, curve=moved)
