from __future__ import annotations

import itertools
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.calibration.microbench import MeasureSettings
from dse.calibration.microbench.plan import Sample
from dse.calibration.microbench.timing import CpuTimer, CudaTimer, measure, summarise


class Clock:
    """Seconds that go on by the samples that are taken."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeTimer:
    """Samples from a list, each taking its own time on the clock."""

    def __init__(self, clock: Clock, samples) -> None:
        self.clock = clock
        self.samples = itertools.cycle(samples)
        self.taken = 0

    def sampler(self, call):
        def sample() -> float:
            self.taken += 1
            time_s = next(self.samples)
            self.clock.now += time_s
            return time_s

        return sample


def run(samples, **settings):
    clock = Clock()
    timer = FakeTimer(clock, samples)
    return measure(timer, lambda: None, MeasureSettings(**settings), clock), clock


def test_what_happens_between_calls_is_not_timed():
    now = SimpleNamespace(ns=0, order=[])

    def between():
        now.ns += 5_000_000
        now.order.append("between")

    def call():
        now.ns += 1_000
        now.order.append("call")

    sample = CpuTimer(clock_ns=lambda: now.ns, between=between).sampler(call)
    # A call as short as this would be repeated in one sample otherwise.
    assert [sample(), sample()] == pytest.approx([1e-6, 1e-6])
    assert now.order == ["between", "call"] * 2


def test_quiet_point_stops_at_the_fewest_repeats():
    sample, _ = run([1e-3], min_repeats=10)
    assert sample == Sample(1e-3, 0.0, 10)


def test_noise_asks_for_more_repeats_until_the_interval_is_narrow():
    rng = np.random.default_rng(0)
    noisy = list(1e-3 * (1 + 0.1 * rng.standard_normal(5000)))
    sample, _ = run(noisy, time_limit_s=100.0, max_repeats=2000)
    assert 10 < sample.repeats < 2000
    assert sample.half_width_s <= 0.02 * sample.time_s
    assert sample.time_s == pytest.approx(1e-3, rel=0.03)


def test_repeats_are_limited():
    sample, _ = run([1e-6, 2e-6, 3e-6], max_repeats=40, time_limit_s=100.0)
    assert sample.repeats == 40
    assert sample.half_width_s > 0.02 * sample.time_s


def test_time_is_limited_but_six_repeats_are_taken():
    sample, clock = run([0.5, 0.6, 0.7], time_limit_s=1.0, warm_up_s=0.0)
    assert sample.repeats == 6
    assert clock.now == pytest.approx(3.6)
    sample, clock = run([0.05, 0.06, 0.07], time_limit_s=1.0, warm_up_s=0.0)
    assert 1.0 <= clock.now < 1.1


def test_warm_up_is_not_among_the_samples():
    slow_then_quick = [1.0] * 3 + [0.001] * 1000
    sample, _ = run(slow_then_quick, warm_up_s=2.5)
    assert sample.time_s == 0.001


@given(st.lists(st.floats(1e-9, 10), min_size=1, max_size=60))
def test_summary_is_the_median_and_part_of_the_range(samples):
    sample = summarise(samples)
    assert sample.time_s == pytest.approx(float(np.median(samples)))
    assert 0 <= sample.half_width_s <= 0.5 * (max(samples) - min(samples))
    assert sample.repeats == len(samples)


def test_interval_of_the_median_covers_it_19_times_of_20():
    rng = np.random.default_rng(1)
    # Known ranks of the sign-test interval: n = 10 takes the 2nd and 9th, n = 20 the 6th and 15th.
    assert summarise(list(range(10))).half_width_s == 3.5
    assert summarise(list(range(20))).half_width_s == 4.5
    assert summarise(list(range(6))).half_width_s == 2.5
    inside = 0
    for _ in range(400):
        ordered = np.sort(rng.exponential(size=20))
        inside += ordered[5] <= np.log(2) <= ordered[14]
    assert inside >= 370


def test_cpu_timer_repeats_short_calls_until_a_sample_is_long():
    now = SimpleNamespace(ns=0, calls=0)

    def call() -> None:
        now.ns += 1_000
        now.calls += 1

    sample = CpuTimer(min_sample_s=200e-6, clock_ns=lambda: now.ns).sampler(call)
    now.calls = 0
    assert sample() == pytest.approx(1e-6)
    assert 200 <= now.calls <= 2000


def test_cpu_timer_times_long_calls_one_by_one_and_settles_outside():
    now = SimpleNamespace(ns=0, calls=0, settled=0)

    def call() -> None:
        now.ns += 5_000_000
        now.calls += 1

    def settle() -> None:
        now.ns += 10**9
        now.settled += 1

    sample = CpuTimer(settle=settle, clock_ns=lambda: now.ns).sampler(call)
    now.calls = now.settled = 0
    assert sample() == pytest.approx(5e-3)
    assert (now.calls, now.settled) == (1, 1)


def test_cpu_timer_measures_something():
    sample = measure(CpuTimer(), lambda: sum(range(100)), MeasureSettings(time_limit_s=0.01))
    assert sample.time_s > 0


class FakeCuda:
    """Enough of torch for the timer; every call is noted and the call of interest takes 3 ms."""

    int8 = "int8"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.device_s = 0.0
        self.cuda = SimpleNamespace(
            get_device_properties=lambda device: SimpleNamespace(L2_cache_size=1000),
            synchronize=lambda: self.log.append("synchronize"),
            _sleep=lambda cycles: self.log.append("spin"),
            Event=self.event,
        )

    def empty(self, count, dtype, device):
        self.flushed_bytes = count
        return SimpleNamespace(zero_=lambda: self.log.append("flush"))

    def event(self, enable_timing):
        assert enable_timing
        event = SimpleNamespace(at_s=0.0)

        def record() -> None:
            self.log.append("event")
            event.at_s = self.device_s

        event.record = record
        event.elapsed_time = lambda end: 1e3 * (end.at_s - event.at_s)
        return event

    def call(self) -> None:
        self.log.append("call")
        self.device_s += 3e-3


def test_cuda_timer_flushes_the_cache_and_keeps_the_stream_busy():
    fake = FakeCuda()
    sample = CudaTimer(torch=fake).sampler(fake.call)
    assert fake.flushed_bytes == 2000
    fake.log.clear()
    assert sample() == pytest.approx(3e-3)
    assert fake.log == ["spin", "flush", "event", "call", "event", "synchronize"]
