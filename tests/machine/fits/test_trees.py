"""Boosted trees as curves."""

from __future__ import annotations

import base64
from dataclasses import replace
import lzma
import pickle

import numpy as np
import pytest

from dse.errors import CalibrationError
from dse.machine.fits import fit_tree_curve
from dse.machine.fits._trees import _unpacked


@pytest.fixture(scope="module")
def steps():
    features = np.random.default_rng(0).uniform(0, 4, (2000, 2))
    log_ratio = np.floor(features[:, 0]) + 0.5 * features[:, 1]
    curve = fit_tree_curve(("a", "b"), features, log_ratio, offset_feature="b", rounds=200)
    return curve, features, log_ratio


def test_steps_are_learned(steps):
    curve, features, log_ratio = steps
    assert np.abs(curve.log_ratio(features) - log_ratio).mean() < 0.05


def test_a_curve_survives_pickling(steps):
    curve, features, _ = steps
    again = pickle.loads(pickle.dumps(curve))
    np.testing.assert_array_equal(again.log_ratio(features), curve.log_ratio(features))


def test_a_damaged_model_is_refused(steps):
    curve, features, _ = steps
    with pytest.raises(CalibrationError, match="damaged"):
        replace(curve, packed="bm8=").log_ratio(features)
    nonsense = base64.b64encode(lzma.compress(b"{no model}")).decode()
    with pytest.raises(CalibrationError, match="damaged"):
        replace(curve, packed=nonsense).log_ratio(features)


def test_a_library_that_reads_the_trees_as_another_model_is_an_error(steps, monkeypatch):
    """XGBoost 3.0 took 0.5 for a base score in brackets, and every GEMM was 31 % too slow."""
    import xgboost

    curve, features, _ = steps
    original = xgboost.Booster.inplace_predict
    for wrong in (0.27, np.nan):
        _unpacked.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(
                xgboost.Booster,
                "inplace_predict",
                lambda *given, wrong=wrong: original(*given) + wrong,
            )
            with pytest.raises(CalibrationError, match=xgboost.__version__):
                curve.log_ratio(features)
    _unpacked.cache_clear()
    assert len(curve.log_ratio(features)) == len(features)


def test_a_bomb_is_not_unpacked(steps):
    curve, features, _ = steps
    bomb = base64.b64encode(lzma.compress(bytes(80 * 2**20), preset=1)).decode()
    with pytest.raises(CalibrationError, match="larger than"):
        replace(curve, packed=bomb).log_ratio(features)


def test_other_features_than_the_model_was_fitted_on_are_refused(steps):
    curve, features, _ = steps
    wider = replace(curve, feature_names=("a", "b", "c"))
    with pytest.raises(CalibrationError, match="names 3 features but its model has 2"):
        wider.log_ratio(np.column_stack([features, features[:, 0]]))
