"""Attention over jagged sequences."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.machine import PeakRates, Precision
from dse.machine.kernels import sequence_attention_estimate
from dse.machine.platforms import load_platform
from tests.conftest import make_device


def seconds(device=None, backward=0, **changes):
    sizes = {
        "sequences": 32,
        "positions": 4096,
        "squared_positions": 4096.0**2,
        "heads": 4,
        "dim": 128,
        "value_dim": 128,
        "causal": 1,
        "backward": backward,
    }
    estimate = sequence_attention_estimate(
        device or make_device(), sizes | changes, Precision.BF16
    )
    return float(estimate.time_s)


def test_the_published_kernel_is_met():
    device = load_platform("h100_sxm").cluster(8).device
    sizes = {"positions": 4099, "squared_positions": 4099.0**2, "dim": 256, "value_dim": 256}
    # 15.718 and 65.55 ms for eight layers.
    assert 8e3 * seconds(device, **sizes) == pytest.approx(15.718, rel=0.01)
    assert 8e3 * seconds(device, backward=1, **sizes) == pytest.approx(65.55, rel=0.01)


@given(st.floats(20e12, 2e15), st.floats(1.0, 4.0), st.integers(0, 1))
@example(4.9e14, 1.1, 1)
def test_more_arithmetic_never_takes_longer(peak, factor, backward):
    slower, faster = (
        make_device(peak=PeakRates(20e12, bf16_flops_per_s=rate)) for rate in (peak, factor * peak)
    )
    assert seconds(faster, backward) <= seconds(slower, backward)


def test_twice_the_length_takes_nearly_four_times_as_long():
    device = make_device(kernel_floor_s=0.0)
    double = seconds(device, positions=8192, squared_positions=8192.0**2)
    # Blocks on the diagonal, 128 positions, grow with the length only.
    assert double / seconds(device) == pytest.approx(
        4 * (8192 + 128) / 8192 / (1 + 1 / 32), rel=1e-9
    )
    assert double < 4 * seconds(device)


def test_a_position_that_sees_all_others_has_twice_the_work():
    device = make_device()
    long = {"positions": 2.0**17, "squared_positions": 2.0**34}
    both = seconds(device, causal=0, **long) / seconds(device, **long)
    assert both == pytest.approx(2.0, rel=2e-3)


def test_nothing_takes_no_time():
    assert seconds(sequences=0) == seconds(positions=0, squared_positions=0) == 0.0


@given(st.lists(st.integers(1, 5000), min_size=2, max_size=40))
def test_uneven_lengths_never_take_less(lengths):
    lengths = np.array(lengths, float)
    mean = float(lengths.mean())
    even = seconds(sequences=len(lengths), positions=mean, squared_positions=mean**2)
    uneven = seconds(
        sequences=len(lengths), positions=mean, squared_positions=float((lengths**2).mean())
    )
    assert uneven >= even * (1 - 1e-12)
    assert seconds(backward=1) > 2 * seconds()
