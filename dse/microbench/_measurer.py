"""Measuring the points of a plan with torch on this machine."""

from __future__ import annotations

from contextlib import contextmanager
import time
from typing import TYPE_CHECKING, Any, Protocol
import zlib

import numpy as np

from dse.hardware import Precision
from dse.microbench._allocator import keep_freed_memory
from dse.microbench._collectives import LocalRanks, collective_ranks
from dse.microbench._host import measure_host
from dse.microbench._kernels import make_kernel
from dse.microbench._machine import describe_machine
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


#: Operators whose operands other tables have driven out of the caches when it is their turn.
_COLD_OPERATORS = frozenset({"embedding_forward", "embedding_backward"})

#: Written between calls of these on a CPU, where the size of its last cache is unknown.
_EVICTED_BYTES = 2**26

#: A table that is used after that, so that only data are cold and not the code.
_SMALL_TABLE = {
    "rows": 1000.0,
    "dim": 16.0,
    "batch": 32.0,
    "pooling": 2.0,
    "alpha": 0.0,
    "value_bytes": 4.0,
}


class TorchMeasurer:
    """Times of this machine.

    Tables take turns in training, so their lookups and updates find caches that others have
    filled: on a CPU a block of twice the last cache is written before each call, and a small
    table used, since the code is not new; on a GPU caches are emptied for any operator.

    Operators run in this process with the plan's number of threads, while the other cores are
    idle: what ranks of one machine take from each other (memory bandwidth, caches, clock) is not
    in their times. Collectives run in one process a rank with the same number of threads.

    Args:
        plan: Device, threads, backend and seed.
        settings: When a point is measured well enough.
        clock_ns: Clock of operators on a CPU, in nanoseconds.
    """

    def __init__(
        self,
        plan: MeasurementPlan,
        settings: MeasureSettings,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._torch: Any = load_torch()
        self._plan = plan
        self._settings = settings
        self._timer: Timer = CudaTimer() if plan.device == "cuda" else CpuTimer(clock_ns=clock_ns)
        self._clock_ns = clock_ns
        self._between: dict[str, Callable[[], None]] = {}

    def kernel(self, point: KernelPoint) -> Sample:
        """Measures one operator; its operands depend on the plan's seed and the point only."""
        number = zlib.crc32(repr((point.op, point.sizes, point.precision)).encode())
        rng = np.random.default_rng((self._plan.seed, number))
        try:
            call = make_kernel(
                point.op, dict(point.sizes), point.precision, self._plan.device, rng
            )
            timer = self._timer
            if self._plan.device == "cpu" and point.op in _COLD_OPERATORS:
                timer = CpuTimer(clock_ns=self._clock_ns, between=self._between_tables(point.op))
            return measure(timer, call, self._settings)
        finally:
            if self._plan.device == "cuda":
                self._torch.cuda.empty_cache()

    def _between_tables(self, op: str) -> Callable[[], None]:
        """Returns what brings the caches into the state that other tables leave behind."""
        if op not in self._between:
            cache_bytes = describe_machine("cpu").last_level_cache_bytes
            block = self._torch.empty(2 * cache_bytes or _EVICTED_BYTES, dtype=self._torch.int8)
            rng = np.random.default_rng(self._plan.seed)
            small = make_kernel(op, _SMALL_TABLE, Precision.FP32, "cpu", rng)

            def between() -> None:
                block.zero_()
                small()

            self._between[op] = between
        return self._between[op]

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
def torch_measurer(
    plan: MeasurementPlan,
    settings: MeasureSettings,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Iterator[TorchMeasurer]:
    """Sets torch's number of threads to the plan's for the time of a session.

    On a CPU the process keeps freed memory from here on. Where other programs run, `clock_ns` may
    be the processor time of the process.
    """
    torch = load_torch()
    if plan.device == "cpu":
        keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        yield TorchMeasurer(plan, settings, clock_ns)
    finally:
        torch.set_num_threads(threads)
