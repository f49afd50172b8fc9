"""Many plans as arrays, and what their ranks hold."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.workload.dlrm.solver.moves._plans import Assignment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._options import ShardingOptions


class PlanArrays(NamedTuple):
    """Plans as arrays: thousands of them are made and scored without an object for each.

    Attributes:
        cuts: Number of the cut of each table; shape `(plans, tables)`.
        counts: Ranks or nodes that each table names; shape `(plans, tables)`.
        places: These ranks or nodes, plan by plan and table by table; shape `(places,)`.
    """

    cuts: NDArray[np.int64]
    counts: NDArray[np.int64]
    places: NDArray[np.int64]

    @classmethod
    def of(cls, plans: Sequence[Assignment]) -> PlanArrays:
        """Converts plans of equally many tables."""
        flat = chain.from_iterable(chain.from_iterable(plan.places for plan in plans))
        return cls(
            np.array([plan.cuts for plan in plans], dtype=np.int64),
            np.array([tuple(map(len, plan.places)) for plan in plans], dtype=np.int64),
            np.fromiter(flat, np.int64),
        )

    def plan(self, number: int) -> Assignment:
        """Returns one plan."""
        begin = int(self.counts[:number].sum())
        places = []
        for count in self.counts[number].tolist():
            places.append(tuple(self.places[begin : begin + count].tolist()))
            begin += count
        return Assignment(tuple(self.cuts[number].tolist()), tuple(places))

    def chosen(self, numbers: NDArray[np.int64]) -> PlanArrays:
        """Returns some plans, in their order.

        Args:
            numbers: Their numbers, ascending; shape `(chosen,)`.
        """
        if len(numbers) == len(self.cuts):
            return self
        kept = np.zeros(len(self.cuts), dtype=bool)
        kept[numbers] = True
        of_plan = np.repeat(kept, self.counts.sum(axis=1))
        return PlanArrays(self.cuts[numbers], self.counts[numbers], self.places[of_plan])


def rank_features(options: ShardingOptions, plans: PlanArrays) -> NDArray[np.float64]:
    """Returns the placement features of plans; shape `(features, ranks, plans)`."""
    cuts, shard_values = options.arrays, options.shard_values
    ranks, width = options.request.world_size, shard_values.shape[1]
    count = len(plans.cuts)
    every = np.arange(count)
    used = plans.cuts.ravel()
    plan_of = np.repeat(every, plans.cuts.shape[1])
    held = np.zeros((width, count))
    for everywhere in (cuts.copied[used], cuts.hot[used]):
        here = np.flatnonzero(everywhere >= 0)
        if len(here):
            values = shard_values[everywhere[here]]
            held += summed_by(plan_of[here], values, count)
    values_of = np.repeat(held[:, None], ranks, axis=1)
    if len(plans.places):
        counts = plans.counts.ravel()
        owner, column = np.repeat(used, counts), np.repeat(plan_of, counts)
        shard = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        reached = cuts.reached[owner]
        first, rank = cuts.starts[owner] + shard * reached, plans.places
        if (reached > 1).any():
            # Those of whole nodes are on each of their ranks.
            local = np.arange(reached.sum()) - np.repeat(np.cumsum(reached) - reached, reached)
            size = np.where(reached > 1, options.request.devices_per_node, 1)
            first, rank = (np.repeat(part, reached) + local for part in (first, rank * size))
            column = np.repeat(column, reached)
        sums = summed_by(rank * count + column, shard_values[cuts.rows[first]], ranks * count)
        values_of += sums.reshape(values_of.shape)
    for place in np.flatnonzero(cuts.uneven[used]).tolist():
        # Each rank has its own block of rows.
        blocks = options.cuts[int(used[place])].rows[0]
        values_of[:, :, plan_of[place]] += shard_values[blocks].T
    features = np.zeros((options.shard_features.shape[1], ranks, count))
    features[options.columns] = values_of
    return features


def summed_by(
    keys: NDArray[np.int64], values: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """Returns the sums of the values of each key; shape `(columns, keys)`.

    Args:
        keys: Key of each row; shape `(rows,)`.
        values: Shape `(rows, columns)`.
        count: Keys that there may be.
    """
    width = values.shape[1]
    slots = keys[:, None] + np.arange(width) * count
    sums = np.bincount(slots.ravel(), values.ravel(), width * count)
    return np.asarray(sums, dtype=np.float64).reshape(width, count)
