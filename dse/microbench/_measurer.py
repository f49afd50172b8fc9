"""Measuring the points of a plan with torch on this machine."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
import zlib

import numpy as np

from dse.microbench._allocator import keep_freed_memory
from dse.microbench._collectives import LocalRanks, collective_ranks
from dse.microbench._host import measure_host
from dse.microbench._kernels import make_kernel
from dse.microbench._timing import CpuTimer, CudaTimer, MeasureSettings, Timer, measure
from dse.microbench._torch import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from dse.microbench._design import MeasurementPlan
    from dse.microbench._types import CollectivePoint, HostMeasurement, KernelPoint, Sample


class Measurer(Protocol):
    """What a session asks for times."""

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

    Operators run in this process with the plan's number of threads, while the other cores are
    idle: what ranks of one machine take from each other (memory bandwidth, caches, clock) is not
    in their times. Collectives run in one process a rank with the same number of threads.

    Args:
        plan: Device, threads, backend and seed.
        settings: When a point is measured well enough.
    """

    def __init__(self, plan: MeasurementPlan, settings: MeasureSettings) -> None:
        self._torch: Any = load_torch()
        self._plan = plan
        self._settings = settings
        self._timer: Timer = CudaTimer() if plan.device == "cuda" else CpuTimer()

    def kernel(self, point: KernelPoint) -> Sample:
        """Measures one operator; its operands depend on the plan's seed and the point only."""
        number = zlib.crc32(repr((point.op, point.sizes, point.precision)).encode())
        rng = np.random.default_rng((self._plan.seed, number))
        try:
            call = make_kernel(
                point.op, dict(point.sizes), point.precision, self._plan.device, rng
            )
            return measure(self._timer, call, self._settings)
        finally:
            if self._plan.device == "cuda":
                self._torch.cuda.empty_cache()

    @contextmanager
    def collectives(self, ranks: int) -> Iterator[Callable[[CollectivePoint], Sample]]:
        """Starts the ranks of a group; yields what measures one of their collectives."""
        plan = self._plan
        with collective_ranks(plan.collectives_backend, ranks, plan.threads) as group:
            yield lambda point: _measure_in(group, point, self._settings)

    def host(self) -> HostMeasurement:
        """Measures the host overheads."""
        return measure_host(self._plan.device, self._settings)


def _measure_in(group: LocalRanks, point: CollectivePoint, settings: MeasureSettings) -> Sample:
    return group.measure(point, settings)


@contextmanager
def torch_measurer(plan: MeasurementPlan, settings: MeasureSettings) -> Iterator[TorchMeasurer]:
    """Sets torch's number of threads to the plan's for the time of a session.

    On a CPU the process keeps freed memory from here on.
    """
    torch = load_torch()
    if plan.device == "cpu":
        keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        yield TorchMeasurer(plan, settings)
    finally:
        torch.set_num_threads(threads)
