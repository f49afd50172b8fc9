from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.machine import PeakRates, Precision
from dse.machine.kernels import gemm_estimate
from dse.machine.platforms import load_platform
from tests.conftest import make_device

DEVICE = make_device()
sizes = st.integers(1, 20_000)


def test_large_single_precision_products_reach_published_shares_of_the_peak():
    device = replace(load_platform("v100_dgx1").device, calibrations=())
    for size in (4096, 8192, 16384):
        seconds = float(gemm_estimate(device, size, size, size, Precision.FP32).time_s)
        assert 0.88 < 2 * size**3 / seconds / 15.7e12 < 0.93


#: TFLOP/s of square FP32 products, as the platforms' files cite them.
PUBLISHED_FP32 = {
    "h100_sxm": {2048: 49.58, 4096: 51.88, 8192: 51.81, 10240: 49.61},
    "h100_pcie": {2048: 33.41, 4096: 37.22, 8192: 37.77, 10240: 36.60},
    "h20": {4096: 30.27, 8192: 31.99, 10240: 31.94},
    "v100_dgx1": {4096: 13.85, 8192: 14.38, 10240: 14.51},
}


@pytest.mark.parametrize("platform", PUBLISHED_FP32)
def test_single_precision_is_as_fast_as_published(platform):
    device = load_platform(platform).device
    for size, published in PUBLISHED_FP32[platform].items():
        seconds = float(gemm_estimate(device, size, size, size, Precision.FP32).time_s)
        assert 2e-12 * size**3 / seconds == pytest.approx(published, rel=0.11)


def test_a_stated_share_slows_ordinary_arithmetic_only():
    half = replace(DEVICE, fp32_products_share=0.46)
    shape = (1280, 1280, 4096)
    by_hand = 2 * 128 * 128 * (4096 + 12) / (0.46 * 0.2e12)
    assert gemm_estimate(half, *shape, Precision.FP32).time_s == pytest.approx(
        DEVICE.kernel_floor_s + by_hand
    )
    assert (
        gemm_estimate(half, *shape, Precision.FP16).time_s
        == gemm_estimate(DEVICE, *shape, Precision.FP16).time_s
    )


def test_one_wave_of_tiles_by_hand():
    # 100 units, 100 tiles of 128 × 128 at 0.92 of 0.2 TFLOP/s; 12 steps of prologue.
    seconds = gemm_estimate(DEVICE, 1280, 1280, 4096, Precision.FP32).time_s
    by_hand = 2 * 128 * 128 * (4096 + 12) / (0.92 * 0.2e12)
    assert seconds == pytest.approx(DEVICE.kernel_floor_s + by_hand)


def test_tensor_cores_keep_their_tiles():
    # The same wave at 0.75 of 2 TFLOP/s with 96 steps, too short to be split.
    seconds = gemm_estimate(DEVICE, 1280, 1280, 400, Precision.FP16).time_s
    by_hand = 2 * 128 * 128 * (400 + 96) / (0.75 * 2e12)
    assert seconds == pytest.approx(DEVICE.kernel_floor_s + by_hand)


def test_products_with_block_scales_keep_a_long_contraction_in_one_tile():
    # One tile of 64 x 64 on one of the H100's 132 units, which 8-bit products of another kind cut
    # into 32 parts.
    device = replace(load_platform("h100_sxm").device, calibrations=())
    seconds = gemm_estimate(device, 64, 64, 65536, Precision.FP8_BLOCK).time_s
    unit_flops_per_s = 0.50 * device.peak.of(Precision.FP8_BLOCK) / device.compute_units
    by_hand = 2 * 64 * 64 * (65536 + 96) / unit_flops_per_s
    assert seconds == pytest.approx(device.kernel_floor_s + by_hand)
    assert gemm_estimate(device, 64, 64, 65536, Precision.FP8).time_s < 0.2 * seconds


def test_a_precision_without_tensor_cores_is_ordinary_arithmetic():
    device = make_device(peak=PeakRates(20e12))
    single = gemm_estimate(device, 1280, 1280, 4096, Precision.FP32).time_s
    assert gemm_estimate(device, 1280, 1280, 4096, Precision.TF32).time_s == single


def test_what_a_device_does_not_sustain_costs_arithmetic_only():
    # One wave of tiles at half the rate: launching takes as long as before.
    found = gemm_estimate(DEVICE, 1280, 1280, 4096, Precision.FP32, sustained=0.5).time_s
    by_hand = 2 * 128 * 128 * (4096 + 12) / (0.5 * 0.92 * 0.2e12)
    assert found == pytest.approx(DEVICE.kernel_floor_s + by_hand)
    # Products that only move bytes.
    slow = make_device(memory_bandwidth_bytes_per_s=2e11)
    for device in (slow, load_platform("h100_sxm").device):
        narrow = (device, 8, 16384, 16384, Precision.BF16)
        assert gemm_estimate(*narrow, sustained=0.8).time_s == gemm_estimate(*narrow).time_s


@given(sizes, sizes, sizes)
def test_no_single_precision_product_beats_the_roofline(m, n, k):
    seconds = float(gemm_estimate(DEVICE, m, n, k, Precision.FP32).time_s)
    assert seconds >= max(2 * m * n * k / 20e12, 4 * (m * k + k * n + m * n) / 2e12)


def test_small_tiles_serve_batches_of_small_products():
    # 27 × 27 outputs fill a 32 × 32 tile better than one of 64 × 64.
    seconds = float(gemm_estimate(DEVICE, 27, 27, 128, Precision.FP32, 4000).time_s)
    by_hand = 40 * 2 * 32 * 32 * (128 + 12) / (0.6 * 0.2e12)
    assert seconds == pytest.approx(DEVICE.kernel_floor_s + by_hand)
