"""Loads of single ranks under a plan, as a few additive numbers.

A search needs to know which rank is the busiest and what a shard would add to another one, long
before it knows the whole plan. Kernel launches apart, the seconds of lookups and updates and the
volumes of the exchanges are sums over the shards of a rank. What one more unit of the largest of
them costs the iteration follows from the full model, by a small change around one plan.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm.iteration._durations import lookup_durations_s
from dse.workload.dlrm.scoring._features import (
    SYNCED_FEATURE_COUNT,
    ExchangeGroup,
    GroupFeature,
    RankFeature,
    group_column,
    link_column,
    rank_column,
)
from dse.workload.dlrm.scoring._slots import Slot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.workload.dlrm._problem import DlrmProblem

#: Relative change around a plan by which marginal costs are taken.
CHANGE = 0.05


class RankLoad(IntEnum):
    """Additive loads of a rank.

    LOOKUP, UPDATE: seconds in kernels. EXCHANGE: pooled values a sample that it holds whole for
    the all-to-all. INPUT: bytes of indices it receives.
    """

    LOOKUP = 0
    UPDATE = 1
    EXCHANGE = 2
    INPUT = 3


#: The load of which each term of :func:`rank_loads_and_terms` is an alternative: device memory and
#: cache work at the same time, so a rank is busy for the longer one of two sums, not for a sum of
#: the longer.
TERM_LOADS = (
    RankLoad.LOOKUP,
    RankLoad.LOOKUP,
    RankLoad.UPDATE,
    RankLoad.UPDATE,
    RankLoad.EXCHANGE,
    RankLoad.INPUT,
)


def lookup_and_update_s(slots: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Returns the seconds of lookups and of updates; shape of `slots` without its first axis."""
    forward = slots[Slot.POOLED_LOOKUP : Slot.POOLED_UPDATE].sum(axis=0)
    backward = slots[Slot.POOLED_UPDATE : Slot.INPUT_EXCHANGE].sum(axis=0)
    return np.asarray(forward), np.asarray(backward)


def rank_loads(problem: DlrmProblem, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the loads of shards, or of sums of shards, without the launches of kernels.

    Args:
        problem: Everything but the plan.
        features: Placement features; shape `(features, shards)`.

    Returns:
        Shape `(loads, shards)`.
    """
    every_group = (1 << len(ExchangeGroup)) - 1
    once_and_twice = np.stack((features, 2.0 * features), axis=1)
    seconds = lookup_and_update_s(lookup_durations_s(problem, every_group, once_and_twice))
    loads = np.empty((len(RankLoad), features.shape[1]))
    for load, (single, double) in zip((RankLoad.LOOKUP, RankLoad.UPDATE), seconds, strict=True):
        # The launches are in both: the difference is the work alone.
        loads[load] = double - single
    exchanged = group_column(ExchangeGroup.POOLED, GroupFeature.EXCHANGED)
    loads[RankLoad.EXCHANGE] = features[exchanged]
    loads[RankLoad.INPUT] = features[rank_column(RankFeature.INPUT)]
    return loads


def rank_loads_and_terms(
    problem: DlrmProblem, features: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns loads, and what adds up within one exchange group: memory and cache apart.

    Args:
        problem: Everything but the plan.
        features: Placement features; shape `(features, shards)`.

    Returns:
        The loads; shape `(loads, shards)`. One row for each of `TERM_LOADS`; shape
        `(terms, shards)`.
    """
    without_cache, without_memory = features.copy(), features.copy()
    for group in ExchangeGroup:
        for feature in (GroupFeature.FORWARD_CACHE, GroupFeature.BACKWARD_CACHE):
            without_cache[group_column(group, feature)] = 0.0
        for feature in (GroupFeature.FORWARD_MEMORY, GroupFeature.BACKWARD_MEMORY):
            without_memory[group_column(group, feature)] = 0.0
    # Calls are what costs, so all three are one.
    three = rank_loads(problem, np.concatenate((features, without_cache, without_memory), axis=1))
    loads, memory, cache = np.split(three, 3, axis=1)
    rows = [
        memory[RankLoad.LOOKUP],
        cache[RankLoad.LOOKUP],
        memory[RankLoad.UPDATE],
        cache[RankLoad.UPDATE],
        memory[RankLoad.EXCHANGE],
        memory[RankLoad.INPUT],
    ]
    return loads, np.array(rows)


def changed_features(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns a plan's features, and with each load in turn a little larger on all ranks.

    Args:
        features: Of one plan; shape `(features, ranks)`.

    Returns:
        Shape `(features, ranks, 1 + loads)`.
    """
    batch = np.repeat(features[:, :, None], 1 + len(RankLoad), axis=2)
    batch[:, :, 1:] *= _changes(len(features))
    return batch


@cache
def _changes(width: int) -> NDArray[np.float64]:
    """Returns the factors of all features, for each load; shape `(features, 1, loads)`."""
    columns: dict[RankLoad, list[int]] = {load: [] for load in RankLoad}
    for group in ExchangeGroup:
        for feature in GroupFeature:
            name = feature.name
            column = group_column(group, feature)
            if name.startswith("FORWARD"):
                columns[RankLoad.LOOKUP].append(column)
            elif name.startswith("BACKWARD"):
                columns[RankLoad.UPDATE].append(column)
        if width > SYNCED_FEATURE_COUNT and group is not ExchangeGroup.REPLICATED:
            columns[RankLoad.LOOKUP].append(link_column(group, 0))
            columns[RankLoad.UPDATE].append(link_column(group, 1))
    columns[RankLoad.EXCHANGE].append(group_column(ExchangeGroup.POOLED, GroupFeature.EXCHANGED))
    columns[RankLoad.INPUT].append(rank_column(RankFeature.INPUT))
    factors = np.ones((width, 1, len(RankLoad)))
    for load, chosen in columns.items():
        factors[chosen, 0, load] = 1.0 + CHANGE
    return factors
