"""Robust figures from samples with outliers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.machine.host import Figure, spread_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Tukey's fence for outliers, in interquartile ranges.
_FENCE = 3.0
#: Many traces only have whole microseconds, so quartiles below one are meaningless.
_RESOLUTION_NS = 1000.0


def figure_of(samples_ns: Sequence[int]) -> Figure | None:
    """Returns mean and spread of samples without outliers; None without samples.

    Overheads are skewed and their sum matters, so genuine samples must not be cut: the fence lies
    three interquartile ranges of the *logarithm* above the upper quartile. A fence on the times, a
    trimmed mean and a median lose a fifth and more of the sum; a plain mean keeps the loading of
    code and full queues, which do not recur.

    Args:
        samples_ns: Times in ns.
    """
    if not samples_ns:
        return None
    samples = np.asarray(samples_ns, dtype=np.float64)
    kept = samples[samples <= _fence_ns(samples)]
    mean = float(kept.mean())
    return Figure(1e-9 * mean, spread_of(mean, float(kept.var())), len(samples))


def far_out_ns(samples_ns: Sequence[int]) -> float:
    """Returns the excess of the outliers over the mean of the other samples, in ns."""
    samples = np.asarray(samples_ns, dtype=np.float64)
    usual = samples <= _fence_ns(samples)
    return float((samples[~usual] - samples[usual].mean()).sum())


def _fence_ns(samples: NDArray[np.float64]) -> float:
    low, high = np.quantile(samples, (0.25, 0.75))
    low, high = max(low, _RESOLUTION_NS), max(high, 2 * _RESOLUTION_NS)
    return float(high * (high / low) ** _FENCE)
