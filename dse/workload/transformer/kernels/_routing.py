"""How tokens are routed: rows of the busiest rank of a group over the mean, and places of a token.

The popularity of experts follows Zipf's law with one exponent, as that of embedding rows does, and
experts are on ranks in no particular order. The share of a rank is then the mean of its experts',
and the busiest of many ranks has the expected largest one.
"""

from __future__ import annotations

from functools import lru_cache
import math
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from dse.machine.kernels import places_visited

if TYPE_CHECKING:
    from dse.model import MixtureOfExperts


class Load(NamedTuple):
    """Rows of the busiest rank over the mean of its group.

    Attributes:
        mean: Expected, over the layers.
        spread: Standard deviation of its logarithm in one layer.
    """

    mean: float
    spread: float


def places_of_token(experts: MixtureOfExperts, places: int) -> float:
    """Returns how many of the ranks, or nodes, that share a layer's experts a token visits."""
    return places_visited(
        experts.count,
        experts.active,
        places,
        groups=experts.router_groups,
        active_groups=experts.active_groups,
    )


@lru_cache(maxsize=1024)
def busiest_load(experts: MixtureOfExperts, group: int) -> Load:
    """Returns the load of the busiest of the ranks that share a layer's experts.

    Args:
        experts: The mixture.
        group: Ranks, with as many experts each.
    """
    mean, deviation = experts.imbalance, 0.0
    held = experts.count // group
    if experts.skew and group > 1:
        shares = [rank**-experts.skew for rank in range(1, experts.count + 1)]
        total = sum(shares)
        popular = [share * experts.count / total for share in shares]
        variance = sum((share - 1.0) ** 2 for share in popular) / experts.count
        # Of `held` experts drawn without replacement.
        variance *= (experts.count - held) / (max(1, experts.count - 1) * held)
        # Expected largest of independent draws (Blom), and Gumbel's deviation of it.
        largest = NormalDist().inv_cdf((group - 0.375) / (group + 0.25))
        deviation = math.sqrt(variance)
        # A rank has at most the most popular experts, and no token visits one twice.
        most = min(sum(popular[:held]) / held, experts.count / experts.active, group)
        mean *= min(1.0 + largest * deviation, most)
        deviation *= min(1.0, math.pi / math.sqrt(12.0 * math.log(group)))
    if experts.capacity_factor is not None:
        pads = experts.pads_to_capacity
        if pads or mean > experts.capacity_factor:
            mean, deviation = experts.capacity_factor, 0.0
    return Load(mean, deviation / mean)
