"""Median of repeated measurements, and the interval in which the true one lies.

Of ``n`` samples in order, the ``j``-th smallest and the ``j``-th largest enclose the true median
with probability ``1 − 2 P(Bin(n, ½) < j)``; ``j`` is the largest number for which that is at least
95 %. Only independent samples are assumed, nothing about the noise. Where sampling stops because
the interval is narrow, the true coverage is a little lower.
"""

from __future__ import annotations

from functools import cache
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Fewest samples whose median has a 95 % interval: 1 − 2 · ½⁶ = 0.97.
FEWEST_SAMPLES = 6

#: The interval misses the true median once in so many times.
_ONE_IN = 20


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Returns an interval that contains the true median with a confidence of at least 95 %.

    Args:
        samples: At least one, in any order.

    Returns:
        Lower and upper end; infinite if there are too few samples.
    """
    if len(samples) < FEWEST_SAMPLES:
        return -math.inf, math.inf
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    return ordered[rank - 1], ordered[-rank]


@cache
def _rank(count: int) -> int:
    """Largest j with 2 P(Bin(count, ½) < j) ≤ 5 %."""
    tail, rank = 1, 1  # tail: outcomes with fewer than `rank` heads, of 2^count
    while 2 * (tail + math.comb(count, rank)) * _ONE_IN <= 2**count:
        tail += math.comb(count, rank)
        rank += 1
    return rank
