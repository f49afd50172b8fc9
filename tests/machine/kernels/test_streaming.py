from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.machine import Precision
from dse.machine.kernels import (
    STREAMING_OPERATORS,
    elementwise_time_s,
    gemm_estimate,
    streaming_estimate,
    streaming_reference_s,
    streaming_work,
)
from tests.conftest import make_device
from tests.machine.kernels.calibrations import calibration

DEVICE = make_device()
FLOOR = DEVICE.kernel_floor_s
ELEMENTWISE = calibration("elementwise", {"traffic_bytes": (100, 1e9)}, ratio=1.5, spread=0.08)

#: Operators whose time is one launch and a stream, whatever the sizes, on this device.
STREAMS = ("concat", "index_permute", "softmax", "layer_norm", "optimizer_step", "memcpy_d2d")


def drawn_sizes(op):
    names = STREAMING_OPERATORS[op].sizes
    return st.tuples(st.just(op), st.fixed_dictionaries(dict.fromkeys(names, st.integers(1, 300))))


sizes_of = st.sampled_from(sorted(STREAMING_OPERATORS)).flatmap(drawn_sizes)


def some_sizes(op, value=64):
    return dict.fromkeys(STREAMING_OPERATORS[op].sizes, value)


@given(sizes_of, st.integers(0, 5), st.floats(1, 50))
def test_a_larger_operator_is_never_faster(drawn, index, factor):
    op, sizes = drawn
    name = STREAMING_OPERATORS[op].sizes[index % len(sizes)]
    larger = sizes | {name: sizes[name] * factor}
    base = streaming_estimate(DEVICE, op, sizes).time_s
    assert streaming_estimate(DEVICE, op, larger).time_s >= base * (1 - 1e-12)


@given(sizes_of, st.floats(1, 20))
def test_a_faster_device_is_never_slower(drawn, factor):
    op, sizes = drawn
    base = streaming_estimate(DEVICE, op, sizes).time_s * (1 + 1e-12)
    peak = replace(DEVICE.peak, fp32_flops_per_s=20e12 * min(factor, 5))
    for faster in (
        replace(DEVICE, memory_bandwidth_bytes_per_s=2e12 * factor),
        replace(DEVICE, l2_bandwidth_bytes_per_s=4e12 * factor),
        replace(DEVICE, peak=peak),
    ):
        assert streaming_estimate(faster, op, sizes).time_s <= base


@given(st.floats(1e9, 1e13), st.floats(2, 10))
def test_large_streams_scale_with_their_bytes(count, factor):
    one, many = elementwise_time_s(DEVICE, np.array([count, count * factor])) - FLOOR
    assert many / one == pytest.approx(factor, rel=0.02)


@pytest.mark.parametrize("op", STREAMS)
def test_streams_take_the_time_of_their_bytes(op):
    sizes = some_sizes(op)
    count = streaming_work(op, sizes).traffic_bytes
    estimate = streaming_estimate(DEVICE, op, sizes)
    assert estimate.time_s == pytest.approx(float(elementwise_time_s(DEVICE, count)))
    assert estimate.spread == 0.25


@pytest.mark.parametrize("op", STREAMING_OPERATORS)
def test_nothing_takes_no_time(op):
    names = STREAMING_OPERATORS[op].sizes
    for device in (DEVICE, make_device(calibrations=(ELEMENTWISE,))):
        empty = streaming_estimate(device, op, some_sizes(op) | {names[0]: np.array([0, 8])})
        assert empty.time_s[0] == 0
        assert empty.time_s[1] > 0
        assert np.isfinite(empty.spread).all()


@pytest.mark.parametrize("op", STREAMING_OPERATORS)
def test_no_operator_exceeds_the_peak_rate_of_its_arithmetic(op):
    sizes = some_sizes(op, 2048)
    products = STREAMING_OPERATORS[op].matrix_efficiency is not None or op == "cross_layer"
    peak = DEVICE.peak.fp16_flops_per_s if products else DEVICE.peak.fp32_flops_per_s
    least_s = streaming_work(op, sizes, Precision.FP16).flops / peak
    assert streaming_estimate(DEVICE, op, sizes, Precision.FP16).time_s >= least_s


def test_attention_is_bound_by_arithmetic_or_bytes():
    long = {"batch": 8, "heads": 16, "queries": 4096, "keys": 4096, "dim": 128}
    flops = 4 * 8 * 16 * 4096 * 4096 * 128
    # 0.6 of 200 TFLOP/s in half, of 20 TFLOP/s in single precision.
    assert streaming_estimate(DEVICE, "attention", long).time_s == pytest.approx(
        FLOOR + flops / 120e12
    )
    single = streaming_estimate(DEVICE, "attention", long, Precision.FP32)
    assert single.time_s == pytest.approx(FLOOR + flops / 12e12)
    decode = long | {"queries": 1}
    count = streaming_work("attention", decode).traffic_bytes
    assert streaming_estimate(DEVICE, "attention", decode).time_s == pytest.approx(
        float(elementwise_time_s(DEVICE, count))
    )


