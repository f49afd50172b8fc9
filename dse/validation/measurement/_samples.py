"""Statistics of samples: median, its interval, and when to stop sampling."""

from __future__ import annotations

from dataclasses import dataclass
import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Fewest samples whose median has a 95 % interval: 1 − 2 · ½⁶ = 0.97.
FEWEST_SAMPLES = 6

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


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Returns an interval that contains the true median with a confidence of at least 95 %.

    This is the binomial interval of the order statistics (`scipy.stats.quantile_test`). It assumes
    only that the samples are independent.

    Args:
        samples: At least one, in any order.

    Returns:
        Lower and upper end; infinite if there are too few samples.
    """
    from scipy.stats import quantile_test

    test: Any = quantile_test(samples, q=statistics.median(samples), p=0.5)
    interval = test.confidence_interval(0.95)
    low, high = float(interval.low), float(interval.high)
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)
