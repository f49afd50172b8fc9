"""Times of iterations, on a clock made by hand."""

from __future__ import annotations

import pytest

from dse.trace.capture import CaptureSettings
from dse.trace.capture._session import StepTimes


def run(settings, durations_s, own_s=100.0):
    """Iterations of given durations; between them the capture itself takes `own_s`."""
    now = 0.0
    times = StepTimes(settings, lambda: now)
    for step, duration_s in enumerate(durations_s):
        times.begin(step)
        now += duration_s
        times.end(step)
        now += own_s
    return times


def test_means_leave_out_first_iterations_and_what_the_capture_does():
    settings = CaptureSettings(steps=2, warm_up=1, skip=3)
    # First, two skipped, warm-up, two recorded, the first after them, five more, others.
    times = run(settings, [50, 2, 4, 60, 7, 9, 70, 3, 3, 3, 3, 6, 80, 80])
    assert times.profiled_s == pytest.approx(8)
    assert times.unprofiled_s == pytest.approx((2 + 4 + 3 * 4 + 6) / 7)


def test_what_did_not_run_has_no_time():
    settings = CaptureSettings(steps=2, warm_up=1, skip=1)
    assert run(settings, [5, 5]).profiled_s is None
    assert run(settings, [5, 5, 7]).profiled_s == 7
    assert run(settings, [5, 5, 7, 7, 9]).unprofiled_s is None
    assert run(settings, [5, 5, 7, 7, 9, 4]).unprofiled_s == 4


def test_devices_are_idle_at_the_ends_of_what_is_measured_only():
    settings = CaptureSettings(steps=3, warm_up=2, skip=3)
    times = run(settings, [])
    assert [step for step in range(1, 30) if times.drains(step)] == [1, 3, 5, 8, 9, 14]
