from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.machine import COLLECTIVE_SLOWDOWN, KERNEL_SLOWDOWN
from dse.workload import DurationClass
from dse.workload.dlrm.iteration._contention import contended
from dse.workload.dlrm.iteration._costs import Cost


def costs(*durations_s: float) -> list[Cost]:
    return [Cost(duration_s, 0.2, DurationClass.DENSE) for duration_s in durations_s]


def durations(slowed: list[Cost]) -> list[float]:
    return [cost.duration_s for cost in slowed]


def test_collectives_that_are_hidden_whole_take_the_measured_factor():
    kernels, collectives = contended(costs(1.0, 2.0, 2.0), costs(0.5, 0.5), first=1)
    assert durations(collectives) == pytest.approx([0.5 * 1.34, 0.5 * 1.34])
    # One of four seconds has a collective beside it.
    slower = 1.0 + 0.15 / 4
    assert durations(kernels) == pytest.approx([1.0, 2.0 * slower, 2.0 * slower])


def test_what_outlasts_the_kernels_is_not_slowed():
    kernels, collectives = contended(costs(1.0, 1.0), costs(4.0), first=1)
    assert durations(kernels) == pytest.approx([1.0, 1.15])
    # A second of four is beside a kernel.
    assert durations(collectives) == pytest.approx([4.0 * (1.0 + 0.34 / 4)])


@pytest.mark.parametrize(("kernels", "collectives"), [([1.0], []), ([], [1.0]), ([1.0], [1.0])])
def test_nothing_overlaps(kernels, collectives):
    slowed = contended(costs(*kernels), costs(*collectives), first=1)
    assert [durations(part) for part in slowed] == [kernels, collectives]


times = st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=5)


@given(times, times, st.integers(0, 5))
def test_slowdowns_are_bounded(kernels, collectives, first):
    slowed, delayed = contended(costs(*kernels), costs(*collectives), first)
    for before, after in zip(kernels, durations(slowed), strict=True):
        assert before <= after <= before * KERNEL_SLOWDOWN * (1 + 1e-9)
    for before, after in zip(collectives, durations(delayed), strict=True):
        assert before <= after <= before * COLLECTIVE_SLOWDOWN * (1 + 1e-9)
