"""Operators measured on all ranks of a machine at once.

Ranks of one machine share its memory, its last cache and its clock, so a kernel that misses the
caches takes longer when the others run, too; and in training they run the same kernels at the same
time. One process a rank is started for a session. Each makes operands of its own, and before every
sample all meet in shared memory (see `_in_step`), so that samples overlap from end to end. What a
sample counts is the mean over the ranks.

GPUs have memory of their own and are measured one at a time.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
import math
import statistics
import time
from typing import TYPE_CHECKING

from dse.calibration.microbench._busy_rank import (
    MeasureHost,
    PrepareKernel,
    Release,
    TakeSamples,
    kernel_worker,
)
from dse.calibration.microbench._in_step import shared_counters
from dse.calibration.microbench._timing import next_count, repeat
from dse.errors import CalibrationError, DseError, WorkerError
from dse.launch import start_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.calibration.microbench._timing import MeasureSettings
    from dse.calibration.microbench._types import HostMeasurement, KernelPoint, Sample
    from dse.launch import RankGroup

#: Least duration of a sample, in seconds. Samples are apart, so the first microseconds of each
#: find what waiting has left in the caches.
_LEAST_SAMPLE_S = 1e-3

#: Samples that the ranks take before they answer.
_BATCH = 6


class RefusedKernelError(DseError):
    """An operator cannot be run on the ranks, for lack of memory for example; it is skipped."""


@contextmanager
def busy_ranks(
    ranks: int,
    threads: int,
    seed: int,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    timeout_s: float = 120.0,
) -> Iterator[BusyRanks]:
    """Starts the ranks of a machine and ends them afterwards, whatever happens.

    The processes are spawned, so a script that calls this needs the usual ``__main__`` guard.

    Args:
        ranks: Ranks that work at the same time.
        threads: Threads that each computes with.
        seed: Seed of the operands.
        clock_ns: Clock of the samples, in nanoseconds; a function of a module.
        timeout_s: Time for the ranks to start, and for the answer to one request, in seconds.

    Raises:
        CalibrationError: A rank has died; the message ends with its traceback.
    """
    try:
        with shared_counters(ranks) as path:
            factory = partial(kernel_worker, path, seed, clock_ns)
            with start_ranks(
                factory,
                backend="gloo",
                world_size=ranks,
                threads=threads,
                timeout_s=timeout_s,
                own_cores=True,
            ) as group:
                # All have opened it; so nothing stays behind, however this process ends.
                path.unlink()
                yield BusyRanks(group)
    except WorkerError as error:
        raise CalibrationError(f"a rank that measures operators has failed: {error}") from error


class BusyRanks:
    """Ranks that run the same operators at the same time.

    Args:
        group: Whom to ask.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def kernel(
        self,
        point: KernelPoint,
        settings: MeasureSettings,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Sample:
        """Measures one operator on all ranks.

        Args:
            point: Operator and sizes.
            settings: When to stop.
            clock: Seconds on any scale that only grows.

        Raises:
            RefusedKernelError: A rank cannot run it.
            WorkerError: A rank has died or does not answer.
        """
        warm_until = clock() + settings.warm_up_s
        prepared = self._group.ask(PrepareKernel(point))
        for answer in prepared:
            if answer.refusal:
                raise RefusedKernelError(answer.refusal)
        calls = 1
        if not any(answer.one_call for answer in prepared):
            calls = self._calls()
        while clock() < warm_until:
            self._samples_s(1, calls)
        return repeat(lambda: self._samples_s(_BATCH, calls), settings, clock)

    def host(self, settings: MeasureSettings) -> HostMeasurement:
        """Measures the host overheads on all ranks; means, and the widest interval."""
        found: list[HostMeasurement] = self._group.ask(MeasureHost(settings))
        means = {
            field.name: statistics.fmean(values)
            for field in fields(found[0])
            if None not in (values := [getattr(one, field.name) for one in found])
        }
        means["half_width_s"] = max(one.half_width_s for one in found)
        return replace(found[0], **means)

    def release(self) -> None:
        """Frees the operands of the last point."""
        self._group.ask(Release())

    def _calls(self) -> int:
        """Finds how many calls in a row a sample needs to last."""
        count = 1
        while True:
            (one_s,) = self._samples_s(1, count)
            if count * one_s >= _LEAST_SAMPLE_S:
                return count
            count = next_count(count, count * one_s, _LEAST_SAMPLE_S)

    def _samples_s(self, samples: int, calls: int) -> list[float]:
        by_rank = self._group.ask(TakeSamples(samples, calls))
        return [math.fsum(one) / (calls * len(one)) for one in zip(*by_rank, strict=True)]
