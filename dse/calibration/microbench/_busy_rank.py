"""What one rank does while all ranks of a machine run the same operator.

The other side is `_busy`; how ranks start and end is the business of `dse.launch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dse.calibration.microbench._allocator import keep_freed_memory
from dse.calibration.microbench._host import measure_host
from dse.calibration.microbench._in_step import InStep
from dse.calibration.microbench._operands import ColdCaches, OtherTables, point_kernel
from dse.calibration.microbench._timing import CpuTimer
from dse.calibration.microbench._torch import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dse.calibration.microbench._timing import MeasureSettings
    from dse.calibration.microbench._types import HostMeasurement, KernelPoint
    from dse.launch import RankContext, Worker


@dataclass(frozen=True, slots=True)
class PrepareKernel:
    """Tells a rank to make the operands of a point, its own, and to run it once."""

    point: KernelPoint


@dataclass(frozen=True, slots=True)
class TakeSamples:
    """Tells a rank to take samples of the prepared point, each in step with the other ranks.

    Attributes:
        samples: How many.
        calls: Calls of each.
    """

    samples: int
    calls: int


@dataclass(frozen=True, slots=True)
class MeasureHost:
    """Tells a rank to measure its host overheads while the others do."""

    settings: MeasureSettings


@dataclass(frozen=True, slots=True)
class Release:
    """Tells a rank to free its operands."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Operands are made.

    Attributes:
        refusal: Why not, or empty.
        one_call: Every sample is one call, as caches are emptied before each.
    """

    refusal: str = ""
    one_call: bool = False


def kernel_worker(
    path: Path, seed: int, clock_ns: Callable[[], int], context: RankContext
) -> Worker:
    """Returns what answers a rank's orders.

    The answer to :class:`PrepareKernel` is :class:`Prepared`, to :class:`TakeSamples` the list of
    seconds of the samples, to :class:`MeasureHost` the figures, to :class:`Release` ``None``. What
    a point may raise is a refusal; every other failure ends the rank.

    Args:
        path: Counters that the ranks share.
        seed: Seed of the operands.
        clock_ns: Clock of the samples, in nanoseconds.
        context: Which rank this is.
    """
    keep_freed_memory()
    meeting = InStep(path, context.rank, context.world_size)
    cold = ColdCaches(seed, context.world_size)
    return _KernelWorker(load_torch(), meeting, cold, seed, clock_ns).answer


class _KernelWorker:
    def __init__(
        self,
        torch: Any,
        meeting: InStep,
        cold: ColdCaches,
        seed: int,
        clock_ns: Callable[[], int],
    ) -> None:
        self._torch = torch
        self._meeting = meeting
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
        raise TypeError(f"a rank does not know what to do with {order!r}")

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
        timer = CpuTimer(clock_ns=self._clock_ns, between=partial(self._meet, order.calls))
        return [timer.time_s(self._call, order.calls) for _ in range(order.samples)]

    def _meet(self, calls: int) -> None:
        """SyncScope the other ranks with the caches that the sample should find."""
        if self._others is not None:
            self._others.evict()
        self._meeting.wait()
        if self._others is not None:
            self._others.neighbour()
        elif calls > 1:
            self._call()

    def _measure_host(self, settings: MeasureSettings) -> HostMeasurement:
        value = self._torch.zeros(1)
        self._meeting.wait()
        measured = measure_host("cpu", settings)
        # The others should not be alone at the end.
        self._meeting.wait(lambda: value.add_(1.0))
        return measured
