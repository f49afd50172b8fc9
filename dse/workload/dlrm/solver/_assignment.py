"""A sharding plan inside the search, and the scoring of plans that differ from it in few tables.

A neighbour's features are the base's plus what a few parts take from some ranks and add to others.
Only these ranks are touched; everything else of the batch is a copy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.sharding import ShardingPlan
from dse.workload.dlrm.solver._catalogue import Reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver._catalogue import Catalogue

#: Feature values of one batch; bounds memory.
_BATCH_VALUES = 12_000_000

#: Plans whose features are remembered.
_PLANS_KEPT = 4

#: Share of a rank's feature below which what is left after a removal is rounding, not work.
_ROUNDING = 1e-9

#: Weight of the even spread of the load beside the iteration time: decides among equal times only.
_SPREAD_WEIGHT = 1e-3

#: Seconds that a plan counts for each time it would fill the memory, when it does not fit.
_OVERFLOW_S = 1e6


class Change(NamedTuple):
    """Another cut or other places of one table."""

    table: int
    cut: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A plan: for every table its cut and the places of the cut's parts.

    Attributes:
        cuts: Numbers in the catalogue, by table.
        places: Ranks or nodes of the parts, by table; empty for cuts that reach all ranks.
    """

    cuts: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]

    def changed(self, changes: Sequence[Change]) -> Assignment:
        """Returns the plan with some tables placed differently."""
        cuts, places = list(self.cuts), list(self.places)
        for table, cut, where in changes:
            cuts[table], places[table] = cut, where
        return Assignment(tuple(cuts), tuple(places))


def of_plan(plan: ShardingPlan, catalogue: Catalogue) -> Assignment:
    """Returns a checked plan in terms of the catalogue."""
    placed = [catalogue.placed(index, table) for index, table in enumerate(plan.tables)]
    return Assignment(
        tuple(catalogue.ids(key for key, _ in placed)), tuple(places for _, places in placed)
    )


def to_plan(assignment: Assignment, catalogue: Catalogue) -> ShardingPlan:
    """Returns the plan that an assignment stands for."""
    tables = zip(assignment.cuts, assignment.places, strict=True)
    return ShardingPlan(
        catalogue.request.world_size, tuple(catalogue.plan(cut, places) for cut, places in tables)
    )


@dataclass(frozen=True, slots=True)
class Values:
    """How good a batch of plans is.

    Attributes:
        time_s: Iteration time of plans that fit; others rank behind them by their overflow.
        rank_by: The same with a little weight on the spread of the load, to order plans by.
    """

    time_s: NDArray[np.float64]
    rank_by: NDArray[np.float64]


