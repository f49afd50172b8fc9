"""From samples of an iteration time to its median and an interval."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Fewest samples that have a 95 % interval of the median: 1 − 2 · ½⁶ = 0.97.
FEWEST_SAMPLES = 6


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Returns an interval that holds the true median with at least the given confidence.

    It is the binomial interval of the order statistics (`scipy.stats.quantile_test`) and assumes
    nothing of the noise but that samples are independent.

    Args:
        samples: In any order; at least one.
        confidence: More than 0, less than 1.

    Returns:
        Lower and upper end; infinite where there are too few samples for one.
    """
    from scipy.stats import quantile_test

    test: Any = quantile_test(samples, q=statistics.median(samples), p=0.5)
    interval = test.confidence_interval(confidence)
    low, high = float(interval.low), float(interval.high)
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)
