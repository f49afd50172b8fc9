from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.machine import HostLinkSpec
from dse.machine.kernels import (
    elementwise_time_s,
    host_copy_estimate,
    host_copy_time_s,
)
from dse.machine.platforms import list_platforms, load_platform
from tests.conftest import make_device
from tests.machine.kernels.calibrations import calibration

DEVICE = make_device()
LINK = HostLinkSpec(bandwidth_bytes_per_s=25e9, latency_s=10e-6)
FLOOR = DEVICE.kernel_floor_s
byte_counts = st.floats(1, 1e11)


def share_of_bandwidth(device, traffic_bytes):
    busy_s = elementwise_time_s(device, traffic_bytes) - device.kernel_floor_s
    return float(traffic_bytes / (device.memory_bandwidth_bytes_per_s * busy_s))


def test_a_large_stream_runs_at_its_share_of_the_peak():
    # 18.4 GB at 0.92 × 2 TB/s take 10 ms; the cache holds a thousandth of that.
    assert elementwise_time_s(DEVICE, 18.4e9) == pytest.approx(10e-3 + FLOOR, rel=1e-3)
    assert share_of_bandwidth(make_device(kind="cpu"), 1e11) == pytest.approx(0.85, rel=1e-3)


def test_a_few_bytes_take_the_latency():
    # 1400 bytes are a thousandth of the 1.4 MB that 2 TB/s and 0.7 µs keep in flight.
    assert elementwise_time_s(DEVICE, 1400) == pytest.approx(FLOOR + 0.7e-6, rel=1e-3)


def test_nothing_takes_no_time():
    assert elementwise_time_s(DEVICE, 0) == 0.0
    assert host_copy_time_s(LINK, 0) == 0.0
    assert elementwise_time_s(DEVICE, np.zeros((2, 3))).shape == (2, 3)


def test_half_of_a_small_stream_is_served_by_the_cache():
    # 20 MB fit: 10 MB at 2 TB/s and 10 MB at 4 TB/s, both at 0.92, far above the latency.
    by_hand = (10e6 / 2e12 + 10e6 / 4e12) / 0.92
    assert elementwise_time_s(DEVICE, 20e6) == pytest.approx(FLOOR + by_hand, rel=1e-4)


def test_a_stream_of_twice_the_cache_is_served_an_eighth():
    # Half of the share for each factor of overflow, squared: 1 / 8 of 72 MB at cache speed.
    by_hand = (63e6 / 2e12 + 9e6 / 4e12) / 0.92
    assert elementwise_time_s(DEVICE, 72e6) == pytest.approx(FLOOR + by_hand, rel=1e-4)


def test_a_slow_cache_does_not_slow_memory_down():
    slow = make_device(l2_bandwidth_bytes_per_s=1e12)
    without = make_device(l2_bytes=1.0)
    assert elementwise_time_s(slow, 20e6) == pytest.approx(
        float(elementwise_time_s(without, 20e6))
    )


@given(byte_counts, st.floats(1, 100))
def test_more_bytes_are_never_faster(count, factor):
    assert elementwise_time_s(DEVICE, count * factor) >= elementwise_time_s(DEVICE, count)
    assert host_copy_time_s(LINK, count * factor) >= host_copy_time_s(LINK, count)


@given(byte_counts, st.floats(1, 100), st.floats(1, 100), st.floats(1, 100))
def test_more_bandwidth_or_cache_is_never_slower(count, memory, cache, cache_size):
    base = elementwise_time_s(DEVICE, count) * (1 + 1e-12)
    faster = (
        replace(DEVICE, memory_bandwidth_bytes_per_s=2e12 * memory),
        replace(DEVICE, l2_bandwidth_bytes_per_s=4e12 * cache),
        replace(DEVICE, l2_bytes=40e6 * cache_size),
    )
    assert all(elementwise_time_s(device, count) <= base for device in faster)


@given(byte_counts)
def test_no_stream_beats_the_cache(count):
    seconds = float(elementwise_time_s(DEVICE, count)) - FLOOR
    assert seconds >= (0.5 * count / 2e12 + 0.5 * count / 4e12) * (1 - 1e-9)


@pytest.mark.parametrize("name", list_platforms())
def test_all_devices_stream_near_their_peak(name):
    device = replace(load_platform(name).device, calibrations=())
    assert 0.8 < share_of_bandwidth(device, 10 * device.l2_bytes + 1e9) < 1.0


def test_a_calibration_of_elementwise_is_used():
    learned = calibration("elementwise", {"traffic_bytes": (1e3, 1e9)}, ratio=1.5)
    device = make_device(calibrations=(learned,))
    sizes = np.array([[0.0, 1e5], [1e7, 1e12]])
    expected = 1.5 * elementwise_time_s(DEVICE, sizes)
    assert elementwise_time_s(device, sizes) == pytest.approx(expected)


def test_host_copies_by_hand():
    # 21.25 MB at 0.85 × 25 GB/s take 1 ms.
    assert host_copy_time_s(LINK, 21.25e6) == pytest.approx(1e-3 + 10e-6)
    estimate = host_copy_estimate(DEVICE, LINK, "memcpy_d2h", [0, 21.25e6])
    assert estimate.time_s == pytest.approx([0, 1e-3 + 10e-6])
    assert estimate.spread == pytest.approx([0.25, 0.25])


def test_host_copies_use_the_calibration_of_their_direction():
    learned = calibration("memcpy_h2d", {"size_bytes": (1e3, 1e8)}, ratio=2.0)
    device = make_device(calibrations=(learned,))
    there = host_copy_estimate(device, LINK, "memcpy_h2d", 1e6)
    back = host_copy_estimate(device, LINK, "memcpy_d2h", 1e6)
    assert there.time_s == pytest.approx(2 * back.time_s)
    assert (there.spread, back.spread) == (pytest.approx(0.05), 0.25)
