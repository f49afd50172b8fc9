"""Fitting GEMM on measurements that were made up by a known law."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dse.calibration import FitOrigin, _gemm, fit_gemm, split_gemm
from dse.calibration.measurements import GemmSamples
from dse.errors import CalibrationError
from dse.machine import Precision
from dse.machine.fits import fit_tree_curve
from dse.machine.kernels import gemm_reference_s
from tests.conftest import make_device

DEVICE = make_device()
ORIGIN = FitOrigin("made_up", "made-up device", "a law", "2026-01")


def samples(widths: int, *, scale: float = 1.0, precision: str = "fp16") -> GemmSamples:
    """Times half as fast again as the roofline, with steps of a quarter in n."""
    sides = np.unique(np.geomspace(32, 8192, widths).astype(int))
    m, n, k = (
        axis.ravel() for axis in np.meshgrid([16, 128, 1024, 8192], sides, sides, indexing="ij")
    )
    reference_s = gemm_reference_s(
        DEVICE, m.astype(float), n.astype(float), k.astype(float), Precision.FP16
    )
    step = np.where(n % 64 == 0, 1.0, 1.25)
    return GemmSamples(
        m=m,
        n=n,
        k=k,
        precision=np.full(len(m), precision),
        time_s=scale * 1.5 * step * reference_s,
        source_rows=np.arange(len(m)) + 1,
    )


def test_a_quarter_of_the_pairs_is_held_out_with_all_their_m():
    split = split_gemm(DEVICE, samples(20), Precision.FP16)
    pairs = np.stack([split.sizes["n"], split.sizes["k"]], axis=1)
    unseen = {tuple(pair) for pair in pairs[split.held_out]}
    seen = {tuple(pair) for pair in pairs[~split.held_out]}
    assert not unseen & seen
    assert len(unseen) == (len(unseen) + len(seen)) // 4


def test_the_split_does_not_depend_on_the_order_of_rows():
    given = samples(10)
    order = np.random.default_rng(0).permutation(len(given))
    straight = split_gemm(DEVICE, given, Precision.FP16).held_out
    shuffled = split_gemm(DEVICE, given.select(order), Precision.FP16).held_out
    np.testing.assert_array_equal(straight[order], shuffled)


@pytest.mark.parametrize("widths", [8, 19])
def test_the_law_is_learned_by_either_kind_of_curve(widths, monkeypatch):
    """8 widths give 256 points for the smooth curve, 19 give 1,444 for the trees."""
    # Fewer trees than usual, to save time.
    monkeypatch.setattr(_gemm, "fit_tree_curve", partial(fit_tree_curve, rounds=150))
    (fitted,) = fit_gemm(DEVICE, samples(widths), ORIGIN)
    assert fitted.precisions == ("fp16",)
    assert fitted.held_out.mape < 0.15
    assert fitted.spread < 0.2
    assert fitted.provenance.points == 4 * widths**2
    assert {size.name: (size.low, size.high) for size in fitted.sizes}["m"] == (16, 8192)


def test_milliseconds_taken_for_seconds_are_refused():
    with pytest.raises(CalibrationError, match="unit"):
        fit_gemm(DEVICE, samples(8, scale=1000.0), ORIGIN)


def test_a_precision_that_dse_does_not_know_is_refused():
    with pytest.raises(CalibrationError, match="the precisions of dse are fp32, tf32, fp16"):
        fit_gemm(DEVICE, samples(8, precision="int8"), ORIGIN)


def test_square_products_are_fitted():
    side = np.unique(np.geomspace(32, 8192, 40).astype(int))
    axis = side.astype(float)
    reference_s = gemm_reference_s(DEVICE, axis, axis, axis, Precision.FP16)
    squares = GemmSamples(
        m=side,
        n=side,
        k=side,
        precision=np.full(len(side), "fp16"),
        time_s=1.5 * reference_s,
        source_rows=np.arange(len(side)) + 1,
    )
    (fitted,) = fit_gemm(DEVICE, squares, ORIGIN)
    assert fitted.held_out.mape < 0.05
    assert fitted.held_out.points == len(side) // 4


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_few_pairs_are_refused_before_any_fit(pairs):
    given = samples(8)
    kept = given.select((given.n == given.n[0]) & (given.k <= np.unique(given.k)[pairs - 1]))
    many = replace(kept, m=np.tile(kept.m, 10), n=np.tile(kept.n, 10), k=np.tile(kept.k, 10))
    many = replace(
        many,
        precision=np.tile(kept.precision, 10),
        time_s=np.tile(kept.time_s, 10),
        source_rows=np.arange(len(many.m)) + 1,
    )
    message = rf"fp16: {pairs} different \(n, k\), at least 4 are needed"
    with pytest.raises(CalibrationError, match=message):
        fit_gemm(DEVICE, many, ORIGIN)


def test_four_pairs_leave_one_out():
    given = samples(8)
    kept = given.select((given.n == given.n[0]) & (given.k <= np.unique(given.k)[3]))
    split = split_gemm(DEVICE, kept, Precision.FP16)
    assert split.held_out.sum() == len(kept) // 4
