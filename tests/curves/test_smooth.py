"""Smooth interpolation of scattered points."""

from __future__ import annotations

import numpy as np
import pytest

from dse.curves import fit_smooth_curve
from dse.errors import CalibrationError


def scattered(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    features = np.random.default_rng(seed).uniform(0, 10, (count, 2))
    return features, np.sin(features[:, 0] / 3) + 0.1 * features[:, 1]


def test_a_smooth_function_is_learned_and_its_error_foretold():
    fit = fit_smooth_curve(("a", "b"), *scattered(200, 0))
    features, truth = scattered(500, 1)
    inside = np.all((features > 0.5) & (features < 9.5), axis=1)
    error = np.abs(fit.curve.log_ratio(features) - truth)[inside]
    assert error.mean() < 0.02
    seen_error = np.abs(fit.out_of_fold - scattered(200, 0)[1]).mean()
    assert error.mean() < 2 * seen_error + 0.01


def test_noise_is_smoothed():
    features, truth = scattered(300, 2)
    noisy = truth + np.random.default_rng(3).normal(0, 0.2, 300)
    curve = fit_smooth_curve(("a", "b"), features, noisy).curve
    assert np.abs(curve.log_ratio(features) - truth).mean() < 0.6 * np.abs(noisy - truth).mean()


def test_a_column_that_never_varies_does_no_harm():
    features, truth = scattered(60, 4)
    curve = fit_smooth_curve(
        ("a", "b", "c"), np.column_stack([features, np.ones(60)]), truth
    ).curve
    assert np.isfinite(curve.log_ratio(np.array([[5.0, 5.0, 1.0]]))).all()


def test_few_points_are_refused():
    with pytest.raises(CalibrationError, match="5 points are too few for a curve over a, b"):
        fit_smooth_curve(("a", "b"), *scattered(5, 0))
