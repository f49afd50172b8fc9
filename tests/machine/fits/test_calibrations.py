"""Ratios inside and outside the measured range."""

from __future__ import annotations

import numpy as np
import pytest

from dse.errors import CalibrationError
from dse.machine.fits import (
    HeldOut,
    KernelCalibration,
    Provenance,
    SizeRange,
    held_out_errors,
    log_size_names,
    log_spread,
)


class Slope:
    """A log ratio that is the first feature."""

    def __init__(self, *feature_names: str) -> None:
        self.feature_names = feature_names

    def log_ratio(self, features: np.ndarray) -> np.ndarray:
        return features[:, 0]


def calibration(curve: Slope) -> KernelCalibration:
    return KernelCalibration(
        op="op",
        precisions=(),
        sizes=(SizeRange("n", 10.0, 1000.0),),
        curve=curve,
        spread=0.03,
        provenance=Provenance("name", "device", "source", "2026", 100),
        held_out=HeldOut(10, 0.02, 0.03, 0.05, "rule"),
    )


def test_inside_the_range_the_curve_speaks_and_the_spread_is_its_own():
    ratio = calibration(Slope(*log_size_names(("n",)))).ratio({"n": np.array([10.0, 100.0])})
    assert ratio.factor == pytest.approx([10.0, 100.0])
    assert ratio.spread == pytest.approx([0.03, 0.03])


def test_outside_the_nearest_point_speaks_and_the_spread_grows():
    ratio = calibration(Slope(*log_size_names(("n",)))).ratio(
        {"n": np.array([1.0, 1000.0, 1000.0 * np.e, 1000.0 * np.e**2])}
    )
    assert ratio.factor == pytest.approx([10.0, 1000.0, 1000.0, 1000.0])
    assert ratio.spread[1] == pytest.approx(0.03)
    assert ratio.spread[2] == pytest.approx(np.hypot(0.03, 0.15))
    assert ratio.spread[3] == pytest.approx(np.hypot(0.03, 0.30))


def test_unknown_features_are_refused():
    with pytest.raises(CalibrationError, match="fitted on features that this version"):
        calibration(Slope("squared_n")).ratio({"n": np.array([10.0])})


def test_errors_by_hand():
    errors = held_out_errors(np.array([1.1, 0.6, 1.0]), np.array([1.0, 1.0, 1.0]), "rule")
    assert errors.mape == pytest.approx((0.1 + 0.4 + 0.0001) / 3)
    assert errors.gmae == pytest.approx((0.1 * 0.4 * 0.0001) ** (1 / 3))
    assert errors.points == 3
    # sqrt((0.09 + 0.16) / 2)
    assert log_spread(np.ones(2), np.exp([0.3, -0.4])) == pytest.approx(0.125**0.5)


def test_no_points_are_no_error():
    with pytest.raises(CalibrationError, match="no points are left"):
        held_out_errors(np.array([]), np.array([]), "odd")
