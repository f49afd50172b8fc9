"""Operators measured on all ranks of a machine at once.

Ranks of one machine share its memory, its last cache and its clock, so a kernel that misses the
caches takes longer when the others run, too; and in training they run the same kernels at the same
time. One process per rank is started for a session. Each makes its own operands, and before every
sample all wait for each other in shared memory (see `_barrier`), so that samples overlap from end
to end. A sample is the mean over the ranks.

GPUs have separate memories and are measured one at a time.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
import math
import statistics
import time
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.calibration.microbench._machine import keep_freed_memory
from dse.calibration.microbench.operators._operands import ColdCaches, OtherTables, point_kernel
from dse.calibration.microbench.ranks._barrier import SharedBarrier, shared_counters
from dse.calibration.microbench.timing._host import measure_host
from dse.calibration.microbench.timing._timers import CpuTimer, next_count, repeat
from dse.errors import CalibrationError, DseError, WorkerError
from dse.launch import start_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dse.calibration.microbench.plan._points import HostMeasurement, KernelPoint, Sample
    from dse.calibration.microbench.timing._timers import MeasureSettings
    from dse.launch import RankContext, RankGroup, Worker


@dataclass(frozen=True, slots=True)
class PrepareKernel:
    """Order to make the operands of a point and to run it once."""

    point: KernelPoint


@dataclass(frozen=True, slots=True)
class TakeSamples:
    """Order to take samples of the prepared point, each in step with the other ranks.

    Attributes:
        samples: How many.
        calls: Calls of each.
    """

    samples: int
    calls: int


@dataclass(frozen=True, slots=True)
class MeasureHost:
    """Order to measure the host overheads while the other ranks do."""

    settings: MeasureSettings


@dataclass(frozen=True, slots=True)
class Release:
    """Order to free the operands."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Answer to :class:`PrepareKernel`.

    Attributes:
        refusal: Why the operator cannot be run; empty if it can.
        one_call: Every sample is one call, because caches are emptied before each.
    """

    refusal: str = ""
    one_call: bool = False


def kernel_worker(
    path: Path, seed: int, clock_ns: Callable[[], int], context: RankContext
) -> Worker:
    """Returns the worker that answers the orders of one rank.

    The answer to :class:`PrepareKernel` is :class:`Prepared`, to :class:`TakeSamples` the list of
    seconds of the samples, to :class:`MeasureHost` the figures, to :class:`Release` ``None``. An
    error of the point is a refusal; every other failure ends the rank.

    Args:
        path: Counters that the ranks share.
        seed: Seed of the operands.
        clock_ns: Clock of the samples, in nanoseconds.
        context: Rank and group.
    """
    keep_freed_memory()
    barrier = SharedBarrier(path, context.rank, context.world_size)
    cold = ColdCaches(seed, context.world_size)
    return _KernelWorker(load_torch(), barrier, cold, seed, clock_ns).answer


class _KernelWorker:
    def __init__(
        self,
        torch: Any,
        barrier: SharedBarrier,
        cold: ColdCaches,
        seed: int,
        clock_ns: Callable[[], int],
    ) -> None:
        self._torch = torch
        self._barrier = barrier
        self._seed = seed
        self._clock_ns = clock_ns
        self._cold = cold
        self._call: Callable[[], object] = list
        self._others: OtherTables | None = None

    def answer(self, order: object) -> object:
        if isinstance(order, PrepareKernel):
            return self._prepare(order.point)
        if isinstance(order, TakeSamples):
            return self._sample(order)
        if isinstance(order, MeasureHost):
            return self._measure_host(order.settings)
        if isinstance(order, Release):
            self._free()
            return None
        raise TypeError(f"unknown order {order!r}")

    def _prepare(self, point: KernelPoint) -> Prepared:
        self._free()
        try:
            self._call = point_kernel(point, "cpu", self._seed)
            self._call()
            self._others = self._cold.before(point.op)
        except (RuntimeError, MemoryError, ValueError) as error:
            self._free()
            return Prepared(refusal=f"{type(error).__name__}: {error}".partition("\n")[0])
        return Prepared(one_call=self._others is not None)

    def _free(self) -> None:
        """Frees the operands of the last point."""
        self._call, self._others = list, None

    def _sample(self, order: TakeSamples) -> list[float]:
        timer = CpuTimer(clock_ns=self._clock_ns, between=partial(self._wait, order.calls))
        return [timer.time_s(self._call, order.calls) for _ in range(order.samples)]

    def _wait(self, calls: int) -> None:
        """Waits for the other ranks, and leaves the caches that the sample should find."""
        if self._others is not None:
            self._others.evict()
        self._barrier.wait()
        if self._others is not None:
            self._others.neighbour()
        elif calls > 1:
            self._call()

    def _measure_host(self, settings: MeasureSettings) -> HostMeasurement:
        value = self._torch.zeros(1)
        self._barrier.wait()
        measured = measure_host("cpu", settings)
        # No rank should finish with idle neighbours.
        self._barrier.wait(lambda: value.add_(1.0))
        return measured


#: Least duration of a sample, in seconds. There is a wait between samples, so the first
#: microseconds of each find the caches that waiting has left.
_LEAST_SAMPLE_S = 1e-3

#: Samples that the ranks take before they answer.
_BATCH = 6


class RefusedKernelError(DseError):
    """An operator cannot be run on the ranks, for lack of memory for example; it is skipped."""


@contextmanager
def concurrent_ranks(
    ranks: int,
    threads: int,
    seed: int,
    clock_ns: Callable[[], int],
    timeout_s: float = 120.0,
) -> Iterator[ConcurrentRanks]:
    """Starts the ranks of a machine and ends them afterwards in any case.

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
                # All have opened it, so nothing is left behind however this process ends.
                path.unlink()
                yield ConcurrentRanks(group)
    except WorkerError as error:
        raise CalibrationError(f"a rank that measures operators has failed: {error}") from error


class ConcurrentRanks:
    """Ranks that run the same operators at the same time.

    Args:
        group: Their processes.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def kernel(self, point: KernelPoint, settings: MeasureSettings) -> Sample:
        """Measures one operator on all ranks.

        Args:
            point: Operator and sizes.
            settings: When to stop.

        Raises:
            RefusedKernelError: A rank cannot run it.
            WorkerError: A rank has died or does not answer.
        """
        warm_until = time.perf_counter() + settings.warm_up_s
        prepared = self._group.ask(PrepareKernel(point))
        for answer in prepared:
            if answer.refusal:
                raise RefusedKernelError(answer.refusal)
        calls = 1
        if not any(answer.one_call for answer in prepared):
            calls = self._calls()
        while time.perf_counter() < warm_until:
            self._samples_s(1, calls)
        return repeat(lambda: self._samples_s(_BATCH, calls), settings)

    def host(self, settings: MeasureSettings) -> HostMeasurement:
        """Measures the host overheads on all ranks; means, and the widest interval."""
        found: list[HostMeasurement] = self._group.ask(MeasureHost(settings))
        means = {
            field.name: statistics.fmean(values)
            for field in fields(found[0])
            if None not in (values := [getattr(host, field.name) for host in found])
        }
        means["half_width_s"] = max(host.half_width_s for host in found)
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
        return [math.fsum(times) / (calls * len(times)) for times in zip(*by_rank, strict=True)]
