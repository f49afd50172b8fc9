"""Models of trees from files of others: read strictly, checked before XGBoost sees them."""

from __future__ import annotations

import base64
import lzma
import subprocess
import sys

import numpy as np
import pytest

from dse.errors import CalibrationError
from dse.machine.fits import TreeCurve
from dse.machine.fits._tree_check import check_trees
from dse.machine.fits._trees import fit_tree_curve
from dse.machine.fits._ubjson import read_ubjson
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


def packed(content: bytes) -> TreeCurve:
    return TreeCurve(NAMES, base64.b64encode(lzma.compress(content, preset=0)).decode())


def patched(raw: bytes, key: str, index: int, number: int) -> bytes:
    """Changes one number of the first array of 32-bit numbers under a key."""
    head = key.encode() + b"[$l#L"
    at = raw.index(head) + len(head) + 8 + 4 * index
    return raw[:at] + number.to_bytes(4, "big", signed=True) + raw[at + 4 :]


def test_what_was_fitted_passes(curve, raw):
    check_trees(raw, 3)
    assert np.isfinite(curve.log_ratio(ROWS)).all()


@pytest.mark.parametrize(
    ("key", "index", "number", "problem"),
    [
        ("left_children", 0, 10**6, "a child is lost"),
        ("left_children", 0, 0, "a child is lost"),
        ("left_children", 1, 0, "a child is lost"),
        ("left_children", 0, -1, "a node has one child"),
        ("left_children", 0, 2, "the same child"),
        ("right_children", 0, -7, "a child is lost"),
        ("split_indices", 0, 3, "beyond the last"),
        ("split_indices", 0, -1, "beyond the last"),
        ("parents", 1, 5, "a parent is not one"),
        ("parents", 0, 1, "the root has a parent"),
    ],
)
def test_trees_that_lead_nowhere(raw, key, index, number, problem):
    with pytest.raises(ValueError, match=problem):
        check_trees(patched(raw, key, index, number), 3)
    with pytest.raises(CalibrationError, match=problem):
        packed(patched(raw, key, index, number)).log_ratio(ROWS)


def test_other_models_are_refused(raw):
    for old, new, problem in (
        (b"reg:absoluteerror", b"reg:quantile_error"[:17], "objective"),
        (b"gbtree", b"dart__", "not made of trees"),
    ):
        assert old in raw
        with pytest.raises(ValueError, match=problem):
            check_trees(raw.replace(old, new), 3)
    with pytest.raises(ValueError, match="names 4 features but its model has 3"):
        check_trees(raw, 4)


def ubjson_word(text: str) -> bytes:
    return b"U" + bytes((len(text),)) + text.encode()


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"T", True),
        (b"U\xff", 255),
        (b"i\xff", -1),
        (b"l\0\0\1\0", 256),
        (b"d\x3f\x80\0\0", 1.0),
        (b"SU\1a", "a"),
        (b"[U\1U\2]", [1, 2]),
        (b"[#U\1T", [True]),
        (b"{" + ubjson_word("k") + b"F}", {"k": False}),
    ],
)
def test_ubjson(content, value):
    assert read_ubjson(content) == value


def test_ubjson_arrays():
    array = read_ubjson(b"[$I#U\2\0\1\1\0")
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [1, 256]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"Z",
        b"TT",
        b"SU\5ab",
        b"Si\xffab",
        b"Sd\x3f\x80\0\0a",
        b"[$U#L" + b"\x7f" * 8,
        b"[#L" + b"\x7f" * 8,
        b"[$S#U\1",
        b"[" * 100,
        b"[T",
        b"{U\1aT",
        b"{U\1aTU\1aF}",
        b"SU\1\xff",
    ],
)
def test_ubjson_that_is_refused(content):
    with pytest.raises(ValueError, match=r"\w"):
        read_ubjson(content)


#: Runs apart, so that a crash of native code is seen.
MUTATIONS = """
import random, sys
sys.path.insert(0, {root!r})
from dse.errors import CalibrationError
from tests.machine.fits.test_tree_check import ROWS, packed
raw, chance = bytes.fromhex(sys.stdin.read()), random.Random(3)
used = 0
for _ in range(150):
    content = bytearray(raw)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(content))
        if chance.random() < 0.8:
            content[at] = chance.randrange(256)
        else:
            del content[at : at + chance.choice((1, 4, 16))]
    try:
        packed(bytes(content)).log_ratio(ROWS[:5])
        used += 1
    except CalibrationError:
        pass
print(used)
"""


def test_mutated_models_neither_crash_nor_hang(raw):
    done = subprocess.run(
        [sys.executable, "-c", MUTATIONS.format(root=str(ROOT))],
        input=raw.hex(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 < int(done.stdout) < 150
