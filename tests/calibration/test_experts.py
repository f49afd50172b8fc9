"""Fitting blocks of experts and exchanges: weights are found again, groups are left out."""

from __future__ import annotations

import numpy as np
import pytest

from dse.calibration import FitOrigin, fit_exchange, fit_experts
from dse.calibration.measurements import (
    ColumnOptions,
    ExchangeSamples,
    ExpertSamples,
    read_exchange,
    read_experts,
)
from dse.errors import CalibrationError
from dse.machine import Precision
from dse.machine.kernels import exchange_reference_s, expert_features, expert_reference_s
from tests.conftest import make_device

DEVICE = make_device()
ORIGIN = FitOrigin("test", "device", "made up", "unknown", "library")


def blocks(pairs=((1024, 512), (2048, 768), (4096, 1536)), weights=(1.3, 2.0, 12.0)):
    tokens = np.tile(1024.0 * 2.0 ** np.arange(8), len(pairs))
    hidden, inner = (np.repeat(np.array(sizes), 8) for sizes in zip(*pairs, strict=True))
    sizes = {
        "tokens": tokens,
        "rows": 4.0 * tokens,
        "experts": np.full(len(tokens), 8.0),
        "hidden": hidden,
        "inner": inner.astype(float),
    }
    ratio = np.exp(expert_features(DEVICE, sizes, Precision.BF16)) @ np.array(weights)
    time_s = expert_reference_s(DEVICE, sizes, Precision.BF16) * ratio
    return ExpertSamples(**sizes, time_s=time_s, source_rows=np.arange(len(tokens)))


def test_weights_of_a_block_are_found_again():
    found = fit_experts(DEVICE, blocks(), ORIGIN)
    assert found.op == "experts"
    assert found.curve.weights == pytest.approx((1.3, 2.0, 12.0), rel=1e-3)
    assert found.held_out.points == 24
    assert found.held_out.mape < 0.01
    assert found.implementation == "library"


def test_too_few_widths_are_refused():
    with pytest.raises(CalibrationError):
        fit_experts(DEVICE, blocks(pairs=((1024, 512), (2048, 768))), ORIGIN)


def test_weights_of_an_exchange_are_found_again():
    tokens = np.tile(1024 * 2 ** np.arange(8), 3)
    sizes = {
        "tokens": tokens,
        "hidden": np.repeat(np.array([1024, 2048, 4096]), 8),
        "copies": np.tile(np.array([1.0, 3.0, 4.0, 5.0]), 6),
    }
    floor_s = DEVICE.kernel_floor_s
    time_s = 9.0 * (exchange_reference_s(DEVICE, sizes) - floor_s) + 20.0 * floor_s
    samples = ExchangeSamples(
        **sizes, ranks=np.full(24, 8), time_s=time_s, source_rows=np.arange(24)
    )
    found = fit_exchange(DEVICE, samples, ORIGIN)
    assert found.op == "expert_exchange"
    assert found.curve.weights == pytest.approx((9.0, 20.0), rel=1e-3)


def test_rows_of_a_table_are_those_of_one_rank(tmp_path):
    path = tmp_path / "blocks.csv"
    lines = ["num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp,moe_ep,latency_us"]
    lines += [f"{1024 * n},2048,768,8,128,2,16,{100 * n}" for n in range(1, 31)]
    path.write_text("\n".join(lines))
    found = read_experts(path)
    assert found.rows[0] == 1024 * 8 / 16
    assert found.tokens[0] == 512
    assert found.experts[0] == 8
    assert found.inner[0] == 384
    assert found.time_s[0] == pytest.approx(100e-6)


def test_copies_of_a_table_are_ranks_that_tokens_visit(tmp_path):
    path = tmp_path / "exchange.csv"
    lines = ["num_token,hidden_size,num_topk,num_experts,time_us"]
    lines += [f"{1024 * n},2048,2,4,{10 * n}" for n in range(1, 31)]
    path.write_text("\n".join(lines))
    found = read_exchange(path, ColumnOptions(ranks=2))
    assert found.copies[0] == pytest.approx(2 / 6 + 2 * 4 / 6)
