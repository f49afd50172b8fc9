"""Smooth interpolation of scattered points."""

from __future__ import annotations

import numpy as np
import pytest

from dse.errors import CalibrationError
from dse.machine.fits import SmoothCurve, fit_smooth_curve


def scattered(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    features = np.random.default_rng(seed).uniform(0, 10, (count, 2))
    return features, np.sin(features[:, 0] / 3) + 0.1 * features[:, 1]


def test_a_smooth_function_is_learned():
    curve = fit_smooth_curve(("a", "b"), *scattered(200, 0))
    features, truth = scattered(500, 1)
    inside = np.all((features > 0.5) & (features < 9.5), axis=1)
    error = np.abs(curve.log_ratio(features) - truth)[inside]
    assert error.mean() < 0.02


def test_noise_is_smoothed():
    features, truth = scattered(300, 2)
    noisy = truth + np.random.default_rng(3).normal(0, 0.2, 300)
    curve = fit_smooth_curve(("a", "b"), features, noisy)
    assert np.abs(curve.log_ratio(features) - truth).mean() < 0.6 * np.abs(noisy - truth).mean()


def test_a_column_that_never_varies_does_no_harm():
    features, truth = scattered(60, 4)
    curve = fit_smooth_curve(("a", "b", "c"), np.column_stack([features, np.ones(60)]), truth)
    assert np.isfinite(curve.log_ratio(np.array([[5.0, 5.0, 1.0]]))).all()


def test_few_points_are_refused():
    with pytest.raises(CalibrationError, match="5 points are too few for a curve over a, b"):
        fit_smooth_curve(("a", "b"), *scattered(5, 0))


@pytest.mark.parametrize(
    "columns",
    [
        lambda a, b: (a, a),
        lambda a, b: (a, b, a + b),
        lambda a, b: (a, 2 * a + 1, np.ones(len(a))),
    ],
)
def test_columns_that_depend_on_each_other_get_the_linear_kernel(columns):
    features, truth = scattered(60, 5)
    table = np.column_stack(columns(*features.T))
    names = tuple("abc"[: table.shape[1]])
    curve = fit_smooth_curve(names, table, truth)
    assert curve.kernel == "linear"
    assert curve.log_ratio(table) == pytest.approx(truth, abs=1.0)


def test_one_point_off_the_line_does_not_make_a_fold_singular():
    """Without that point, which one of the folds leaves out, the columns are the same."""
    a = np.linspace(0, 10, 40)
    features = np.column_stack([a, a])
    features[7, 1] += 5.0
    curve = fit_smooth_curve(("a", "b"), features, np.sin(a))
    assert curve.kernel == "linear"


def test_repeated_points_are_averaged():
    features, truth = scattered(50, 6)
    repeated = np.concatenate([features, features[:20], features[:20]])
    values = np.concatenate([truth, truth[:20] + 0.3, truth[:20] - 0.3])
    curve = fit_smooth_curve(("a", "b"), repeated, values)
    once = fit_smooth_curve(("a", "b"), features, truth)
    assert curve.nodes == once.nodes
    assert curve.values == pytest.approx(once.values)


def test_repeats_do_not_count_as_points():
    features, truth = scattered(6, 7)
    with pytest.raises(CalibrationError, match="6 different points of 30 are too few"):
        fit_smooth_curve(("a", "b"), np.tile(features, (5, 1)), np.tile(truth, 5))


def test_more_points_than_a_dense_solution_can_take_are_refused():
    with pytest.raises(CalibrationError, match=r"2001 points .* at most 2000 .*--where"):
        fit_smooth_curve(("a", "b"), *scattered(2001, 8))


def test_a_curve_without_a_solution_is_an_error_in_words():
    curve = SmoothCurve(
        ("a", "b"), "thin_plate_spline", 0.0, (1.0, 1.0), ((1.0, 1.0),) * 4, (0,) * 4
    )
    with pytest.raises(CalibrationError, match=r"4 nodes over a, b .* fit it again"):
        curve.log_ratio(np.ones((1, 2)))
