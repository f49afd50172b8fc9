"""Lengths of histories: their moments, and how much the busiest of several ranks has."""

from __future__ import annotations

import math
from statistics import NormalDist

from dse.model.dlrm._model import LENGTH_SPREAD, PoolingDistribution

#: Halvings of an interval; 64 exhaust the digits of a double.
_BISECTIONS = 64

_NORMAL = NormalDist()


def length_moment(
    distribution: PoolingDistribution, mean: float, power: int, most: float | None = None
) -> float:
    """Returns the mean of a power of a length.

    Args:
        distribution: How lengths vary.
        mean: Mean length, of those that are cut, too.
        power: 1, 2 or 4.
        most: Length at which longer ones are cut; None if they are not.

    Raises:
        ValueError: Another power of a Poisson length.
    """
    if distribution is PoolingDistribution.POISSON:
        coefficients = {1: (1,), 2: (1, 1), 4: (1, 6, 7, 1)}
        if power not in coefficients:
            raise ValueError(f"expected the power 1, 2 or 4, found {power}")
        return sum(
            factor * mean ** (power - place) for place, factor in enumerate(coefficients[power])
        )
    if distribution is PoolingDistribution.FIXED:
        return mean**power
    if most is None:
        return mean**power * math.exp(0.5 * power * (power - 1) * LENGTH_SPREAD**2)
    return _cut_moment(_location(mean, most), power, most)


def busiest_share(relative_variance: float, samples: int, ranks: int) -> float:
    """Returns the expected largest of the ranks' sums over that of an average rank.

    The sum of a rank's samples is taken to be log-normal with its mean and variance (Fenton and
    Wilkinson), and the largest of them to be at the quantile that Blom gives for it.

    Args:
        relative_variance: Variance of what one sample has, over the square of its mean.
        samples: Samples of a rank.
        ranks: Number of ranks.
    """
    if ranks == 1 or relative_variance <= 0.0:
        return 1.0
    variance = math.log1p(relative_variance / samples)
    quantile = _NORMAL.inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return max(1.0, math.exp(math.sqrt(variance) * quantile - 0.5 * variance))


def _location(mean: float, most: float) -> float:
    """Returns the logarithm's mean with which cut lengths have the mean."""
    low, high = math.log(mean) - 40.0, math.log(most) + 40.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if _cut_moment(middle, 1, most) < mean:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _cut_moment(location: float, power: int, most: float) -> float:
    """Returns the mean of a power of log-normal lengths that are cut."""
    place = (math.log(most) - location) / LENGTH_SPREAD
    below = math.exp(power * location + 0.5 * (power * LENGTH_SPREAD) ** 2)
    below *= _NORMAL.cdf(place - power * LENGTH_SPREAD)
    return below + most**power * _NORMAL.cdf(-place)
