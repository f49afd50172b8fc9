"""Experts: grouped products, blocks of experts and the exchange of tokens."""

from __future__ import annotations

from dataclasses import replace
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.machine import Precision
from dse.machine.fits import TermCurve
from dse.machine.kernels import (
    EXCHANGE_SIZES,
    EXCHANGE_TERMS,
    EXPERT_SIZES,
    EXPERT_TERMS,
    exchange_estimate,
    experts_estimate,
    gemm_estimate,
    grouped_gemm_estimate,
    places_visited,
)
from tests.conftest import make_device
from tests.machine.kernels.calibrations import calibration

DEVICE = make_device()
BLOCK = {"tokens": 4096, "rows": 32768, "experts": 16, "hidden": 2048, "inner": 768}


def with_curve(op, names, terms, weights):
    """A device whose experts were measured."""
    ranges = dict.fromkeys(names, (1, 1e9))
    learned = calibration(op, ranges, curve=TermCurve(terms, weights), precisions=())
    return replace(DEVICE, calibrations=(learned,))


def grouped_s(device, rows, experts, precision=Precision.BF16):
    return float(grouped_gemm_estimate(device, rows, 1536, 2048, experts, precision).time_s)


def test_grouped_products_take_as_much_longer_than_one_as_was_measured():
    measured = with_curve("experts", EXPERT_SIZES, EXPERT_TERMS, (1.5, 2.0, 9.0))
    one = float(gemm_estimate(measured, 32768, 1536, 2048, Precision.BF16).time_s)
    assert grouped_s(measured, 32768, 16) == pytest.approx(1.5 * one)


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8])
def test_without_measurements_the_ratio_is_a_tenth(precision):
    one = float(gemm_estimate(DEVICE, 32768, 1536, 2048, precision).time_s)
    assert grouped_s(DEVICE, 32768, 16, precision) == pytest.approx(1.1 * one)


def test_rows_of_each_expert_are_filled_up_to_tiles():
    assert grouped_s(DEVICE, 16 * 129, 16) == grouped_s(DEVICE, 16 * 256, 16)
    assert grouped_s(DEVICE, 16 * 128, 16) < grouped_s(DEVICE, 16 * 129, 16)


def test_few_rows_take_as_long_as_reading_the_matrices():
    least_s = 2 * 128 * 1536 * 2048 / DEVICE.memory_bandwidth_bytes_per_s
    assert grouped_s(DEVICE, 128, 128) >= least_s
    assert grouped_s(DEVICE, 0, 16) == 0.0


@given(st.integers(1, 200_000), st.integers(1, 256))
def test_no_product_is_faster_than_the_arithmetic_of_its_rows(rows, experts):
    least_s = 2 * rows * 1536 * 2048 / DEVICE.peak.of(Precision.BF16)
    assert grouped_s(DEVICE, rows, experts) >= least_s


def test_a_measured_block_is_the_sum_of_its_terms():
    measured = with_curve("experts", EXPERT_SIZES, EXPERT_TERMS, (0.0, 2.0, 3.0))
    moved = 2 * (2 * (4096 + 32768) * 2048 + 3 * 32768 * 768)
    by_hand = 2 * moved / DEVICE.memory_bandwidth_bytes_per_s + 3 * DEVICE.kernel_floor_s
    found = experts_estimate(measured, BLOCK, Precision.BF16)
    assert float(found.time_s) == pytest.approx(by_hand)


def test_an_empty_block_takes_no_time():
    sizes = {name: np.array([size, 0]) for name, size in BLOCK.items()}
    first, second = experts_estimate(DEVICE, sizes, Precision.BF16).time_s
    assert first > 0 == second


def test_exchanges_are_known_where_they_were_measured():
    sizes = {"tokens": 1000, "hidden": 2048, "copies": 3.0}
    assert exchange_estimate(DEVICE, sizes) is None
    measured = with_curve("expert_exchange", EXCHANGE_SIZES, EXCHANGE_TERMS, (8.0, 20.0))
    found = exchange_estimate(measured, sizes)
    by_hand = 8 * 2 * 1000 * 2048 * 4 / DEVICE.memory_bandwidth_bytes_per_s
    assert found is not None
    assert float(found.time_s) == pytest.approx(by_hand + 20 * DEVICE.kernel_floor_s)


def test_an_exchange_on_a_device_without_limits_takes_its_launch():
    measured = with_curve("expert_exchange", EXCHANGE_SIZES, EXCHANGE_TERMS, (8.0, 20.0))
    free = replace(measured, memory_bandwidth_bytes_per_s=1e60)
    found = exchange_estimate(free, {"tokens": 1000, "hidden": 2048, "copies": 3.0})
    assert found is not None
    assert float(found.time_s) == pytest.approx(20 * DEVICE.kernel_floor_s)


def test_places_that_a_token_visits():
    # Of two experts in two places: one that it visits is in one place.
    assert places_visited(2, 1, 2) == pytest.approx(1.0)
    # Both experts of four in the same half: 2 of 6 pairs.
    assert places_visited(4, 2, 2) == pytest.approx(2 / 6 + 2 * 4 / 6)
    assert places_visited(8, 8, 4) == pytest.approx(4.0)


def test_places_of_a_token_whose_experts_are_in_some_groups():
    # All experts of one of two groups: both ranks of its node, or one rank with two groups.
    grouped = {"groups": 2, "active_groups": 1}
    assert places_visited(8, 4, 2, **grouped) == pytest.approx(1.0)
    assert places_visited(8, 4, 4, **grouped) == pytest.approx(2.0)
    assert places_visited(8, 4, 1, **grouped) == pytest.approx(1.0)
    # Two groups of four, two of them on each node: in 2 of 6 pairs both are on the same one. Else
    # two experts of four miss one of two groups in 2 of 6 pairs.
    found = places_visited(8, 2, 2, groups=4, active_groups=2)
    assert found == pytest.approx(2 / 6 * 1 + 4 / 6 * (2 - 2 / 6))
    # DeepSeek-V3 on eight nodes visits four at most, instead of 5.3.
    assert 3.5 < places_visited(256, 8, 8, groups=8, active_groups=4) < 4.0
    assert places_visited(256, 8, 8) == pytest.approx(5.29, abs=0.01)


@given(st.integers(0, 6), st.integers(1, 16), st.integers(0, 4), st.data())
def test_groups_never_lead_to_more_places(power, choices, groups, draw):
    places, groups = 2**power, 2**groups
    active = draw.draw(st.integers(min(groups, -(-choices * groups // 64)), groups))
    found = places_visited(64, choices, places, groups=groups, active_groups=active)
    assert 1.0 - 1e-9 <= found <= places_visited(64, choices, places) + 1e-9


@given(st.integers(0, 6), st.integers(1, 64))
def test_places_are_no_more_than_choices_or_places(power, choices):
    experts, places = 64, 2**power
    found = places_visited(experts, choices, places)
    assert 1.0 - 1e-9 <= found <= min(places, choices) + 1e-9
    assert math.isfinite(found)
