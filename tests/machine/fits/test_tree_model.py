"""Models of trees from untrusted files: checked before XGBoost sees them."""

from __future__ import annotations

import base64
import json
import lzma
import random
import subprocess
import sys

import numpy as np
import pytest

from dse.errors import CalibrationError
from dse.machine.fits import TreeCurve, fit_tree_curve
from dse.machine.fits._tree_model import TreeModel
from tests.conftest import ROOT

pytest.importorskip("xgboost")

NAMES = ("a", "b", "c")
ROWS = np.random.default_rng(0).normal(size=(200, 3))


@pytest.fixture(scope="module")
def curve():
    return fit_tree_curve(NAMES, ROWS, ROWS @ np.array([1.0, 2.0, 3.0]), rounds=4)


@pytest.fixture(scope="module")
def raw(curve):
    return lzma.decompress(base64.b64decode(curve.packed))


@pytest.fixture
def model(raw):
    return json.loads(raw)


def packed(content: bytes) -> TreeCurve:
    return TreeCurve(NAMES, base64.b64encode(lzma.compress(content, preset=0)).decode())


def evaluate(model: object) -> np.ndarray:
    return packed(json.dumps(model).encode()).log_ratio(ROWS)


def first_tree(model: dict) -> dict:
    return model["learner"]["gradient_booster"]["model"]["trees"][0]


def test_a_fitted_model_is_xgboosts_own_json(curve, raw):
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(bytearray(raw))
    expected = booster.inplace_predict(ROWS.astype(np.float32))
    np.testing.assert_array_equal(curve.log_ratio(ROWS), expected.astype(np.float64))


def test_both_forms_of_a_model_predict_the_same(curve, raw):
    import xgboost

    for content in (TreeModel.read(raw, 3).json(), TreeModel.read(raw, 3).binary()):
        booster = xgboost.Booster()
        booster.load_model(bytearray(content))
        found = booster.inplace_predict(ROWS.astype(np.float32))
        np.testing.assert_array_equal(curve.log_ratio(ROWS), found.astype(np.float64))


def test_what_is_stored_is_read_as_the_same(raw):
    assert TreeModel.read(raw, 3).json() == raw


def test_a_model_of_one_leaf_a_tree():
    flat = fit_tree_curve(NAMES, ROWS, np.full(len(ROWS), 0.25), rounds=3)
    np.testing.assert_allclose(flat.log_ratio(ROWS), 0.25, atol=0.1)


def test_a_model_without_trees_is_its_base_score(model):
    model["learner"]["gradient_booster"]["model"]["trees"] = []
    score = float(model["learner"]["learner_model_param"]["base_score"].strip("[]"))
    np.testing.assert_allclose(evaluate(model), score, rtol=1e-6)


def test_an_example_is_what_xgboost_predicts_for_it(raw):
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(bytearray(raw))
    row, expected = TreeModel.read(raw, 3).example()
    assert booster.inplace_predict(row[None, :])[0] == pytest.approx(expected, abs=1e-6)
    # Not a corner of the space.
    assert np.all(np.abs(row) < 2)


@pytest.mark.parametrize("brackets", [True, False])
def test_the_base_score_is_a_number_without_brackets(model, brackets):
    """Versions before 3.1 took 0.5 for one in brackets."""
    parameters = model["learner"]["learner_model_param"]
    score = parameters["base_score"].strip("[]")
    parameters["base_score"] = f"[{score}]" if brackets else score
    plain = json.loads(TreeModel.read(json.dumps(model).encode(), 3).json())
    assert plain["learner"]["learner_model_param"]["base_score"] == score


def test_its_text_is_short(curve):
    assert len(repr(curve)) < 100


@pytest.mark.parametrize(
    ("key", "index", "number", "problem"),
    [
        ("left_children", 0, 10**6, "left_children"),
        ("left_children", 0, 1000, "does not follow"),
        ("left_children", 0, 0, "does not follow"),
        ("left_children", 1, 0, "does not follow"),
        ("left_children", 0, -1, "one child"),
        ("left_children", 0, 2, "same child"),
        ("right_children", 0, -7, "right_children"),
        ("right_children", 0, 1.5, "right_children"),
        ("split_indices", 0, 3, "beyond the last"),
        ("split_indices", 0, -1, "split_indices"),
        ("split_conditions", 0, float("nan"), "malformed"),
        ("split_conditions", 0, 1e39, "split_conditions"),
        ("split_type", 0, 1, "split_type"),
        ("default_left", 0, 2, "default_left"),
    ],
)
def test_trees_that_lead_nowhere(model, key, index, number, problem):
    first_tree(model)[key][index] = number
    with pytest.raises(CalibrationError, match=problem):
        evaluate(model)


@pytest.mark.parametrize("key", ["right_children", "split_indices", "split_conditions"])
def test_a_shorter_array_is_refused(model, key):
    first_tree(model)[key].pop()
    with pytest.raises(CalibrationError, match="lacks a part"):
        evaluate(model)


def test_a_tree_too_large_to_be_fitted_is_refused(model):
    first_tree(model)["left_children"] = [-1] * 3000
    with pytest.raises(CalibrationError, match="2048"):
        evaluate(model)


def test_what_follows_from_the_splits_is_not_read(model):
    expected = evaluate(model)
    first_tree(model)["parents"][1] = 10**9
    first_tree(model)["categories_sizes"] = [10**9]
    first_tree(model)["tree_param"]["num_nodes"] = "1000000000"
    model["learner"]["gradient_booster"]["model"]["iteration_indptr"] = [0, 10**9]
    np.testing.assert_array_equal(evaluate(model), expected)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"reg:absoluteerror", b"reg:quantileerror", "objective"),
        (b'"gbtree"', b'"dart"', "gradient_booster.name"),
        (b'"num_class":"0"', b'"num_class":"3"', "num_class"),
        (b'"base_score":"', b'"base_score":"x', "base_score"),
    ],
)
def test_other_models_are_refused(raw, old, new, problem):
    assert old in raw
    with pytest.raises(CalibrationError, match=problem):
        packed(raw.replace(old, new)).log_ratio(ROWS)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"3", b'{"learner":{}}', b"\xff"])
def test_other_json_is_refused(content):
    with pytest.raises(CalibrationError, match="damaged"):
        packed(content).log_ratio(ROWS)


def test_the_binary_format_of_earlier_versions_names_the_command(raw):
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(bytearray(raw))
    with pytest.raises(CalibrationError, match="dse fit gemm"):
        packed(bytes(booster.save_raw("ubj"))).log_ratio(ROWS)


def used_mutations(raw: bytes, count: int) -> int:
    """Evaluates damaged copies of a model; returns how many are still models."""
    chance, used = random.Random(3), 0
    for _ in range(count):
        content = bytearray(raw)
        for _ in range(chance.choice((1, 1, 2, 3))):
            at = chance.randrange(len(content))
            if chance.random() < 0.8:
                content[at] = (
                    chance.choice(b"0123456789-.,eE[]") if at % 4 else chance.randrange(256)
                )
            else:
                del content[at : at + chance.choice((1, 4, 16))]
        try:
            packed(bytes(content)).log_ratio(ROWS[:5])
            used += 1
        except CalibrationError:
            pass
    return used


@pytest.mark.slow
def test_mutated_models_neither_crash_nor_hang(raw):
    """Runs in a process, so that a crash of native code is seen."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.machine.fits.test_tree_model import used_mutations\n"
        "print(used_mutations(sys.stdin.buffer.read(), 300))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=raw, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 < int(done.stdout) < 300
