from __future__ import annotations

import numpy as np
import pytest

from dse.errors import CalibrationError
from dse.machine.fits import fit_smooth_curve, log_size, log_size_names
from dse.machine.kernels._calibrated import factor_by_size, ratio_by_sizes
from tests.machine.kernels.calibrations import ConstantRatio, calibration


def learned_over_bytes(op="elementwise"):
    """A smooth ratio that falls from 2 at 1 kB to 1 at 1 GB."""
    sizes = np.geomspace(1e3, 1e9, 25)
    log_ratio = np.interp(np.log(sizes), np.log([1e3, 1e9]), [np.log(2.0), 0.0])
    features = log_size(sizes)[:, None]
    curve = fit_smooth_curve(log_size_names(("traffic_bytes",)), features, log_ratio)
    return calibration(op, {"traffic_bytes": (1e3, 1e9)}, curve=curve)


def test_the_table_follows_the_curve():
    learned = learned_over_bytes()
    sizes = np.geomspace(1e2, 1e10, 500)
    exact = learned.ratio({"traffic_bytes": sizes})
    tabulated = ratio_by_sizes(learned, {"traffic_bytes": sizes})
    assert tabulated.factor == pytest.approx(exact.factor, rel=1e-3)
    assert factor_by_size(learned, sizes) == pytest.approx(tabulated.factor)
    assert tabulated.spread == pytest.approx(exact.spread)
    assert tabulated.factor[0] == pytest.approx(2, rel=0.05)
    assert tabulated.factor[-1] == pytest.approx(1, rel=0.05)


def test_any_shape_is_kept():
    learned = calibration("softmax", {"rows": (1, 100), "columns": (1, 100)}, ratio=3.0)
    sizes = {"rows": np.ones((2, 3)), "columns": np.full((2, 3), 7.0), "value_bytes": None}
    ratio = ratio_by_sizes(learned, sizes)
    assert ratio.factor.shape == ratio.spread.shape == (2, 3)
    assert ratio.factor == pytest.approx(3.0)
    single = ratio_by_sizes(learned_over_bytes(), {"traffic_bytes": np.float64(5e4)})
    assert single.factor.shape == ()


def test_the_spread_grows_outside_the_range():
    learned = learned_over_bytes()
    inside, near, far = ratio_by_sizes(
        learned, {"traffic_bytes": np.array([1e6, 1e10, 1e12])}
    ).spread
    assert inside == pytest.approx(0.05)
    assert inside < near < far


def test_curves_over_other_features_are_refused():
    wrong = calibration(
        "elementwise",
        {"traffic_bytes": (1, 100)},
        curve=ConstantRatio(("something else",), 1.0),
    )
    with pytest.raises(CalibrationError, match="fit it again"):
        ratio_by_sizes(wrong, {"traffic_bytes": np.ones(3)})
