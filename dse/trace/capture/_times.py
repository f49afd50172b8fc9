"""How long iterations take, with and without the profiler."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dse.trace.capture._settings import CaptureSettings


class StepTimes:
    """Times of iterations, without what the capture itself does between them.

    Args:
        settings: Says which iterations are recorded.
        clock: Gives the time in seconds.
    """

    def __init__(
        self, settings: CaptureSettings, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._began: dict[int, float] = {}
        self._took_s: dict[int, float] = {}

    def begin(self, step: int) -> None:
        """Iteration `step` begins, everything between iterations is done."""
        self._began[step] = self._clock()

    def end(self, step: int) -> None:
        """Iteration `step` has ended."""
        if step in self._began:
            self._took_s[step] = self._clock() - self._began[step]

    def forget(self) -> None:
        """Forgets all iterations."""
        self._began.clear()
        self._took_s.clear()

    @property
    def profiled_s(self) -> float | None:
        """Mean time of recorded iterations in seconds."""
        return self._mean_s(range(self._settings.first, self._settings.end))

    @property
    def unprofiled_s(self) -> float | None:
        """Mean time of iterations without the profiler in seconds, or None if there were none.

        The first iteration of all and the first after the recording do not count: they do work
        that others do not, or wait for ranks that still write.
        """
        return self._mean_s(
            (
                *range(1, self._settings.skip),
                *range(self._settings.end + 1, self._settings.last_timed),
            )
        )

    def drains(self, step: int) -> bool:
        """Whether devices must be idle between iteration `step - 1` and `step`.

        Those are the ends of what is measured; in between, devices run behind their hosts as
        they do without a capture.
        """
        of = self._settings
        return step in (1, of.skip, of.first, of.end, of.end + 1, of.last_timed)

    def _mean_s(self, steps: Iterable[int]) -> float | None:
        took_s = [self._took_s[step] for step in steps if step in self._took_s]
        return sum(took_s) / len(took_s) if took_s else None
