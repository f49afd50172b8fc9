"""What the fullest rank, or node, exchanges, given that shards are whole.

If no rank exchanges as much as a limit, at most `k` shards of at least a `k + 1`-th of it are on
one rank. So there cannot be more than `k` times as many as ranks. If some rank does, the exchange
lasts at least as long as if only this rank held something.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import ExchangeGroup, Slot
from dse.workload.dlrm.scoring._features import GroupFeature, group_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.workload.dlrm.solver.bound._layout import Plans, Relaxed

#: The largest `k`.
_MOST_TOGETHER = 8

#: Shards whose sizes are added up to find limits, and limits that are looked at.
_MOST_ADDED = 4
_MOST_LIMITS = 64

#: Relative rounding of sizes: fuller than this below a limit is as full as the limit.
ROUNDING = 1e-9

#: Least share of a choice in a solution that counts as taken.
_USED_SHARE = 1e-6

#: Least excess of shards over places that counts, as a share of the places.
_LEAST_EXCESS = 1e-6


def places_taken(sizes: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """Returns the share of all ranks, or nodes, that each choice takes, by several measures.

    The shards of a plan in which none of them exchanges as much as the limit take 1 at most.

    Args:
        sizes: What the shards of choices exchange, of one group; shape `(shards, choices)`.
        limit: What each rank, or node, stays below.

    Returns:
        Shape `(measures, choices)`, to be divided by the number of ranks, or nodes.
    """
    parts = sizes * ((1.0 + 1e-3 * ROUNDING) / limit)
    together = np.arange(1.0, _MOST_TOGETHER + 1.0)[:, None, None]
    return np.asarray((np.floor((together + 1.0) * parts) / together).sum(axis=1))


def fullest_limit(plans: Plans, found: Relaxed) -> tuple[float, ExchangeGroup, float]:
    """Returns a limit on what single ranks, or nodes, exchange that a solution cannot stay below.

    Returns:
        Seconds of the iteration that plans beyond the limit take longer, zero if there is none;
        the group; and the limit.
    """
    worst, most = (0.0, ExchangeGroup.POOLED, 0.0), 0.0
    for group in plans.partial:
        slots = exchanges_of(plans, group)
        limits = _limits(plans, group, found)
        if not slots or not len(limits):
            continue
        used = plans.choices.inside(group) & (found.shares > _USED_SHARE)
        sizes, shares = plans.choices.sizes[:, used], found.shares[used]
        seconds = plans.model.of_one_s(group, limits)
        beyond_s = np.zeros(len(limits))
        for slot in slots:
            # The steps of an exchange are in the exchange.
            if slot < len(Slot) and not plans.by_node(slot):
                missed_s = np.maximum(0.0, seconds[slot] - found.durations_s[slot])
                beyond_s += plans.times(slot) * missed_s
        for index in np.flatnonzero(beyond_s > 0).tolist():
            taken = places_taken(sizes, float(limits[index])) @ shares
            excess = float(taken.max()) / plans.places(group) - 1.0
            worth_s = min(1.0, excess) * beyond_s[index]
            if excess > _LEAST_EXCESS and worth_s > most:
                most = worth_s
                worst = (float(beyond_s[index]), group, float(limits[index]))
    return worst


def below_and_beyond(plans: Plans, group: ExchangeGroup, limit: float) -> tuple[Plans, Plans]:
    """Returns plans in which all ranks, or nodes, exchange less than a limit, and all others."""
    largest = plans.choices.sizes[0] * plans.choices.inside(group)
    fits = largest < limit * (1.0 - ROUNDING)
    below = replace(plans, open=plans.open & fits, limits={**plans.limits, group: limit})
    floors = dict(plans.floors)
    seconds = plans.model.of_one_s(group, np.array([limit * (1.0 - ROUNDING)]))[:, 0]
    for slot in exchanges_of(plans, group):
        floors[slot] = max(floors.get(slot, 0.0), float(seconds[slot]))
    return below, replace(plans, floors=floors)


def exchanges_of(plans: Plans, group: ExchangeGroup) -> list[int]:
    """Returns the exchanges of a group, and their steps."""
    feature = group_column(group, GroupFeature.EXCHANGED)
    return [curve.slot for curve in plans.curves if curve.feature == feature]


def _limits(plans: Plans, group: ExchangeGroup, found: Relaxed) -> NDArray[np.float64]:
    """Returns sums of a few sizes of shards in a solution, ascending."""
    sizes = plans.choices.sizes[:, plans.choices.inside(group) & (found.shares > _USED_SHARE)]
    single = np.unique(sizes[sizes > 0])
    highest = plans.limits.get(group, np.inf)
    if not len(single):
        return single
    single = single[:: max(1, len(single) // _MOST_LIMITS)]
    sums = single
    for _ in range(_MOST_ADDED - 1):
        sums = np.unique(np.concatenate([sums, (sums[:, None] + single).reshape(-1)]))
        sums = sums[:: max(1, len(sums) // _MOST_LIMITS)]
    distinct = np.append(True, np.diff(sums) > ROUNDING * sums[1:])
    return sums[distinct & (sums < highest * (1.0 - ROUNDING))]
