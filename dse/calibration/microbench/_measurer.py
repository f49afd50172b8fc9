"""Measuring the points of a plan with torch on this machine."""

from __future__ import annotations

from contextlib import contextmanager
import time
from typing import TYPE_CHECKING, Any, Protocol

from dse._torch import load_torch
from dse.calibration.microbench._machine import keep_freed_memory
from dse.calibration.microbench.operators._operands import ColdCaches, point_kernel
from dse.calibration.microbench.ranks._collectives import collective_ranks
from dse.calibration.microbench.ranks._concurrent import concurrent_ranks
from dse.calibration.microbench.timing._host import measure_host
from dse.calibration.microbench.timing._timers import (
    CpuTimer,
    CudaTimer,
    MeasureSettings,
    Timer,
    measure,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from dse.calibration.microbench.plan._design import MeasurementPlan
    from dse.calibration.microbench.plan._points import (
        CollectivePoint,
        HostMeasurement,
        KernelPoint,
        Sample,
    )
    from dse.calibration.microbench.ranks._concurrent import ConcurrentRanks


class Measurer(Protocol):
    """Source of a session's times."""

    def kernel(self, point: KernelPoint) -> Sample:
        """Measures one operator."""

    def collectives(
        self, ranks: int
    ) -> AbstractContextManager[Callable[[CollectivePoint], Sample]]:
        """Starts the ranks of a group; yields what measures one of their collectives."""

    def host(self) -> HostMeasurement:
        """Measures the host overheads."""


class TorchMeasurer:
    """Times of this machine.

    Tables take turns in training, so their lookups and updates find caches that others have
    filled: on a CPU a block of twice the last cache is written before each call, and another
    table has its turn, of each of some sizes; on a GPU caches are emptied for any operator.

    With several busy devices, operators and host overheads are measured on all of them at once;
    with one, in this process while the other cores are idle. The times of the latter lack the
    contention between the ranks of a machine (memory bandwidth, caches, clock). Collectives run in
    one process per rank. All compute with the plan's number of threads.

    Args:
        plan: Device, threads, backend and seed.
        settings: When a point is measured well enough.
        clock_ns: Clock of operators on a CPU, in nanoseconds.
        busy: Ranks that measure operators together.
    """

    def __init__(
        self,
        plan: MeasurementPlan,
        settings: MeasureSettings,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        busy: ConcurrentRanks | None = None,
    ) -> None:
        self._torch: Any = load_torch()
        self._plan = plan
        self._settings = settings
        self._timer: Timer = CudaTimer() if plan.device == "cuda" else CpuTimer(clock_ns=clock_ns)
        self._clock_ns = clock_ns
        self._cold = ColdCaches(plan.seed)
        self._busy = busy

    def kernel(self, point: KernelPoint) -> Sample:
        """Measures one operator; its operands depend on the plan's seed and the point only."""
        if self._busy is not None:
            return self._busy.kernel(point, self._settings)
        try:
            call = point_kernel(point, self._plan.device, self._plan.seed)
            timer = self._timer
            empty = self._cold.before(point.op) if self._plan.device == "cpu" else None
            if empty is not None:
                timer = CpuTimer(clock_ns=self._clock_ns, between=empty)
            return measure(timer, call, self._settings)
        finally:
            if self._plan.device == "cuda":
                self._torch.cuda.empty_cache()

    @contextmanager
    def collectives(self, ranks: int) -> Iterator[Callable[[CollectivePoint], Sample]]:
        """Starts the ranks of a group; yields what measures one of their collectives."""
        plan = self._plan
        if self._busy is not None:
            self._busy.release()
        with collective_ranks(plan.collectives_backend, ranks, plan.threads) as group:
            yield lambda point: group.measure(point, self._settings)

    def host(self) -> HostMeasurement:
        """Measures the host overheads."""
        if self._busy is not None:
            return self._busy.host(self._settings)
        return measure_host(self._plan.device, self._settings)


@contextmanager
def torch_measurer(
    plan: MeasurementPlan,
    settings: MeasureSettings,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Iterator[TorchMeasurer]:
    """Sets torch's number of threads to the plan's for the time of a session.

    On a CPU the process keeps freed memory from here on, and the plan's busy ranks are started if
    there are several. Where other programs run, `clock_ns` may be the processor time of the
    process.
    """
    torch = load_torch()
    if plan.busy_devices > 1:
        with concurrent_ranks(plan.busy_devices, plan.threads, plan.seed, clock_ns) as busy:
            yield TorchMeasurer(plan, settings, clock_ns, busy)
        return
    if plan.device == "cpu":
        keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        yield TorchMeasurer(plan, settings, clock_ns)
    finally:
        torch.set_num_threads(threads)
