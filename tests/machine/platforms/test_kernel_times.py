from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from dse.errors import ConfigError, UnknownNameError
from dse.machine import Precision
from dse.machine.kernels import STREAMING_OPERATORS, gemm_estimate, streaming_estimate
from dse.machine.platforms import _kernel_times, load_platform

#: Sizes of every operator of the contract.
SHAPES = {
    "gemm": {"m": 128, "n": 256, "k": 512},
    "embedding_forward": {"rows": 10**6, "dim": 128, "batch": 4096, "pooling": 10},
    "embedding_backward": {"rows": 10**6, "dim": 128, "batch": 4096, "pooling": 10},
    "elementwise": {"traffic_bytes": 10**6},
    "concat": {"rows": 4096, "columns": 512, "value_bytes": 2},
    "index_permute": {"values": 10**5},
    "interaction_dot": {"batch": 4096, "vectors": 27, "dim": 128, "value_bytes": 2},
    "cross_layer": {"batch": 4096, "width": 3456, "rank": 512},
    "layer_norm": {"rows": 4096, "columns": 1024, "value_bytes": 2},
    "softmax": {"rows": 4096, "columns": 1024, "value_bytes": 2},
    "attention": {"batch": 4, "heads": 16, "queries": 512, "keys": 512, "dim": 64},
    "gelu": {"traffic_bytes": 10**6},
    "gelu_backward": {"traffic_bytes": 10**6},
    "silu": {"traffic_bytes": 10**6},
    "silu_backward": {"traffic_bytes": 10**6},
    "layer_norm_backward": {"rows": 4096, "columns": 1024, "value_bytes": 2},
    "rms_norm": {"rows": 4096, "columns": 1024, "value_bytes": 2},
    "rms_norm_backward": {"rows": 4096, "columns": 1024, "value_bytes": 2},
    "cross_entropy": {"rows": 4096, "columns": 32000, "value_bytes": 2},
    "cross_entropy_backward": {"rows": 4096, "columns": 32000, "value_bytes": 2},
    "causal_attention": {"heads": 64, "tokens": 512, "dim": 64},
    "causal_attention_backward": {"heads": 64, "tokens": 512, "dim": 64},
    "optimizer_step": {"parameters": 10**7, "state_values": 2},
    "memcpy_h2d": {"size_bytes": 10**7},
    "memcpy_d2h": {"size_bytes": 10**7},
    "memcpy_d2d": {"size_bytes": 10**7},
}


@pytest.fixture(scope="module")
def platform():
    return load_platform("a100_sxm_80")


@pytest.mark.parametrize("op", SHAPES)
def test_every_operator_has_a_time_and_a_spread(platform, op):
    shape = SHAPES[op]
    first = next(iter(shape))
    shape = shape | {first: np.array([shape[first], 4 * shape[first]])}
    estimate = platform.kernel_estimate(op, **shape)
    assert estimate.time_s.shape == estimate.spread.shape == (2,)
    assert 1e-6 < estimate.time_s[0] <= estimate.time_s[1] < 0.1
    assert np.all((estimate.spread > 0) & (estimate.spread < 1))
    assert platform.kernel_time(op, **shape) == pytest.approx(estimate.time_s)


def test_the_registry_reaches_every_streaming_operator(platform):
    assert set(STREAMING_OPERATORS) <= set(SHAPES)
    for op in STREAMING_OPERATORS.keys() - {"attention"}:
        expected = streaming_estimate(platform.device, op, SHAPES[op]).time_s
        assert platform.kernel_time(op, **SHAPES[op]) == expected


def test_products_take_a_batch_and_a_precision(platform):
    device, shape = platform.device, SHAPES["gemm"]
    assert (
        platform.kernel_time("gemm", **shape)
        == gemm_estimate(device, 128, 256, 512, Precision.FP16).time_s
    )
    batched = platform.kernel_time("gemm", **shape, batch=[1, 64], precision="tf32")
    assert batched == pytest.approx(
        gemm_estimate(device, 128, 256, 512, Precision.TF32, [1, 64]).time_s
    )
    long = {"batch": 8, "heads": 16, "queries": 4096, "keys": 4096, "dim": 64}
    half = platform.kernel_time("attention", **long)
    assert platform.kernel_time("attention", **long, precision=Precision.FP32) > half


