"""Fused attention: published rates, measured terms, and what holds for both."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.machine import PeakRates, Precision
from dse.machine.fits import TermCurve
from dse.machine.kernels import (
    ATTENTION_SIZES,
    ATTENTION_TERMS,
    attention_estimate,
    attention_reference_s,
    streaming_estimate,
)
from tests.conftest import make_device
from tests.machine.kernels.calibrations import calibration

DEVICE = make_device()
SHAPE = {"batch": 2, "heads": 8, "kv_heads": 2, "queries": 4096, "keys": 4096, "dim": 128}


def measured(weights=(1.0, 0.5, 0.3, 1.0, 1.0, 3.0, 0.5, 0.1), **changes):
    """A device whose attention was measured by a library."""
    ranges = dict.fromkeys(ATTENTION_SIZES, (1, 1000000.0))
    curve = TermCurve(ATTENTION_TERMS, weights)
    learned = calibration("attention", ranges, curve=curve, precisions=(Precision.BF16,))
    device = make_device(**changes)
    return replace(device, calibrations=(replace(learned, implementation="library"),))


def seconds(device, shape=None, implementation="library", **options):
    estimate = attention_estimate(
        device, shape or SHAPE, Precision.BF16, implementation=implementation, **options
    )
    return float(estimate.time_s)


def test_published_rates_by_hand():
    # 4 · 2 · 8 · 4096 · (4096 + 128) / 2 · 128 operations at 0.75 of 200 TFLOP/s, and less for
    # exponentials: heads of 27 would reach half of it.
    flops = 4 * 2 * 8 * 4096 * 2112 * 128
    by_hand = DEVICE.kernel_floor_s + flops / (0.75 * 200e12 / (1 + 27 / 128))
    assert seconds(DEVICE, implementation="flash_attention_2", causal=True) == pytest.approx(
        by_hand
    )


@given(
    st.floats(20e12, 2e15),
    st.floats(1.0, 4.0),
    st.sampled_from(("flash_attention_2", "triton", "library", "")),
    st.booleans(),
)
@example(4.9e14, 1.1, "flash_attention_2", False)
def test_more_arithmetic_never_takes_longer(peak, factor, library, backward):
    # The second one may have the instructions of a newer generation, for which a kernel of the
    # older one was not written.
    slower, faster = (
        measured(peak=PeakRates(20e12, bf16_flops_per_s=rate)) for rate in (peak, factor * peak)
    )
    options = {"implementation": library, "causal": True, "backward": backward}
    assert seconds(faster, **options) <= seconds(slower, **options)


def test_heads_of_64_reach_what_flashattention_2_published():
    rates = []
    for dim in (64, 128):
        busy_s = seconds(DEVICE, {**SHAPE, "dim": dim}, "flash_attention_2")
        rates.append(dim / (busy_s - DEVICE.kernel_floor_s))
    assert rates[0] / rates[1] == pytest.approx(0.852, abs=0.001)


def test_measured_arithmetic_by_hand():
    # Only products: 16 heads of 64 tiles, each 64 × (4096 + 64) / 2 scores over 100 units.
    device = measured((1.0, 0, 0, 0, 0, 0, 0, 0))
    scores = 16 * 64 * 64 * 2080 / 100
    by_hand = 4 * scores * 128 / (200e12 / 100)
    assert seconds(device, causal=True) == pytest.approx(by_hand)


def test_bytes_by_hand():
    # Keys and values of 2 · 2 heads and 4096 positions, queries and outputs of 2 · 8 heads: 256
    # columns of two bytes for each.
    keys, queries = (measured(np.eye(8)[term]) for term in (4, 3))
    bandwidth = DEVICE.memory_bandwidth_bytes_per_s
    assert seconds(keys) == pytest.approx(2 * 2 * 4096 * 256 * 2 / bandwidth)
    assert seconds(queries) == pytest.approx(2 * 8 * 4096 * 256 * 2 / bandwidth)


def test_a_single_head_waits_for_its_longest_tile():
    device = measured((1.0, 0, 0, 0, 0, 0, 0, 0))
    one = {**SHAPE, "batch": 1, "heads": 1, "kv_heads": 1}
    assert seconds(device, one, causal=True) == pytest.approx(4 * 64 * 4096 * 128 / 2e12)


def test_the_named_library_serves_and_no_other():
    device = measured()
    assert seconds(device) == seconds(device, implementation="")
    published = seconds(DEVICE, implementation="triton")
    assert seconds(device, implementation="triton") == published
    plain = streaming_estimate(DEVICE, "attention", SHAPE, Precision.BF16).time_s
    assert seconds(DEVICE, implementation="") == float(plain)


@pytest.mark.parametrize("library", ["flash_attention_2", "triton"])
def test_on_newer_devices_no_library_is_faster_than_the_one_measured_there(library):
    slow, peak = tuple([20.0] * len(ATTENTION_TERMS)), PeakRates(20e12, 1e15, 2e15, 2e15)
    newer, older = measured(slow, peak=peak), measured(slow)
    assert seconds(newer, implementation=library) == seconds(newer)
    # Published rates are those of a device as old as this one.
    assert seconds(older, implementation=library) < seconds(older)
    quick = measured(peak=peak)
    assert seconds(quick, implementation=library) > seconds(quick)


def test_backward_takes_five_products_for_two_at_a_lower_rate():
    device = measured()
    assert seconds(device, backward=True) == pytest.approx(2.5 / 0.87 * seconds(device))


def test_the_spread_grows_outside_the_measured_range():
    device = measured()
    (learned,) = device.calibrations
    short = [replace(size, high=1024.0) for size in learned.sizes]
    outside = replace(device, calibrations=(replace(learned, sizes=tuple(short)),))
    inside = attention_estimate(device, SHAPE, Precision.BF16)
    beyond = attention_estimate(outside, SHAPE, Precision.BF16)
    assert beyond.spread > inside.spread
    # The terms are physics: beyond the range they go on as inside.
    assert beyond.time_s == inside.time_s


def test_shapes_broadcast_and_nothing_takes_no_time():
    shape = {**SHAPE, "batch": np.array([[0], [1]]), "queries": np.array([0, 64, 128])}
    for device in (DEVICE, measured()):
        estimate = attention_estimate(device, shape, Precision.BF16)
        assert estimate.time_s.shape == estimate.spread.shape == (2, 3)
        assert ((estimate.time_s > 0) == [[False, False, False], [False, True, True]]).all()


def test_windows_by_hand():
    # The first 1,024 of 4,096 queries see less than the window; blocks at both of its ends count
    # in full.
    seen = 1024 * (1 - 1024 / 8192) + 128
    full = seconds(DEVICE, implementation="flash_attention_2", causal=True)
    windowed = seconds(
        DEVICE, {**SHAPE, "window": 1024}, implementation="flash_attention_2", causal=True
    )
    floor_s = DEVICE.kernel_floor_s
    assert windowed - floor_s == pytest.approx((full - floor_s) * seen / 2112)


def test_narrow_values_by_hand():
    # Heads of 192 with values of 128 are worth heads of 160; backward 3 · 192 + 2 · 128 columns
    # instead of 192 + 128.
    wide, narrow = {**SHAPE, "dim": 160}, {**SHAPE, "dim": 192, "value_dim": 128}
    device = measured()
    for where, library in ((DEVICE, "flash_attention_2"), (device, "library")):
        assert seconds(where, narrow, library) == pytest.approx(seconds(where, wide, library))
    backward = seconds(device, narrow, backward=True)
    assert backward == pytest.approx(832 / 320 / 0.87 * seconds(device, narrow))


@given(st.integers(1, 80), st.integers(1, 64), st.sampled_from(("", "flash_attention_2")))
def test_longer_windows_never_take_less_time(window, length, library):
    shape = {**SHAPE, "queries": 64 * length, "keys": 64 * length}
    device = measured()
    shorter, longer, all_keys = (
        seconds(device, {**shape, "window": 64 * blocks}, library, causal=True)
        for blocks in (window, window + 1, length)
    )
    assert shorter <= longer <= all_keys * (1 + 1e-12)
    assert all_keys == seconds(device, shape, library, causal=True)


lengths = st.integers(1, 64).map(lambda blocks: 64 * blocks)


@given(st.integers(1, 8), st.integers(1, 64), lengths, lengths, st.sampled_from((64, 128)))
def test_laws(batch, heads, queries, keys, dim):
    shape = dict(zip(ATTENTION_SIZES, (batch, heads, heads, queries, keys, dim), strict=True))
    device = measured()
    quick = measured(
        peak=PeakRates(20e12, 100e12, 400e12, 400e12), memory_bandwidth_bytes_per_s=4e12
    )
    for causal in (False, True):
        time_s = seconds(device, shape, causal=causal)
        assert time_s > 0
        assert seconds(quick, shape, causal=causal) <= time_s
        assert seconds(device, {**shape, "keys": 2 * keys}, causal=causal) >= time_s
        assert seconds(device, {**shape, "heads": 2 * heads}, causal=causal) >= time_s
    assert seconds(device, shape, causal=True) <= seconds(device, shape)
    reference = attention_reference_s(device, shape, Precision.BF16, causal=True)
    assert float(reference) >= device.kernel_floor_s
