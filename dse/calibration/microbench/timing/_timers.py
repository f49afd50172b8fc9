"""Timers of one call, and repetition until the time is known well enough.

A *timer* turns a call into a sampler, a function that takes one sample: the seconds of one call.
:func:`measure` warms up and draws samples until the 95 % interval of their median is narrow, or
the time for the point is over.

The interval holds for the noise within one run; a machine that is slower an hour later lies
outside.
"""

from __future__ import annotations

from dataclasses import dataclass
import gc
import math
import statistics
import time
from typing import TYPE_CHECKING, Any, Protocol

from dse._median import FEWEST_SAMPLES, median_interval
from dse._torch import load_torch
from dse.calibration.microbench.plan._points import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Growth of the number of samples between two looks at the interval, as a share.
_GROWTH = 0.2


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """When a point is measured well enough.

    Attributes:
        target_half_width: Half width of the median's interval over the median, at which to stop.
        min_repeats: Samples before the target counts.
        max_repeats: Samples at which to stop.
        time_limit_s: Time for the samples of a point; exceeded only until there are six samples.
        warm_up_s: Time for warming up; one call at least.
    """

    target_half_width: float = 0.02
    min_repeats: int = 10
    max_repeats: int = 500
    time_limit_s: float = 0.25
    warm_up_s: float = 0.02


class Timer(Protocol):
    """A way to time one call."""

    def sampler(self, call: Callable[[], object]) -> Callable[[], float]:
        """Returns a function that takes one sample of `call`: the seconds of one call."""


class CpuTimer:
    """Wall clock of the processor.

    A sample is the mean of enough calls in a row to last `min_sample_s`, so that the clock's own
    cost and resolution do not matter; calls that are longer are timed one by one. The garbage
    collector is off meanwhile. Caches are as the call before left them: small operands are warm
    unless the call rotates through several. With `between` every sample is one call, after it.

    Args:
        min_sample_s: Least duration of a sample, in seconds.
        settle: Called after each sample, outside the timed part; waits for issued work to end.
        clock_ns: The clock, in nanoseconds; the process's own time (`time.process_time_ns`) where
            other programs disturb.
        between: Called before each call, outside the timed part; empties caches, for example.
    """

    def __init__(
        self,
        min_sample_s: float = 200e-6,
        settle: Callable[[], object] | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        between: Callable[[], object] | None = None,
    ) -> None:
        self._between = between
        self._min_sample_s = min_sample_s
        self._settle = settle
        self._clock_ns = clock_ns

    def sampler(self, call: Callable[[], object]) -> Callable[[], float]:
        """Finds how many calls a sample needs; returns the function that takes one."""
        count = 1
        if self._between is not None:
            return lambda: self.time_s(call, 1)
        while True:
            total_s = self.time_s(call, count)
            if total_s >= self._min_sample_s:
                break
            count = next_count(count, total_s, self._min_sample_s)
        return lambda: self.time_s(call, count) / count

    def time_s(self, call: Callable[[], object], count: int) -> float:
        """Returns the seconds of `count` calls in a row."""
        calls = range(count)
        if self._between is not None:
            self._between()
        collecting = gc.isenabled()
        gc.disable()
        try:
            start = self._clock_ns()
            for _ in calls:
                call()
            end = self._clock_ns()
        finally:
            if collecting:
                gc.enable()
        if self._settle is not None:
            self._settle()
        return (end - start) * 1e-9


def next_count(count: int, total_s: float, least_s: float) -> int:
    """Returns how many calls to try next, when `count` of them take `total_s`, too short a time.

    It aims a little higher than needed, but grows at most tenfold on one sample.
    """
    wanted = 1.2 * count * least_s / max(total_s, 1e-9)
    return max(count + 1, min(10 * count, math.ceil(wanted)))


class CudaTimer:
    """Events on the current CUDA stream.

    Each sample empties the L2 cache by writing a buffer of twice its size, then records an event,
    issues the call, records another and waits. Ahead of these a spinning kernel keeps the stream
    busy for longer than the host needs to issue the call, so that the device never waits for the
    host between the events: launch overheads are not part of a kernel's time. A call that itself
    waits for the device (a sparse gradient that is coalesced does) cannot be hidden in this way
    and contains the overheads of what follows its wait.

    Args:
        torch: The torch module, or a stand-in.
    """

    #: Cycles per second that the spinning kernel is taken to run at; GPUs are below it, and so
    #: spin for longer.
    _CYCLES_PER_S = 2e9

    #: Longest time to spin, in seconds.
    _MAX_SPIN_S = 5e-3

    def __init__(self, torch: Any = None) -> None:
        self._torch = load_torch() if torch is None else torch
        properties = self._torch.cuda.get_device_properties("cuda")
        self._flush = self._torch.empty(
            2 * int(properties.L2_cache_size), dtype=self._torch.int8, device="cuda"
        )

    def sampler(self, call: Callable[[], object]) -> Callable[[], float]:
        """Finds how long the host needs to issue `call`; returns the function that samples."""
        cuda = self._torch.cuda
        call()
        cuda.synchronize()
        start_s = time.perf_counter()
        call()
        issue_s = time.perf_counter() - start_s
        cuda.synchronize()
        cycles = int(min(2 * issue_s + 20e-6, self._MAX_SPIN_S) * self._CYCLES_PER_S)
        start = cuda.Event(enable_timing=True)
        end = cuda.Event(enable_timing=True)

        def sample() -> float:
            cuda._sleep(cycles)
            self._flush.zero_()
            start.record()
            call()
            end.record()
            cuda.synchronize()
            return float(start.elapsed_time(end)) * 1e-3

        return sample


def measure(
    timer: Timer,
    call: Callable[[], object],
    settings: MeasureSettings | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Sample:
    """Measures one call: warm-up, then samples until the stopping rule of the settings.

    Args:
        timer: How a sample is taken.
        call: What is measured.
        settings: When to stop; the defaults if omitted.
        clock: Seconds on any scale that only grows; limits the time, does not measure.
    """
    settings = settings or MeasureSettings()
    warm_until = clock() + settings.warm_up_s
    call()
    sampler = timer.sampler(call)
    while clock() < warm_until:
        sampler()
    return repeat(lambda: (sampler(),), settings, clock)


def repeat(
    draw: Callable[[], Sequence[float]],
    settings: MeasureSettings,
    clock: Callable[[], float] = time.perf_counter,
) -> Sample:
    """Draws samples until the stopping rule of the settings.

    Args:
        draw: Returns one sample or several, in seconds.
        settings: When to stop.
        clock: Seconds on any scale that only grows.
    """
    until = clock() + settings.time_limit_s
    samples: list[float] = []
    look_at = settings.min_repeats
    while True:
        samples += draw()
        count = len(samples)
        late = clock() >= until
        if count < FEWEST_SAMPLES or not (late or count >= look_at):
            continue
        sample = summarise(samples)
        narrow = sample.half_width_s <= settings.target_half_width * sample.time_s
        if late or narrow or count >= settings.max_repeats:
            return sample
        look_at = min(settings.max_repeats, math.ceil((1 + _GROWTH) * count))


def summarise(samples: Sequence[float]) -> Sample:
    """Returns the median of the samples and half the width of its 95 % interval.

    With fewer than six samples there is no such interval; half their range is given.
    """
    low_s, high_s = median_interval(samples)
    if len(samples) < FEWEST_SAMPLES:
        low_s, high_s = min(samples), max(samples)
    return Sample(statistics.median(samples), 0.5 * (high_s - low_s), len(samples))
