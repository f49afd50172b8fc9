"""Fitting blocks of experts and the exchange of their tokens: weights of physical terms."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import CalibrationError
from dse.machine import Precision
from dse.machine.fits import (
    HeldOut,
    KernelCalibration,
    SizeRange,
    fit_term_curve,
    held_out_errors,
    log_spread,
)
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

    Floats = NDArray[np.float64]

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
    group = np.stack([sizes["hidden"], sizes["inner"]], axis=1)
    return _fit(
        "experts",
        EXPERT_TERMS,
        sizes,
        samples.time_s,
        expert_features(device, sizes, Precision.BF16),
        expert_reference_s(device, sizes, Precision.BF16),
        group,
        origin,
        "each (hidden, inner) pair",
    )


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
    by_width = len(np.unique(sizes["hidden"])) >= _MIN_GROUPS
    return _fit(
        "expert_exchange",
        EXCHANGE_TERMS,
        sizes,
        samples.time_s,
        exchange_features(device, sizes),
        exchange_reference_s(device, sizes),
        (sizes["hidden"] if by_width else samples.ranks.astype(np.float64))[:, None],
        origin,
        "each width of tokens" if by_width else "each number of ranks",
    )


def _fit(
    op: str,
    terms: tuple[str, ...],
    sizes: dict[str, Floats],
    time_s: Floats,
    features: Floats,
    reference_s: Floats,
    groups: Floats,
    origin: FitOrigin,
    left_out: str,
) -> KernelCalibration:
    names, number = np.unique(groups, axis=0, return_inverse=True)
    if len(names) < _MIN_GROUPS:
        raise CalibrationError(
            f"{op}: {len(names)} groups, at least {_MIN_GROUPS} are needed to leave out "
            f"{left_out} once; measure more"
        )
    log_ratio = np.log(time_s / reference_s)
    predicted_s = np.empty_like(time_s)
    for unseen in (number.ravel() == index for index in range(len(names))):
        checked = fit_term_curve(terms, features[~unseen], log_ratio[~unseen])
        predicted_s[unseen] = reference_s[unseen] * np.exp(checked.log_ratio(features[unseen]))
    found = KernelCalibration(
        op=op,
        precisions=(Precision.BF16.value,),
        sizes=tuple(
            SizeRange(name, float(size.min()), float(size.max())) for name, size in sizes.items()
        ),
        curve=fit_term_curve(terms, features, log_ratio),
        spread=math.inf,
        provenance=origin.provenance(len(time_s)),
        held_out=HeldOut(0, math.inf, math.inf, math.inf, "not checked"),
        implementation=origin.implementation,
    )
    return replace(
        found,
        spread=log_spread(predicted_s, time_s),
        held_out=held_out_errors(
            predicted_s, time_s, f"{left_out} left out once ({len(names)} groups)"
        ),
    )
