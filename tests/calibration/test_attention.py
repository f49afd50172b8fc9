"""Fitting attention on measurements that were made up by a known law."""

from __future__ import annotations

import numpy as np
import pytest

from dse.calibration import FitOrigin, fit_attention
from dse.calibration.measurements import AttentionSamples
from dse.errors import CalibrationError
from dse.machine import Precision
from dse.machine.fits import TermCurve
from dse.machine.kernels import (
    ATTENTION_SIZES,
    ATTENTION_TERMS,
    attention_features,
    attention_reference_s,
)
from dse.machine.platforms import CalibrationFile, read_calibrations, write_calibrations
from tests.conftest import make_device

DEVICE = make_device()
ORIGIN = FitOrigin("made_up", "made-up device", "a law", "2026-01", "library")
WEIGHTS = (1.2, 0.8, 0.3, 1.0, 2.0, 4.0, 0.5, 0.2)


def samples(heads=(1, 4, 8, 32), *, scale=1.0):
    grid = np.meshgrid([1, 4, 32], heads, [512, 2048, 8192], [64, 128], indexing="ij")
    batch, count, length, dim = (axis.ravel() for axis in grid)
    sizes = dict(
        zip(ATTENTION_SIZES, (batch, count, (count + 3) // 4, length, length, dim), strict=True)
    )
    law = TermCurve(ATTENTION_TERMS, WEIGHTS)
    asked = {name: size.astype(float) for name, size in sizes.items()}
    ratio = np.exp(law.log_ratio(attention_features(DEVICE, asked, Precision.BF16, causal=True)))
    reference_s = attention_reference_s(DEVICE, asked, Precision.BF16, causal=True)
    rows = np.arange(len(batch)) + 1
    return AttentionSamples(**sizes, time_s=scale * ratio * reference_s, source_rows=rows)


def test_the_law_is_found_and_written(tmp_path):
    given = samples()
    fit = fit_attention(DEVICE, given, Precision.BF16, ORIGIN)
    assert fit.curve.weights == pytest.approx(WEIGHTS, rel=1e-3)
    assert fit.held_out.mape < 1e-3
    # Two of eight triples of heads, each with three batches and three lengths.
    assert fit.held_out.points == 18
    assert fit.provenance.points == len(given) == 72
    write_calibrations(tmp_path / "made_up.json", CalibrationFile(kernels=(fit,)))
    (read,) = read_calibrations(tmp_path / "made_up.json").kernels
    assert read.implementation == "library"
    assert read.curve.weights == pytest.approx(WEIGHTS, rel=1e-3)
    assert [size.name for size in read.sizes] == list(ATTENTION_SIZES)


def test_few_heads_and_wrong_units_are_refused():
    with pytest.raises(CalibrationError, match=r"2 different \(heads, kv_heads, dim\)"):
        fit_attention(DEVICE, samples((8,)), Precision.BF16, ORIGIN)
    with pytest.raises(CalibrationError):
        fit_attention(DEVICE, samples(scale=1e6), Precision.BF16, ORIGIN)