def test_the_dot_interaction_has_two_launches_and_runs_at_the_rate_of_its_values():
    sizes = {"batch": 1e6, "vectors": 8, "dim": 128, "value_bytes": np.array([2, 4])}
    half, single = streaming_estimate(DEVICE, "interaction_dot", sizes).time_s
    count = streaming_work("interaction_dot", sizes).traffic_bytes
    assert half == pytest.approx(FLOOR + elementwise_time_s(DEVICE, count[0]))
    # 2 · 64 · 128 operations a sample: 0.4 of 20 TFLOP/s is slower than the bytes.
    wide = {**sizes, "vectors": 60, "value_bytes": 4}
    flops = 1e6 * 2 * 3600 * 128
    estimate = streaming_estimate(DEVICE, "interaction_dot", wide)
    assert estimate.time_s == pytest.approx(2 * FLOOR + flops / 8e12)
    named = streaming_estimate(DEVICE, "interaction_dot", wide, Precision.TF32)
    assert named.time_s < estimate.time_s
    assert single > half


def test_a_cross_layer_is_two_products_and_an_elementwise_kernel():
    sizes = {"batch": 4096, "width": 1024, "rank": 128}
    by_hand = (
        gemm_estimate(DEVICE, 4096, 128, 1024, Precision.BF16).time_s
        + gemm_estimate(DEVICE, 4096, 1024, 128, Precision.BF16).time_s
        + elementwise_time_s(DEVICE, 4 * 4096 * 1024 * 2)
    )
    estimate = streaming_estimate(DEVICE, "cross_layer", sizes, Precision.BF16)
    assert estimate.time_s == pytest.approx(float(by_hand))
    assert 0.2 < estimate.spread < 0.25


def test_the_own_calibration_comes_first():
    ranges = {"rows": (1, 1e5), "columns": (1, 1e4)}
    own = calibration("softmax", ranges, ratio=3.0, spread=0.04)
    device = make_device(calibrations=(ELEMENTWISE, own))
    sizes = {"rows": np.array([100, 1e4, 1e7]), "columns": 64, "value_bytes": 4}
    estimate = streaming_estimate(device, "softmax", sizes)
    expected = 3 * streaming_reference_s(DEVICE, "softmax", sizes)
    assert estimate.time_s == pytest.approx(expected)
    assert estimate.spread[:2] == pytest.approx([0.04, 0.04])
    assert estimate.spread[2] > 0.25


def test_the_reference_knows_no_calibration():
    device = make_device(calibrations=(ELEMENTWISE,))
    for op in STREAMING_OPERATORS:
        sizes = some_sizes(op)
        reference = streaming_reference_s(device, op, sizes)
        assert reference == streaming_reference_s(DEVICE, op, sizes)


@pytest.mark.parametrize("op", STREAMS)
def test_the_calibration_of_elementwise_serves_others_with_a_wider_spread(op):
    device = make_device(calibrations=(ELEMENTWISE,))
    sizes = some_sizes(op, 256)
    estimate = streaming_estimate(device, op, sizes)
    assert estimate.time_s == pytest.approx(1.5 * float(streaming_reference_s(DEVICE, op, sizes)))
    assert estimate.spread == pytest.approx(np.hypot(0.08, 0.15))
    first = STREAMING_OPERATORS[op].sizes[0]
    assert streaming_estimate(device, op, sizes | {first: 1e12}).spread > estimate.spread


def test_arithmetic_is_not_scaled_by_the_calibration_of_elementwise():
    device = make_device(calibrations=(ELEMENTWISE,))
    long = {"batch": 8, "heads": 16, "queries": 4096, "keys": 4096, "dim": 128}
    plain = streaming_estimate(DEVICE, "attention", long)
    with_elementwise = streaming_estimate(device, "attention", long)
    assert with_elementwise.time_s == plain.time_s
    assert with_elementwise.spread == 0.25


def test_the_precision_chooses_among_calibrations():
    ranges = {"batch": (1, 100), "heads": (1, 100), "queries": (1, 100)}
    single = calibration("attention", ranges, ratio=2.0, precisions=(Precision.FP32,))
    half = calibration("attention", ranges, ratio=4.0, precisions=(Precision.BF16,))
    device = make_device(calibrations=(single, half))
    sizes = some_sizes("attention")
    for precision, ratio in ((Precision.FP32, 2), (Precision.BF16, 4), (Precision.FP16, 1)):
        expected = ratio * float(streaming_reference_s(DEVICE, "attention", sizes, precision))
        estimate = streaming_estimate(device, "attention", sizes, precision)
        assert estimate.time_s == pytest.approx(expected)
    unnamed = streaming_estimate(device, "attention", sizes)
    assert unnamed.time_s == streaming_estimate(DEVICE, "attention", sizes).time_s


def test_a_calibrated_cross_layer_multiplies_its_own_reference():
    ranges = {"batch": (1, 1e5), "width": (1, 1e4), "rank": (1, 1e4)}
    own = calibration("cross_layer", ranges, ratio=1.2)
    device = make_device(calibrations=(own, ELEMENTWISE))
    sizes = {"batch": 4096, "width": 1024, "rank": 128}
    expected = 1.2 * float(streaming_reference_s(DEVICE, "cross_layer", sizes))
    assert streaming_estimate(device, "cross_layer", sizes).time_s == pytest.approx(expected)
