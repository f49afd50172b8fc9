"""Curves of time over message size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import CalibrationError
from dse.machine.fits import Protocols, fit_size_curve

SIZES = 2.0 ** np.arange(9, 30)


def line_s(size):
    return 10e-6 + np.asarray(size) / 100e9


def test_latency_and_bandwidth_are_found_and_kept_outside_the_range():
    curve = fit_size_curve(SIZES[4:15], line_s(SIZES[4:15]))
    assert curve.latency_s == pytest.approx(10e-6, rel=1e-3)
    assert curve.bandwidth_bytes_per_s == pytest.approx(100e9, rel=1e-3)
    outside = np.array([512.0, 2.0**29])
    assert curve.at(outside) == pytest.approx(line_s(outside), rel=1e-3)


def test_the_bandwidth_still_rises_beyond_the_range_where_it_rises_at_its_end():
    # 1 ms before the first byte: at 256 MB it is a fifth of the time of the bytes alone.
    size = 1e6 * 2.0 ** np.arange(9)
    curve = fit_size_curve(size, 1e-3 + size / 50e9)
    assert curve.at(8e9) == pytest.approx(1e-3 + 8e9 / 50e9, rel=0.01)
    assert 8e9 / curve.at(8e9) > 1.15 * size[-1] / curve.at(size[-1])


def test_a_range_of_small_messages_says_nothing_of_the_rate_of_large_ones():
    size = 2.0 ** np.arange(9, 16)
    curve = fit_size_curve(size, np.full(len(size), 1e-5))
    # No faster than ever measured would be absurd; ever faster would be, too.
    assert curve.at(2.0**20) >= 1e-5


def test_a_straight_curve_needs_few_knots():
    curve = fit_size_curve(SIZES, line_s(SIZES))
    assert len(curve.size_bytes) < len(SIZES)
    assert curve.at(SIZES) == pytest.approx(line_s(SIZES), rel=0.005)


def test_one_of_three_repeats_is_a_spike():
    sizes = np.repeat(SIZES, 3)
    time_s = line_s(sizes)
    time_s[1::3] *= 3.0
    assert fit_size_curve(sizes, time_s).at(SIZES) == pytest.approx(line_s(SIZES), rel=0.005)


def test_measured_points_that_rise_are_reproduced():
    time_s = line_s(SIZES) * np.linspace(1.0, 1.5, len(SIZES))
    curve = fit_size_curve(SIZES, time_s)
    assert curve.at(SIZES) == pytest.approx(time_s, rel=0.005)


def test_sizes_whose_times_fall_are_measurements_of_one_time():
    sizes = np.repeat(SIZES, 3)
    time_s = sizes * 1e-9
    # 16 and 32 KiB: of these six times the one a little above the third counts.
    time_s[15:21] = np.array([20.0, 22.0, 45.0, 19.0, 19.5, 30.0]) * 1e-6
    curve = fit_size_curve(sizes, time_s)
    assert curve.at(SIZES[5:7]) == pytest.approx(20e-6 * 1.1**0.1, rel=0.005)
    other = np.delete(SIZES, [5, 6])
    assert curve.at(other) == pytest.approx(other * 1e-9, rel=0.005)


def test_one_low_point_does_not_lower_all_before_it():
    time_s = np.full(len(SIZES), 10e-6)
    time_s[8] = 8e-6
    assert fit_size_curve(SIZES, time_s).at(SIZES[:4]) == pytest.approx(10e-6, rel=0.005)


def test_few_sizes_are_refused():
    with pytest.raises(CalibrationError, match="3 different message sizes are too few"):
        fit_size_curve(SIZES[:3], line_s(SIZES[:3]))


def two_protocols_s(size):
    """10 us and 10 GB/s below 3 MiB, from there 500 us and 50 GB/s."""
    size = np.asarray(size)
    return np.where(size < 3 * 2**20, 10e-6 + size / 10e9, 500e-6 + size / 50e9)


def test_the_time_jumps_where_the_protocol_changes():
    seen = SIZES[::2]
    protocols = Protocols((10e9, 50e9), (3.0 * 2**20,))
    curve = fit_size_curve(seen, two_protocols_s(seen), protocols)
    near = np.array([2.0 * 2**20, 2.9 * 2**20, 3.1 * 2**20, 4.0 * 2**20])
    assert curve.at(near) == pytest.approx(two_protocols_s(near), rel=0.01)
    smooth = fit_size_curve(seen, two_protocols_s(seen))
    assert float(smooth.at(near[2])) < 0.7 * float(two_protocols_s(near[2]))


def test_a_byte_beyond_takes_no_less_than_the_rate_allows():
    # One size of the second protocol was measured; below it its rate decides.
    seen = np.array([2.0**16, 2.0**18, 2.0**20, 2.0**24])
    curve = fit_size_curve(seen, two_protocols_s(seen), Protocols((10e9, 50e9), (3.0 * 2**20,)))
    assert float(curve.at(2.0**23)) == pytest.approx(float(two_protocols_s(2.0**23)), rel=0.01)


def test_one_measured_size_of_a_protocol_goes_on_to_the_next():
    # Every other power of two was measured, so only 4 MiB lies between the switches. By the
    # protocol's rate 2 MiB would take 20 us, by the line to 16 MiB 31 us.
    seen = SIZES[7::2]
    time_s = 10e-6 + seen / 100e9
    switches = (2.0**20 + 1, 2.0**23)
    curve = fit_size_curve(seen, time_s, Protocols((100e9, 65e9, 100e9), switches))
    near = np.array([1.5, 2.0, 3.0, 6.0, 7.9]) * 2**20
    assert curve.at(near) == pytest.approx(10e-6 + near / 100e9, rel=0.005)


def test_the_time_of_the_first_protocol_is_flat_until_all_channels_are_used():
    # Sizes that were not measured on both sides of a bend at 256 KiB.
    def bent_s(size):
        return 8e-6 + np.maximum(size - 2.0**18, 0.0) / 200e9

    seen = SIZES[::2]
    protocols = Protocols((200e9,), flat_bytes=2.0**18)
    curve = fit_size_curve(seen, bent_s(seen), protocols)
    near = np.array([2.0**16, 2.0**18, 1.5 * 2.0**18, 2.0**19])
    assert curve.at(near) == pytest.approx(bent_s(near), rel=0.005)
    assert fit_size_curve(seen, bent_s(seen)).at(2.0**18) > 1.02 * bent_s(2.0**18)


@pytest.mark.parametrize(
    ("repeats", "counts"), [([8.0, 16.0], 2**0.1), ([8.0, 8.0, 8.0, 16.0], 1)]
)
def test_of_few_repeats_the_earlier_counts_more(repeats, counts):
    # The logarithm lies two fifths of a place below the median.
    sizes = np.repeat(SIZES, len(repeats))
    time_s = np.tile(repeats, len(SIZES)) * sizes * 1e-12
    assert fit_size_curve(sizes, time_s).at(SIZES) == pytest.approx(
        counts * 8e-12 * SIZES, rel=0.01
    )


def test_a_switch_that_is_not_certain_needs_a_step():
    possible = Protocols((50e9, 50e9), (3.0 * 2**20,), certain=False)
    assert fit_size_curve(SIZES, line_s(SIZES), possible) == fit_size_curve(SIZES, line_s(SIZES))
    # 30 ns a byte before, 4 ns across, 10 ns after.
    time_s = np.where(SIZES < 3 * 2**20, 10e-6 + SIZES * 30e-9, 29.37e-3 + SIZES * 10e-9)
    shown = fit_size_curve(SIZES, time_s, possible)
    assert shown != fit_size_curve(SIZES, time_s)
    assert shown.at(SIZES) == pytest.approx(time_s, rel=0.005)


@given(
    st.lists(st.floats(0.3, 3.0), min_size=21, max_size=21),
    st.lists(st.floats(100, 2.0**31), max_size=4),
    st.booleans(),
    st.floats(0, 2.0**31),
)
def test_more_bytes_are_never_faster_whatever_the_protocols(noise, switches, certain, flat):
    rates = (50e9,) * (len(switches) + 1)
    protocols = Protocols(rates, tuple(sorted(switches)), certain, flat)
    curve = fit_size_curve(SIZES, line_s(SIZES) * np.array(noise), protocols)
    times = curve.at(np.geomspace(64, 2.0**33, 4000))
    assert np.all(np.diff(times) >= -1e-9 * times[1:])


@given(st.lists(st.floats(0.3, 3.0), min_size=21, max_size=21))
def test_more_bytes_are_never_faster_whatever_was_measured(noise):
    curve = fit_size_curve(SIZES, line_s(SIZES) * np.array(noise))
    times = curve.at(np.geomspace(64, 2.0**33, 4000))
    assert np.all(np.diff(times) >= -1e-9 * times[1:])
