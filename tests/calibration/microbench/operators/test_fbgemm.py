"""FBGEMM that is installed but cannot be used."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dse.calibration.microbench.operators import make_kernel
from dse.machine import Precision

pytest.importorskip("torch")

BAG = {"rows": 50, "dim": 8, "batch": 6, "pooling": 3, "alpha": 0.0, "value_bytes": 4}


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """A package whose libraries do not load, as with a wheel for another torch."""
    for name in [one for one in sys.modules if one.split(".")[0] == "fbgemm_gpu"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "fbgemm_gpu"
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('libfbgemm.so: undefined symbol')")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("op", ["fbgemm_forward", "fbgemm_backward"])
def test_a_package_that_does_not_load_refuses_the_point(broken, op):
    # Sessions skip a point on this error and keep its words.
    with pytest.raises(RuntimeError, match="undefined symbol"):
        make_kernel(op, BAG, Precision.FP32, "cpu", np.random.default_rng(0))
