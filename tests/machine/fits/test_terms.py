"""Weighted sums of physical terms."""

from __future__ import annotations

import numpy as np
import pytest

from dse.errors import CalibrationError
from dse.machine.fits import TermCurve, fit_term_curve

NAMES = ("log_arithmetic", "log_bytes", "log_launch")


def terms(points: int = 200) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.05, 1.0, (points, 3))


def test_a_sum_by_hand():
    curve = TermCurve(NAMES, (2.0, 0.0, 4.0))
    assert curve.log_ratio(np.log([[0.5, 0.7, 0.25]])) == pytest.approx([np.log(2.0)])


def test_a_term_may_be_nothing():
    with np.errstate(divide="ignore"):
        features = np.log([[0.5, 0.0, 0.25]])
    assert TermCurve(NAMES, (2.0, 3.0, 4.0)).log_ratio(features) == pytest.approx([np.log(2.0)])


def test_the_weights_of_a_law_are_found():
    found = terms()
    fit = fit_term_curve(NAMES, np.log(found), np.log(found @ [1.5, 0.3, 2.0]))
    assert fit.weights == pytest.approx((1.5, 0.3, 2.0), rel=1e-6)


def test_outliers_hardly_matter():
    found = terms()
    times = found @ [1.5, 0.3, 2.0]
    times[:10] *= 3.0
    fit = fit_term_curve(NAMES, np.log(found), np.log(times))
    assert fit.weights == pytest.approx((1.5, 0.3, 2.0), rel=0.02)


def test_no_weight_is_negative():
    found = terms()
    fit = fit_term_curve(NAMES, np.log(found), np.log(found @ [2.0, -0.04, 1.0]))
    assert min(fit.weights) >= 0


def test_few_points_are_refused():
    with pytest.raises(CalibrationError, match="11 points"):
        fit_term_curve(NAMES, np.zeros((11, 3)), np.zeros(11))
