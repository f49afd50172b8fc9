"""Calibration of an operator, with the error of fits on points that they did not see."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.fits import (
    HeldOut,
    KernelCalibration,
    SizeRange,
    fit_term_curve,
    held_out_errors,
    log_spread,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dse.calibration._origin import FitOrigin
    from dse.machine import Precision
    from dse.machine.fits import RatioCurve

    Floats = NDArray[np.float64]


def unchecked(
    op: str,
    precisions: tuple[str, ...],
    sizes: Mapping[str, Floats],
    curve: RatioCurve,
    origin: FitOrigin,
) -> KernelCalibration:
    """Returns the calibration that a curve is, its error and spread still unknown.

    Args:
        op: The operator.
        precisions: Arithmetic that it is for; empty for any.
        sizes: Sizes of the fitted points, by name.
        curve: What was fitted.
        origin: Where the points come from.
    """
    return KernelCalibration(
        op=op,
        precisions=precisions,
        sizes=tuple(
            SizeRange(name, float(size.min()), float(size.max())) for name, size in sizes.items()
        ),
        curve=curve,
        spread=math.inf,
        provenance=origin.provenance(len(next(iter(sizes.values())))),
        held_out=HeldOut(0, math.inf, math.inf, math.inf, "not checked"),
        implementation=origin.implementation,
    )


def checked(
    found: KernelCalibration, predicted_s: Floats, measured_s: Floats, rule: str
) -> KernelCalibration:
    """Returns a calibration with the error of predictions by fits that did not see the points.

    Args:
        found: The calibration.
        predicted_s: Predicted times.
        measured_s: Measured times of the same points.
        rule: How they were chosen.
    """
    return replace(
        found,
        spread=log_spread(predicted_s, measured_s),
        held_out=held_out_errors(predicted_s, measured_s, rule),
    )


@dataclass(frozen=True, slots=True, eq=False)
class TermPoints:
    """Measurements of an operator whose time is a sum of physical terms.

    Attributes:
        op: The operator.
        precision: Its arithmetic.
        terms: Names of the terms.
        sizes: Sizes by name; shape `(points,)` each.
        features: The terms; shape `(points, terms)`.
        reference_s: What the ratio multiplies; shape `(points,)`.
        time_s: Measured; shape `(points,)`.
    """

    op: str
    precision: Precision
    terms: tuple[str, ...]
    sizes: Mapping[str, Floats]
    features: Floats
    reference_s: Floats
    time_s: Floats


def fit_terms(
    points: TermPoints, folds: Sequence[NDArray[np.bool_]], rule: str, origin: FitOrigin
) -> KernelCalibration:
    """Fits what each physical term weighs, on all points.

    Args:
        points: Measurements.
        folds: Points that are left out together, for the error.
        rule: How they were chosen.
        origin: Where the points come from.
    """
    log_ratio = np.log(points.time_s / points.reference_s)
    predicted_s = np.full(len(log_ratio), np.nan)
    for unseen in folds:
        without = fit_term_curve(points.terms, points.features[~unseen], log_ratio[~unseen])
        ratio = np.exp(without.log_ratio(points.features[unseen]))
        predicted_s[unseen] = points.reference_s[unseen] * ratio
    known = np.isfinite(predicted_s)
    curve = fit_term_curve(points.terms, points.features, log_ratio)
    found = unchecked(points.op, (points.precision.value,), points.sizes, curve, origin)
    return checked(found, predicted_s[known], points.time_s[known], rule)
