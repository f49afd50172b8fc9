from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.indices import Uniform, Zipf
from dse.machine import Precision
from dse.machine.kernels import (
    EmbeddingShape,
    embedding_time_s,
    embedding_work,
    gemm_estimate,
)
from tests.conftest import make_device

DEVICE = make_device()
sizes = st.integers(1, 20_000)


def shape(**changes) -> EmbeddingShape:
    base = EmbeddingShape(
        rows=1_000_000,
        dim=64,
        value_bytes=4,
        bags=4096,
        lookups=40960,
        output_value_bytes=4,
        state_bytes_per_row=4.0,
    )
    return replace(base, **changes)


def test_large_gemm_is_near_the_tile_efficiency_of_the_peak():
    seconds = float(gemm_estimate(DEVICE, 25600, 25600, 8192, Precision.FP16).time_s)
    rate = 2 * 25600 * 25600 * 8192 / seconds
    assert 0.7 * 200e12 < rate < 0.82 * 200e12


def test_gemm_is_vectorised_and_zero_for_nothing():
    times = gemm_estimate(DEVICE, np.array([0, 128, 4096]), 256, 256, Precision.TF32).time_s
    assert times.shape == (3,)
    assert times[0] == 0
    assert times[1] < times[2]


@given(sizes, sizes, sizes)
def test_gemm_never_beats_the_roofline(m, n, k):
    seconds = float(gemm_estimate(DEVICE, m, n, k, Precision.FP16).time_s)
    roofline = max(2 * m * n * k / 200e12, 2 * (m * k + k * n + m * n) / 2e12)
    assert seconds >= roofline


@given(sizes, sizes, sizes, st.floats(1, 8))
def test_a_faster_device_is_never_slower_at_gemm(m, n, k, factor):
    peak = replace(DEVICE.peak, fp16_flops_per_s=200e12 * factor)
    more_flops = replace(DEVICE, peak=peak)
    more_bytes = replace(DEVICE, memory_bandwidth_bytes_per_s=2e12 * factor)
    base = gemm_estimate(DEVICE, m, n, k, Precision.FP16).time_s
    assert gemm_estimate(more_flops, m, n, k, Precision.FP16).time_s <= base
    assert gemm_estimate(more_bytes, m, n, k, Precision.FP16).time_s <= base


def test_lookup_bytes_by_hand_without_cache():
    device = make_device(l2_bytes=1.0)
    work = embedding_work(device, shape(bags=1000, lookups=10_000), Uniform())
    gathered = 10_000 * 256 / (0.8 * 256 / 296)
    streamed = (1000 * 96 + 10_000 * 8 + 1000 * 256) / 0.8
    assert work.forward_memory_bytes == pytest.approx(gathered + streamed, rel=1e-6)
    assert work.forward_cache_bytes == pytest.approx(0, abs=1)


def test_skewed_indices_hit_the_cache_more_often():
    uniform = embedding_work(DEVICE, shape(rows=50_000_000), Uniform())
    skewed = embedding_work(DEVICE, shape(rows=50_000_000), Zipf(1.1))
    assert skewed.forward_memory_bytes < uniform.forward_memory_bytes
    assert skewed.backward_memory_bytes < uniform.backward_memory_bytes


def test_no_lookups_no_work():
    work = embedding_work(DEVICE, shape(bags=0, lookups=0), Uniform())
    assert (work.forward_memory_bytes, work.backward_memory_bytes) == (0.0, 0.0)


@given(
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(1, 128),
    st.floats(1, 100),
    st.integers(10, 10**7),
)
def test_rows_in_fewer_bytes_are_never_slower(value_bytes, columns, pooling, rows):
    # Gradients stay in four bytes a value, and are read no less efficiently.
    sizes = {"rows": rows, "dim": 4 * columns, "bags": 1000.0, "lookups": 1000.0 * pooling}
    few, many = (
        embedding_work(DEVICE, shape(**sizes, value_bytes=each), Uniform())
        for each in (value_bytes, 4.0)
    )
    assert few.backward_memory_bytes <= many.backward_memory_bytes * (1 + 1e-9)
    assert few.backward_cache_bytes <= many.backward_cache_bytes * (1 + 1e-9)


def test_wider_optimizer_state_costs_more_in_the_update():
    narrow = embedding_work(DEVICE, shape(state_bytes_per_row=4.0), Uniform())
    wide = embedding_work(DEVICE, shape(state_bytes_per_row=512.0), Uniform())
    assert wide.backward_memory_bytes > narrow.backward_memory_bytes
    assert wide.forward_memory_bytes == narrow.forward_memory_bytes


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(1, 10))
def test_more_bandwidth_is_never_slower_for_lookups(memory, cache, factor):
    faster = replace(
        DEVICE,
        memory_bandwidth_bytes_per_s=2e12 * factor,
        l2_bandwidth_bytes_per_s=4e12 * factor,
    )
    assert embedding_time_s(faster, memory, cache) <= embedding_time_s(DEVICE, memory, cache)
