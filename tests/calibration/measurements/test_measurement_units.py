from __future__ import annotations

import numpy as np
import pytest

from dse.calibration.measurements import GemmSamples, Origin, RowKind, check_units
from dse.errors import CalibrationError
from tests.calibration.measurements.helpers import refusal

POSSIBLE_S = np.linspace(1e-5, 1e-3, 200)


def samples(time_s, unit="us"):
    count = len(time_s)
    sizes = np.full(count, 64)
    return GemmSamples(
        sizes,
        sizes,
        sizes,
        np.full(count, "bf16"),
        time_s=np.asarray(time_s),
        source_rows=np.arange(2, count + 2),
        origin=Origin("a.csv", RowKind.LINE, unit),
    )


def test_plausible_times_pass(caplog):
    check_units(samples(POSSIBLE_S * 1.7), POSSIBLE_S)
    assert not caplog.records


@pytest.mark.parametrize(
    ("factor", "read_as", "word", "option"),
    [
        (1e3, "ms", "microseconds", "us"),
        (1e3, "s", "milliseconds", "ms"),
        (1e6, "s", "microseconds", "us"),
        (1e-3, "us", "milliseconds", "ms"),
        (1e-6, "us", "seconds", "s"),
        (1e-3, "ms", "seconds", "s"),
    ],
)
@pytest.mark.parametrize("efficiency", [1.1, 2.9, 9.0])
def test_a_wrong_unit_is_named(factor, read_as, word, option, efficiency):
    if factor < 1:
        efficiency = min(efficiency, 2.9)
    wrong = samples(POSSIBLE_S * efficiency * factor, read_as)
    message = refusal(CalibrationError, lambda: check_units(wrong, POSSIBLE_S))
    assert message.startswith("a.csv: the median of measured over shortest possible time is")
    assert "plausible is 0.003 to 300" in message
    assert f"read as {read_as}, the times look like {word}; pass --time-unit {option}" in message


@pytest.mark.parametrize("unit", [None, "ns"])
def test_without_a_likely_unit_the_factor_is_named(unit):
    wrong = samples(POSSIBLE_S * 2e3, unit)
    message = refusal(CalibrationError, lambda: check_units(wrong, POSSIBLE_S))
    assert "about 1e+03 times too long: check their unit" in message


def test_the_limits_are_at_300_and_at_0_003():
    check_units(samples(POSSIBLE_S * 299), POSSIBLE_S)
    refusal(CalibrationError, lambda: check_units(samples(POSSIBLE_S * 300.1), POSSIBLE_S))
    refusal(CalibrationError, lambda: check_units(samples(POSSIBLE_S * 0.0029), POSSIBLE_S))


def test_times_faster_than_the_hardware(caplog):
    times = POSSIBLE_S * 1.5
    times[7] = 0.4 * POSSIBLE_S[7]
    check_units(samples(times), POSSIBLE_S)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(
        "a.csv: 1 of 200 times are below half of what the hardware can do, first a.csv:9:"
    )
    times[50:53] = 0.4 * POSSIBLE_S[50:53]
    message = refusal(CalibrationError, lambda: check_units(samples(times), POSSIBLE_S))
    assert "4 of 200 times are below half" in message
    assert "first a.csv:9: " in message
    assert "1% may be: check the device, the precision and the sizes" in message


def test_times_that_need_not_be_impossible_are_no_concern(caplog):
    check_units(samples(POSSIBLE_S * 0.4), POSSIBLE_S, fast_share=None)
    assert not caplog.records


@pytest.mark.parametrize("reference", [POSSIBLE_S[:5], POSSIBLE_S * 0, POSSIBLE_S * np.nan])
def test_a_reference_needs_one_positive_number_a_row(reference):
    with pytest.raises(ValueError, match="one positive, finite number"):
        check_units(samples(POSSIBLE_S), reference)
