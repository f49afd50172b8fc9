"""Fitting blocks of experts and the exchange of their tokens: weights of physical terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dse.calibration._checked import TermPoints, fit_terms
from dse.errors import CalibrationError
from dse.machine import Precision
from dse.machine.kernels import (
    EXCHANGE_SIZES,
    EXCHANGE_TERMS,
    EXPERT_SIZES,
    EXPERT_TERMS,
    exchange_features,
    exchange_reference_s,
    expert_features,
    expert_reference_s,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.calibration._origin import FitOrigin
    from dse.calibration.measurements import ExchangeSamples, ExpertSamples
    from dse.machine import DeviceSpec
    from dse.machine.fits import KernelCalibration

#: Fewest groups: each is left out once.
_MIN_GROUPS = 3


def fit_experts(
    device: DeviceSpec, samples: ExpertSamples, origin: FitOrigin
) -> KernelCalibration:
    """Fits what each physical term of a block of experts weighs, in half precision.

    The error is that of fits that left out each pair of widths once; the result is fitted on all
    points.

    Args:
        device: The device that was measured.
        samples: Measurements.
        origin: Where they come from.

    Raises:
        CalibrationError: Too few points or pairs.
    """
    sizes = {name: getattr(samples, name).astype(np.float64) for name in EXPERT_SIZES}
    points = TermPoints(
        "experts",
        Precision.BF16,
        EXPERT_TERMS,
        sizes,
        expert_features(device, sizes, Precision.BF16),
        expert_reference_s(device, sizes, Precision.BF16),
        samples.time_s,
    )
    widths = np.stack([sizes["hidden"], sizes["inner"]], axis=1)
    return _fit(points, widths, "each (hidden, inner) pair", origin)


def fit_exchange(
    device: DeviceSpec, samples: ExchangeSamples, origin: FitOrigin
) -> KernelCalibration:
    """Fits what each physical term of an exchange of tokens weighs.

    The error is that of fits that left out each width of tokens once, or each number of ranks
    where there is one width; the result is fitted on all points.

    Args:
        device: The device that was measured.
        samples: Measurements.
        origin: Where they come from.

    Raises:
        CalibrationError: Too few points or groups.
    """
    sizes = {name: getattr(samples, name).astype(np.float64) for name in EXCHANGE_SIZES}
    points = TermPoints(
        "expert_exchange",
        Precision.BF16,
        EXCHANGE_TERMS,
        sizes,
        exchange_features(device, sizes),
        exchange_reference_s(device, sizes),
        samples.time_s,
    )
    if len(np.unique(sizes["hidden"])) >= _MIN_GROUPS:
        return _fit(points, sizes["hidden"][:, None], "each width of tokens", origin)
    return _fit(points, samples.ranks[:, None], "each number of ranks", origin)


def _fit(
    points: TermPoints, groups: NDArray[Any], left_out: str, origin: FitOrigin
) -> KernelCalibration:
    names, number = np.unique(groups, axis=0, return_inverse=True)
    if len(names) < _MIN_GROUPS:
        raise CalibrationError(
            f"{points.op}: {len(names)} groups, at least {_MIN_GROUPS} are needed to leave out "
            f"{left_out} once; measure more"
        )
    folds = [number.ravel() == index for index in range(len(names))]
    return fit_terms(points, folds, f"{left_out} left out once ({len(names)} groups)", origin)