def test_skewed_indices_are_served_by_the_cache(platform):
    shape = {"rows": 5 * 10**7, "dim": 128, "batch": 65536, "pooling": 10}
    times = platform.kernel_time("embedding_forward", **shape, alpha=np.array([0, 0.9, 1.2]))
    assert times[0] > times[1] > times[2]
    assert times[0] == platform.kernel_time("embedding_forward", **shape)


def test_equal_shapes_are_computed_once(platform, monkeypatch):
    count = 1000
    computed = Mock(wraps=_kernel_times.embedding_work)
    monkeypatch.setattr(_kernel_times, "embedding_work", computed)
    shape = {"rows": 10**6, "dim": np.tile([64, 128], count // 2), "batch": 4096, "pooling": 10}
    times = platform.kernel_time("embedding_backward", **shape, alpha=1.0)
    assert computed.call_count == 2
    assert times.shape == (count,)
    assert len(set(times[::2])) == len(set(times[1::2])) == 1
    assert times[0] < times[1]


def test_mixed_shapes_keep_their_places(platform):
    batches = np.array([[4096, 16], [16, 65536]])
    times = platform.kernel_time("embedding_forward", rows=1000, dim=64, batch=batches, pooling=2)
    single = [
        float(platform.kernel_time("embedding_forward", rows=1000, dim=64, batch=b, pooling=2))
        for b in batches.ravel()
    ]
    assert times == pytest.approx(np.array(single).reshape(2, 2))


@pytest.mark.parametrize(
    ("op", "shape", "error", "message"),
    [
        ("conv", {"m": 1}, UnknownNameError, "unknown operator `conv`; "),
        ("layernorm", {"rows": 1}, UnknownNameError, "did you mean `layer_norm`"),
        ("gemm", {"m": 1, "n": 1}, ConfigError, "lacks `k`; it takes m, n, k, batch, precision"),
        ("softmax", {"rows": 1, "columns": 1}, ConfigError, "lacks `value_bytes`"),
        ("memcpy_d2h", {"size_bytes": 1, "q": 2}, ConfigError, "does not take `q`"),
        ("softmax", {**SHAPES["softmax"], "precision": "fp16"}, ConfigError, "`precision`"),
        ("gemm", {"m": 1, "n": -1, "k": 1}, ConfigError, "`n` of `gemm` is -1; it must be 0"),
        ("elementwise", {"traffic_bytes": [1, np.nan]}, ConfigError, "is nan"),
        ("gemm", {**SHAPES["gemm"], "precision": "bf61"}, ConfigError, "did you mean `bf16`"),
    ],
)
def test_mistakes_are_explained(platform, op, shape, error, message):
    with pytest.raises(error, match=message):
        platform.kernel_time(op, **shape)


def test_attention_takes_a_mask_a_direction_and_a_library():
    h100 = load_platform("h100_sxm")
    shape = {"batch": 1, "heads": 32, "kv_heads": 8, "queries": 8192, "keys": 8192, "dim": 128}
    shape["precision"] = "bf16"
    causal = h100.kernel_time("attention", **shape, causal=True)
    assert h100.kernel_time("attention", **shape) > causal
    assert h100.kernel_time("attention", **shape, causal=True, backward=True) > 2 * causal
    older = h100.kernel_time("attention", **shape, causal=True, implementation="flash_attention_2")
    assert older > 1.4 * causal
    with pytest.raises(UnknownNameError, match="flash_attention_3"):
        h100.kernel_time("attention", **shape, implementation="flash_attention_4")


def test_fewer_bits_multiply_faster_on_devices_that_have_them():
    pytest.importorskip("xgboost")
    square = {"m": 8192, "n": 8192, "k": 8192}
    for name, precisions in (
        ("h100_sxm", ("bf16", "fp8")),
        ("b200_sxm", ("bf16", "fp8", "nvfp4")),
        ("gb200_nvl72", ("bf16", "mxfp8", "nvfp4")),
    ):
        platform = load_platform(name)
        times = [
            float(platform.kernel_time("gemm", **square, precision=precision))
            for precision in precisions
        ]
        assert times == sorted(times, reverse=True)
