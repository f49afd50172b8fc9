"""Fitting fused attention: weights of physical terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.calibration._checked import TermPoints, fit_terms
from dse.calibration._held_out import held_out_groups
from dse.calibration.measurements import check_units
from dse.machine.kernels import (
    ATTENTION_SIZES,
    ATTENTION_TERMS,
    attention_features,
    attention_reference_s,
)

if TYPE_CHECKING:
    from dse.calibration._origin import FitOrigin
    from dse.calibration.measurements import AttentionSamples
    from dse.machine import DeviceSpec, Precision
    from dse.machine.fits import KernelCalibration

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
    reference_s = attention_reference_s(device, sizes, precision, causal=True)
    check_units(samples, reference_s)
    unseen = held_out_groups("attention", sizes, _HEADS)
    rule = (
        f"a quarter of the (heads, kv_heads, dim) triples ({int(unseen.sum())} of {len(unseen)} "
        "points), seed 0"
    )
    features = attention_features(device, sizes, precision, causal=True)
    points = TermPoints(
        "attention", precision, ATTENTION_TERMS, sizes, features, reference_s, samples.time_s
    )
    return fit_terms(points, [unseen], rule, origin)
