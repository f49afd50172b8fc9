"""Fitting fused attention: weights of physical terms."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.calibration._held_out import held_out_groups
from dse.calibration.measurements import check_units
from dse.machine.fits import (
    HeldOut,
    KernelCalibration,
    SizeRange,
    fit_term_curve,
    held_out_errors,
    log_spread,
)
from dse.machine.kernels import (
    ATTENTION_SIZES,
    ATTENTION_TERMS,
    attention_features,
    attention_reference_s,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.calibration._origin import FitOrigin
    from dse.calibration.measurements import AttentionSamples
    from dse.machine import DeviceSpec, Precision

#: Sizes of a model's heads: a fit knows the model or not at all.
_HEADS = ("heads", "kv_heads", "dim")


def fit_attention(
    device: DeviceSpec,
    samples: AttentionSamples,
    precision: Precision,
    origin: FitOrigin,
) -> KernelCalibration:
    """Fits what each physical term of causal forward attention weighs on a device.

    The error is that of a fit without the held-out heads; the result is fitted on all points.

    Args:
        device: The device that was measured.
        samples: Measurements.
        precision: Arithmetic that was measured.
        origin: Where they come from.

    Raises:
        CalibrationError: Too few points or heads, or times that cannot be seconds.
    """
    sizes = {name: getattr(samples, name).astype(np.float64) for name in ATTENTION_SIZES}
    check_units(samples, attention_reference_s(device, sizes, precision, causal=True))
    unseen = held_out_groups("attention", sizes, _HEADS)
    seen = {name: size[~unseen] for name, size in sizes.items()}
    left_out = {name: size[unseen] for name, size in sizes.items()}
    checked = _fit(device, seen, samples.time_s[~unseen], precision, origin)
    features = attention_features(device, left_out, precision, causal=True)
    predicted_s = attention_reference_s(device, left_out, precision, causal=True) * np.exp(
        checked.curve.log_ratio(features)
    )
    measured_s = samples.time_s[unseen]
    rule = (
        f"a quarter of the (heads, kv_heads, dim) triples ({int(unseen.sum())} of {len(unseen)} "
        "points), seed 0"
    )
    return replace(
        _fit(device, sizes, samples.time_s, precision, origin),
        spread=log_spread(predicted_s, measured_s),
        held_out=held_out_errors(predicted_s, measured_s, rule),
    )


def _fit(
    device: DeviceSpec,
    sizes: dict[str, NDArray[np.float64]],
    time_s: NDArray[np.float64],
    precision: Precision,
    origin: FitOrigin,
) -> KernelCalibration:
    """Fits all points; error and spread are still unknown."""
    features = attention_features(device, sizes, precision, causal=True)
    reference_s = attention_reference_s(device, sizes, precision, causal=True)
    return KernelCalibration(
        op="attention",
        precisions=(precision.value,),
        sizes=tuple(
            SizeRange(name, float(size.min()), float(size.max())) for name, size in sizes.items()
        ),
        curve=fit_term_curve(ATTENTION_TERMS, features, np.log(time_s / reference_s)),
        spread=math.inf,
        provenance=origin.provenance(len(time_s)),
        held_out=HeldOut(0, math.inf, math.inf, math.inf, "not checked"),
        implementation=origin.implementation,
    )
