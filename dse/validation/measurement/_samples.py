"""When to stop sampling: the stopping rule of a measurement."""

from __future__ import annotations

from dataclasses import dataclass
import math
import statistics
from typing import TYPE_CHECKING

from dse._median import FEWEST_SAMPLES, median_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

_MIN_ITERATIONS, _MAX_ITERATIONS = 2, 1000


@dataclass(frozen=True, slots=True)
class MeasureLimits:
    """Stopping rule of a measurement.

    Attributes:
        budget_s: Time for all candidates, in seconds; exceeded only to complete six rounds.
        target_half_width: Stop when half of each median's 95 % interval, relative to the median,
            is at most this.
        max_rounds: Stop after this many rounds.
        sample_s: Shortest duration of a sample, in seconds.
        warm_up: Iterations before each sample.
    """

    budget_s: float = 60.0
    target_half_width: float = 0.02
    max_rounds: int = 200
    sample_s: float = 0.15
    warm_up: int = 2

    def iterations(self, iteration_s: float) -> int:
        """Returns the iterations of a sample from an estimate of one iteration, in seconds."""
        return min(_MAX_ITERATIONS, max(_MIN_ITERATIONS, math.ceil(self.sample_s / iteration_s)))

    def converged(self, samples: Sequence[float]) -> bool:
        """Returns whether the interval of the median is narrow enough."""
        low_s, high_s = median_interval(samples)
        return 0.5 * (high_s - low_s) / statistics.median(samples) <= self.target_half_width

    def reached(
        self, samples: Sequence[Sequence[float]], elapsed_s: float, budget_s: float | None = None
    ) -> bool:
        """Returns whether to stop.

        Args:
            samples: Samples of each candidate, in equal numbers.
            elapsed_s: Time used so far, in seconds.
            budget_s: Replaces the budget of all candidates.
        """
        rounds = len(samples[0])
        if rounds < FEWEST_SAMPLES:
            return False
        late = elapsed_s >= (self.budget_s if budget_s is None else budget_s)
        return late or rounds >= self.max_rounds or all(map(self.converged, samples))