class Evaluator:
    """Scores assignments and changes of them under the full model.

    Args:
        catalogue: The cuts.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._scorer: PlanScorer = catalogue.scorer
        self._cluster = self._scorer.problem.cluster
        self._usable = self._cluster.device.usable_memory_bytes
        self._known: list[tuple[Assignment, NDArray[np.float64]]] = []
        self.plans_scored = 0

    def features(self, assignment: Assignment) -> NDArray[np.float64]:
        """Returns the placement features of a plan; shape `(features, ranks)`."""
        # Steps of a search ask for the same plan several times in a row.
        for known, features in self._known:
            if known is assignment:
                return features
        features = self._features([assignment])[..., 0]
        features.flags.writeable = False
        self._known = [(assignment, features), *self._known[: _PLANS_KEPT - 1]]
        return features

    def _features(self, plans: Sequence[Assignment]) -> NDArray[np.float64]:
        """Returns the placement features of plans; shape `(features, ranks, plans)`."""
        catalogue = self._catalogue
        cuts, part_features = catalogue.cuts, catalogue.part_features
        ranks, count = catalogue.request.world_size, part_features.shape[1]
        everywhere: list[int] = []
        ends: list[int] = []
        rows: list[int] = []
        where: list[int] = []
        held = np.zeros((count, len(plans)))
        for number, plan in enumerate(plans):
            everywhere.clear()
            for cut, places in zip(plan.cuts, plan.places, strict=True):
                chosen = cuts[cut]
                if chosen.reach is Reach.RANK:
                    rows.extend(range(chosen.first, chosen.first + len(places)))
                    where.extend(places)
                elif chosen.reach is Reach.ALL:
                    everywhere.append(chosen.first)
                else:
                    on_nodes, nodes = catalogue.reached_lists(cut, places)
                    rows.extend(on_nodes)
                    where.extend(nodes)
            if everywhere:
                held[:, number] = part_features[everywhere].sum(axis=0)
            ends.append(len(rows))
        features = np.repeat(held[:, None], ranks, axis=1)
        if rows:
            values = part_features[rows]
            columns = np.repeat(np.arange(len(plans)), np.diff(ends, prepend=0))
            keys = np.array(where) * len(plans) + columns
            slots = keys[:, None] + np.arange(count) * (ranks * len(plans))
            summed = np.bincount(slots.reshape(-1), values.reshape(-1), features.size)
            features += summed.reshape(features.shape)
        return features

    def layout(self, assignment: Assignment) -> int:
        """Returns the exchange groups in use as a bit set."""
        cuts, layout = self._catalogue.cuts, 0
        for cut in assignment.cuts:
            layout |= cuts[cut].group_bit
        return layout

    def value(self, assignment: Assignment) -> tuple[float, float]:
        """Returns `time_s` and `rank_by` of one plan."""
        values = self.values(assignment, [()])
        return float(values.time_s[0]), float(values.rank_by[0])

    def of_plans(self, plans: Sequence[Assignment]) -> Values:
        """Scores plans that need not have anything in common."""
        layouts = np.array([self.layout(plan) for plan in plans])
        values = Values(np.empty(len(plans)), np.empty(len(plans)))
        request, features = self._catalogue.request, self._catalogue.part_features.shape[1]
        # A part of every table on every rank, at most.
        each = features * request.world_size * len(request.tables)
        chunk = max(1, _BATCH_VALUES // each)
        for layout in np.unique(layouts):
            members = np.flatnonzero(layouts == layout)
            for start in range(0, len(members), chunk):
                index = members[start : start + chunk]
                batch = self._features([plans[number] for number in index])
                values.time_s[index], values.rank_by[index] = self._scored(int(layout), batch)
        self.plans_scored += len(plans)
        return values

    def _scored(
        self, layout: int, batch: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns `time_s` and `rank_by` of plans of one layout, given their features."""
        scored = self._scorer.score_features(layout, batch)
        overflow = np.maximum(1.0, scored.scores.peak_memory_bytes / self._usable)
        overflow += self._scorer.memory.host_overflow(batch, self._cluster)
        time_s = np.where(
            scored.scores.fits, scored.scores.iteration_time_s, _OVERFLOW_S * overflow
        )
        return time_s, time_s + _SPREAD_WEIGHT * scored.load_s

    def values(self, base: Assignment, changes: Sequence[Sequence[Change]]) -> Values:
        """Scores plans that differ from a base in the given changes; one plan for each entry."""
        features = self.features(base)
        layouts = self._layouts(base, changes)
        time_s, rank_by = np.empty(len(changes)), np.empty(len(changes))
        chunk = max(1, _BATCH_VALUES // features.size)
        for layout in np.unique(layouts):
            members = np.flatnonzero(layouts == layout)
            for start in range(0, len(members), chunk):
                index = members[start : start + chunk]
                batch = self._batch(base, features, [changes[number] for number in index])
                time_s[index], rank_by[index] = self._scored(int(layout), batch)
        self.plans_scored += len(changes)
        return Values(time_s, rank_by)

    def _layouts(self, base: Assignment, changes: Sequence[Sequence[Change]]) -> NDArray[np.int64]:
        """Returns the layout of every changed plan, from how many tables use each group."""
        cuts = self._catalogue.cuts
        bits = [cuts[cut].group_bit for cut in base.cuts]
        tables_in = Counter(bits)
        layouts = np.full(len(changes), self.layout(base), dtype=np.int64)
        for row, group in enumerate(changes):
            if len(group) == 1:
                old, new = bits[group[0].table], cuts[group[0].cut].group_bit
                if old != new:
                    layouts[row] = layouts[row] & ~(old * (tables_in[old] == 1)) | new
                continue
            if all(cuts[cut].group_bit == bits[table] for table, cut, _ in group):
                continue
            more = Counter(cuts[change.cut].group_bit for change in group)
            less = Counter(bits[change.table] for change in group)
            layouts[row] = sum(
                bit for bit in tables_in | more if tables_in[bit] + more[bit] > less[bit]
            )
        return layouts

    def _moved(
        self, base: Assignment, changes: Sequence[Sequence[Change]]
    ) -> tuple[_Parts, _Parts]:
        """Returns the parts that leave their ranks, and those that come."""
        catalogue = self._catalogue
        cuts = catalogue.cuts
        columns = [column for column, group in enumerate(changes) for _ in group]
        present: dict[int, tuple[list[int], list[int]]] = {}
        leaving, coming = _Parts(columns, [], [], []), _Parts(columns, [], [], [])
        _, old_lengths, old_rows, old_ranks = leaving
        _, new_lengths, new_rows, new_ranks = coming
        for group in changes:
            for table, cut, places in group:
                known = present.get(table)
                if known is None:
                    known = catalogue.reached_lists(base.cuts[table], base.places[table])
                    present[table] = known
                old_lengths.append(len(known[0]))
                old_rows += known[0]
                old_ranks += known[1]
                chosen = cuts[cut]
                if len(places) == 1 and chosen.reach is Reach.RANK:
                    # By far the most.
                    new_lengths.append(1)
                    new_rows.append(chosen.first)
                    new_ranks.append(places[0])
                    continue
                rows, ranks = catalogue.reached_lists(cut, places)
                new_lengths.append(len(rows))
                new_rows += rows
                new_ranks += ranks
        return leaving, coming

    def _batch(
        self,
        base: Assignment,
        features: NDArray[np.float64],
        changes: Sequence[Sequence[Change]],
    ) -> NDArray[np.float64]:
        """Returns features of the changed plans; shape `(features, ranks, plans)`."""
        count, ranks = len(changes), features.shape[1]
        batch = np.empty((len(features), ranks, count))
        batch[:] = features[:, :, None]
        leaving, coming = self._moved(base, changes)
        if not leaving.columns:
            return batch
        columns = np.repeat(leaving.columns + coming.columns, leaving.lengths + coming.lengths)
        keys = np.array(leaving.ranks + coming.ranks) * count + columns
        rows = np.array(leaving.rows + coming.rows)
        signs = np.repeat([-1.0, 1.0], [len(leaving.rows), len(coming.rows)])
        touched, changed = _summed(keys, rows, signs, self._catalogue.part_features)
        before = features[:, touched // count]
        after = before + changed.T
        after[np.abs(after) <= _ROUNDING * before] = 0.0
        batch.reshape(len(features), -1)[:, touched] = after
        return batch


class _Parts(NamedTuple):
    """Parts that leave ranks or come to them.

    Attributes:
        columns: The plan that each table changes in.
        lengths: How many parts each table has.
        rows: Rows of all these parts, of one table after the other.
        ranks: Their ranks.
    """

    columns: list[int]
    lengths: list[int]
    rows: list[int]
    ranks: list[int]


def _summed(
    keys: NDArray[np.int64],
    rows: NDArray[np.int64],
    signs: NDArray[np.float64],
    features: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Adds up rows that come and go, by key, in ascending order of row.

    What leaves and comes back adds nothing, not even rounding.

    Args:
        keys: Where each row belongs; shape `(entries,)`.
        rows: Its number; shape `(entries,)`.
        signs: 1 for those that come, -1 for those that go; shape `(entries,)`.
        features: What rows hold; shape `(rows, features)`.

    Returns:
        Different keys, ascending; shape `(keys,)`. The sum of each; shape `(keys, features)`.
    """
    both = keys * len(features) + rows
    order = both.argsort()
    both, signs = both[order], signs[order]
    again = both[1:] == both[:-1]
    if again.any():
        first = np.flatnonzero(np.append(True, ~again))
        both, signs = both[first], np.add.reduceat(signs, first)
    keys, rows = np.divmod(both, len(features))
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    lengths = np.diff(starts, append=len(keys))
    values = features[rows]
    values *= signs[:, None]
    sums = values[starts]
    for later in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > later)
        sums[longer] += values[starts[longer] + later]
    return keys[starts], sums
