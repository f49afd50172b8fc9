"""Bytes and peak rates of precisions."""

from __future__ import annotations

import pytest

from dse.machine import PeakRates, Precision

PEAK = PeakRates(60e12, 500e12, 1000e12, 1000e12, 2000e12, nvfp4_flops_per_s=8000e12)


@pytest.mark.parametrize(
    ("precision", "operand", "value"),
    [
        (Precision.FP32, 4.0, 4),
        (Precision.TF32, 4.0, 4),
        (Precision.BF16, 2.0, 2),
        (Precision.FP8, 1.0, 2),
        # One scale of four bytes for 128 values, and of one byte for 32 and for 16.
        (Precision.FP8_BLOCK, 1.03125, 2),
        (Precision.MXFP8, 1.03125, 2),
        (Precision.NVFP4, 0.5625, 2),
    ],
)
def test_operands_have_the_bytes_of_their_values_and_scales(precision, operand, value):
    assert precision.operand_bytes == pytest.approx(operand)
    assert precision.value_bytes == value


def test_everything_but_products_stays_in_two_bytes():
    low = [precision for precision in Precision if precision.is_low]
    assert low == [Precision.FP8, Precision.FP8_BLOCK, Precision.MXFP8, Precision.NVFP4]
    for precision in Precision:
        expected = Precision.BF16 if precision in low else precision
        assert precision.outside_products is expected


def test_blocks_of_128_are_scaled_outside_the_tensor_cores():
    assert PEAK.of(Precision.FP8_BLOCK) == PEAK.of(Precision.FP8) == 2000e12
    assert PEAK.has(Precision.FP8_BLOCK)


def test_a_device_without_a_precision_takes_the_next_wider_one():
    assert not PEAK.has(Precision.MXFP8)
    assert PEAK.of(Precision.MXFP8) == 1000e12
    old = PeakRates(15e12, fp16_flops_per_s=125e12)
    for precision in (Precision.BF16, Precision.TF32, Precision.FP8, Precision.NVFP4):
        assert not old.has(precision)
        assert old.of(precision) == 15e12
