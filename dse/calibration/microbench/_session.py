"""Sessions: the points of a plan within a time budget, logged one by one.

The host overheads come first; they take a second. Operators have two thirds of the budget,
collectives the rest in equal parts for each number of ranks; time left over passes to the next
part, and from collectives back to operators. A point that has begun is finished, so a session
exceeds its budget by one point at most.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
import time
from typing import TYPE_CHECKING, TypeVar

from dse.calibration.microbench._machine import describe_machine
from dse.calibration.microbench._measurer import Measurer, torch_measurer
from dse.calibration.microbench.log import SessionLog, SessionResult
from dse.calibration.microbench.plan import (
    CollectivePoint,
    KernelPoint,
    MachineInfo,
    Sample,
    SkippedPoint,
    measured,
)
from dse.calibration.microbench.ranks import RefusedCollectiveError, RefusedKernelError
from dse.calibration.microbench.timing import MeasureSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from dse.calibration.microbench.plan import MeasurementPlan


_Point = TypeVar("_Point", KernelPoint, CollectivePoint)

#: Share of the budget for operators when there are collectives to measure.
_KERNEL_SHARE = 2 / 3

#: What a point may raise without ending the session: no memory, no such kernel.
_POINT_ERRORS = (RuntimeError, MemoryError, ValueError, RefusedCollectiveError, RefusedKernelError)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a session.

    Attributes:
        stage: ``host``, ``kernels`` or ``collectives``.
        done: Points that are measured or skipped, those of earlier sessions included.
        planned: Points of the plan.
        elapsed_s: Time since this session began, in seconds.
    """

    stage: str
    done: int
    planned: int
    elapsed_s: float


def run_session(
    plan: MeasurementPlan,
    log_path: Path,
    budget_s: float,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    settings: MeasureSettings | None = None,
    measurer: Measurer | None = None,
    machine: MachineInfo | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SessionResult:
    """Measures the points of a plan that are not in the log yet, until the budget is used up.

    An interrupt ends the session at once; the log keeps what is finished, and the next session
    with the same options goes on from there. Collectives may be added to a log without them, and
    left out again; no point is measured twice.

    Args:
        plan: What is measured.
        log_path: The log; started when it is missing, continued when it is of the same options.
        budget_s: Time for this session once its ranks are there, in seconds.
        on_progress: Called after every point.
        settings: When a point is measured well enough; the defaults if omitted.
        measurer: Source of the times; torch on this machine if omitted.
        machine: The machine; detected if omitted.
        clock: Monotonic clock, in seconds.

    Returns:
        Everything that is in the log now.

    Raises:
        CalibrationError: The log is of other options or another machine, or a rank of a
            collective died.
        OptionalDependencyError: torch is not installed.
    """
    machine = machine or describe_machine(plan.device)
    log = SessionLog(log_path, plan, machine)
    ready: AbstractContextManager[Measurer] = (
        torch_measurer(plan, settings or MeasureSettings())
        if measurer is None
        else nullcontext(measurer)
    )
    with ready as chosen:
        session = _Session(plan, log, budget_s, on_progress, chosen, clock)
        session.run()
    return log.read()


class _Session:
    """One run over the rest of a plan."""

    def __init__(
        self,
        plan: MeasurementPlan,
        log: SessionLog,
        budget_s: float,
        on_progress: Callable[[Progress], None] | None,
        measurer: Measurer,
        clock: Callable[[], float],
    ) -> None:
        self._log = log
        self._measurer = measurer
        self._clock = clock
        self._on_progress = on_progress
        self._start_s = clock()
        self._budget_s = budget_s
        before = log.read()
        self._done, self._planned = before.done, before.planned
        finished: set[KernelPoint | CollectivePoint | None] = {
            *(record.point for record in before.kernels),
            *(record.point for record in before.collectives),
            *(record.point for record in before.skipped),
        }
        self._host = plan.host and before.host is None and None not in finished
        self._kernels = [point for point in plan.kernels_in_order() if point not in finished]
        self._collectives = [point for point in plan.collectives if point not in finished]

    def run(self) -> None:
        end_s = self._start_s + self._budget_s
        if self._host:
            self._measure_host()
        share = _KERNEL_SHARE if self._collectives else 1.0
        self._measure_kernels(self._start_s + share * self._budget_s)
        sizes_of_groups = sorted({point.ranks for point in self._collectives})
        for index, ranks in enumerate(sizes_of_groups):
            left_s = end_s - self._clock()
            if left_s > 0:
                until_s = end_s - left_s + left_s / (len(sizes_of_groups) - index)
                self._measure_collectives(ranks, until_s)
        self._measure_kernels(end_s)

    def _measure_host(self) -> None:
        try:
            self._log.add(self._measurer.host())
        except _POINT_ERRORS as error:
            self._log.add(SkippedPoint(None, _reason(error)))
        self._report("host")

    def _measure_kernels(self, until_s: float) -> None:
        while self._kernels and self._clock() < until_s:
            point = self._kernels.pop(0)
            self._measure(point, self._measurer.kernel, "kernels")

    def _measure_collectives(self, ranks: int, until_s: float) -> None:
        points = [point for point in self._collectives if point.ranks == ranks]
        with self._measurer.collectives(ranks) as measure:
            for point in points:
                if self._clock() >= until_s:
                    break
                self._measure(point, measure, "collectives")

    def _measure(self, point: _Point, measure: Callable[[_Point], Sample], stage: str) -> None:
        try:
            sample = measure(point)
        except _POINT_ERRORS as error:
            self._log.add(SkippedPoint(point, _reason(error)))
        else:
            self._log.add(measured(point, sample))
        self._report(stage)

    def _report(self, stage: str) -> None:
        self._done += 1
        if self._on_progress is not None:
            elapsed_s = self._clock() - self._start_s
            self._on_progress(Progress(stage, self._done, self._planned, elapsed_s))


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
