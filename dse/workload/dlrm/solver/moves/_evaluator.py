"""Scores of plans, and incremental scores of their neighbours.

The features of a neighbour are those of the base plan, minus the shards that leave some ranks,
plus the shards that arrive on others. Only these ranks change; the rest of a batch is a copy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.workload.dlrm.solver._options import PlacementScope
from dse.workload.dlrm.solver.moves._plan_arrays import PlanArrays, rank_features, summed_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm import PlanScorer, PlanScores
    from dse.workload.dlrm.solver._options import ShardingOptions
    from dse.workload.dlrm.solver.moves._plans import Assignment, Change

#: Feature values of one batch; bounds memory.
_BATCH_VALUES = 12_000_000

#: Plans whose features are cached.
_PLANS_KEPT = 4

#: Share of a rank's feature below which what is left after a removal is rounding, not work.
_ROUNDING = 1e-9

#: Weight of the load spread against the iteration time: it only breaks ties.
_SPREAD_WEIGHT = 1e-3

#: Time of a plan that does not fit, for each time it would fill the memory.
OVERFLOW_S = 1e6


@dataclass(frozen=True, slots=True)
class Values:
    """Scores of a batch of plans.

    Attributes:
        time_s: Iteration time of plans that fit; other plans come after them, by overflow.
        rank_by: `time_s` plus a little of the load spread; plans are ordered by it.
        unlimited_s: Iteration time of all plans, whether they fit or not.
    """

    time_s: NDArray[np.float64]
    rank_by: NDArray[np.float64]
    unlimited_s: NDArray[np.float64]

    @classmethod
    def empty(cls, count: int) -> Values:
        """Returns room for the scores of so many plans."""
        return cls(*(np.empty(count) for _ in range(3)))

    def put(self, index: NDArray[np.int64], found: Values) -> None:
        """Sets the scores of some of the plans."""
        self.time_s[index] = found.time_s
        self.rank_by[index] = found.rank_by
        self.unlimited_s[index] = found.unlimited_s


def penalized_s(
    scorer: PlanScorer, scores: PlanScores, features: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the iteration times of plans that fit; others come after them, by overflow.

    Args:
        scorer: The performance model.
        scores: Of the plans.
        features: Their placement features; shape `(features, ranks, plans)`.
    """
    cluster = scorer.problem.cluster
    overflow = np.maximum(1.0, scores.peak_memory_bytes / cluster.device.usable_memory_bytes)
    overflow += scorer.memory.host_overflow(features, cluster)
    return np.where(scores.fits, scores.iteration_time_s, OVERFLOW_S * overflow)


class Evaluator:
    """Scores assignments, and changes of them, under the full model.

    Args:
        options: The cuts.
    """

    def __init__(self, options: ShardingOptions) -> None:
        self._options = options
        self._scorer: PlanScorer = options.scorer
        self._known: list[tuple[Assignment, NDArray[np.float64]]] = []
        self.plans_scored = 0

    def features(self, assignment: Assignment) -> NDArray[np.float64]:
        """Returns the placement features of a plan; shape `(features, ranks)`."""
        # Moves ask for the same plan several times in a row.
        for known, features in self._known:
            if known is assignment:
                return features
        features = rank_features(self._options, PlanArrays.of([assignment]))[..., 0]
        features.flags.writeable = False
        self._known = [(assignment, features), *self._known[: _PLANS_KEPT - 1]]
        return features

    def layout(self, assignment: Assignment) -> int:
        """Returns the exchange groups in use as a bit set."""
        cuts, layout = self._options.cuts, 0
        for cut in assignment.cuts:
            layout |= cuts[cut].groups
        return layout

    def value(self, assignment: Assignment) -> tuple[float, float]:
        """Returns `time_s` and `rank_by` of one plan."""
        values = self.values(assignment, [()])
        return float(values.time_s[0]), float(values.rank_by[0])

    def of_plans(self, plans: PlanArrays) -> Values:
        """Scores unrelated plans."""
        count = len(plans.cuts)
        layouts = np.bitwise_or.reduce(self._options.arrays.groups[plans.cuts], axis=1)
        values = Values.empty(count)
        request, features = self._options.request, self._options.shard_features.shape[1]
        # At most one shard of every table on every rank.
        each = features * request.world_size * len(request.tables)
        chunk = max(1, _BATCH_VALUES // each)
        for layout in np.unique(layouts):
            members = np.flatnonzero(layouts == layout)
            for start in range(0, len(members), chunk):
                index = members[start : start + chunk]
                batch = rank_features(self._options, plans.chosen(index))
                values.put(index, self._scored(int(layout), batch))
        self.plans_scored += count
        return values

    def _scored(self, layout: int, batch: NDArray[np.float64]) -> Values:
        """Scores plans of one layout, given their features."""
        scored = self._scorer.score_features(layout, batch)
        time_s = penalized_s(self._scorer, scored.scores, batch)
        rank_by = time_s + _SPREAD_WEIGHT * scored.load_s
        return Values(time_s, rank_by, scored.scores.iteration_time_s)

    def values(self, base: Assignment, changes: Sequence[Sequence[Change]]) -> Values:
        """Scores the plans that each group of changes turns a base plan into."""
        features = self.features(base)
        layouts = self._layouts(base, changes)
        values = Values.empty(len(changes))
        chunk = max(1, _BATCH_VALUES // features.size)
        for layout in np.unique(layouts):
            members = np.flatnonzero(layouts == layout)
            for start in range(0, len(members), chunk):
                index = members[start : start + chunk]
                batch = self._batch(base, features, [changes[number] for number in index])
                values.put(index, self._scored(int(layout), batch))
        self.plans_scored += len(changes)
        return values

    def _layouts(self, base: Assignment, changes: Sequence[Sequence[Change]]) -> NDArray[np.int64]:
        """Returns the layout of every changed plan, by counting the tables in each group."""
        cuts = self._options.cuts
        bits = [cuts[cut].groups for cut in base.cuts]
        tables_in = Counter(bits)
        # Groups that are left when one table leaves, by the groups of that table.
        left = {own: _in_use(tables_in - Counter((own,))) for own in tables_in}
        layouts = np.full(len(changes), self.layout(base), dtype=np.int64)
        for row, group in enumerate(changes):
            if len(group) == 1:
                old, new = bits[group[0].table], cuts[group[0].cut].groups
                if old != new:
                    layouts[row] = left[old] | new
                continue
            if all(cuts[cut].groups == bits[table] for table, cut, _ in group):
                continue
            more = Counter(cuts[change.cut].groups for change in group)
            less = Counter(bits[change.table] for change in group)
            layouts[row] = _in_use(tables_in + more - less)
        return layouts

    def _moved(
        self, base: Assignment, changes: Sequence[Sequence[Change]]
    ) -> tuple[_ShardDelta, _ShardDelta, _Everywhere]:
        """Returns the shards that leave their ranks, those that arrive, and those of all ranks."""
        options = self._options
        cuts = options.cuts
        columns = [column for column, group in enumerate(changes) for _ in group]
        present: dict[int, tuple[Sequence[int], Sequence[int]]] = {}
        leaving, coming = _ShardDelta(columns, [], [], []), _ShardDelta(columns, [], [], [])
        everywhere = _Everywhere([], [], [])
        _, old_lengths, old_rows, old_ranks = leaving
        _, new_lengths, new_rows, new_ranks = coming
        for column, group in enumerate(changes):
            for table, cut, places in group:
                old, new = cuts[base.cuts[table]], cuts[cut]
                if old.scope is PlacementScope.ALL and old.even:
                    everywhere.add(column, old.first_rows[0], -1.0)
                    old_lengths.append(0)
                else:
                    known = present.get(table)
                    if known is None:
                        known = options.placed_lists(base.cuts[table], base.places[table])
                        present[table] = known
                    old_lengths.append(len(known[0]))
                    old_rows += known[0]
                    old_ranks += known[1]
                if new.hot != old.hot:
                    if old.hot >= 0:
                        everywhere.add(column, old.hot, -1.0)
                    if new.hot >= 0:
                        everywhere.add(column, new.hot, 1.0)
                # By far the most common case first.
                if new.scope is PlacementScope.RANK:
                    rows: Sequence[int] = new.first_rows
                    ranks: Sequence[int] = places
                elif new.scope is PlacementScope.ALL and new.even:
                    everywhere.add(column, new.first_rows[0], 1.0)
                    rows, ranks = (), ()
                else:
                    rows, ranks = options.placed_lists(cut, places)
                new_lengths.append(len(rows))
                new_rows += rows
                new_ranks += ranks
        return leaving, coming, everywhere

    def _batch(
        self,
        base: Assignment,
        features: NDArray[np.float64],
        changes: Sequence[Sequence[Change]],
    ) -> NDArray[np.float64]:
        """Returns features of the changed plans; shape `(features, ranks, plans)`."""
        count, ranks = len(changes), features.shape[1]
        used, values = self._options.columns, self._options.shard_values
        present = features[used][:, :, None]
        batch = np.zeros((len(features), ranks, count))
        batch[used] = present
        leaving, coming, everywhere = self._moved(base, changes)
        if everywhere.columns:
            columns = np.array(everywhere.columns)
            differ = np.unique(columns)
            signed = values[everywhere.rows] * np.array(everywhere.signs)[:, None]
            held = present + summed_by(columns, signed, count)[:, None, differ]
            held[np.abs(held) <= _ROUNDING * present] = 0.0
            for feature, of_ranks in zip(used.tolist(), held, strict=True):
                batch[feature][:, differ] = of_ranks
        if leaving.rows or coming.rows:
            columns = np.repeat(leaving.columns + coming.columns, leaving.lengths + coming.lengths)
            keys = np.array(leaving.ranks + coming.ranks) * count + columns
            rows = np.array(leaving.rows + coming.rows)
            signs = np.repeat([-1.0, 1.0], [len(leaving.rows), len(coming.rows)])
            touched, changed = _summed(keys, rows, signs, values)
            places = used[:, None], touched
            flat = batch.reshape(len(features), -1)
            before = flat[places]
            after = before + changed.T
            after[np.abs(after) <= _ROUNDING * before] = 0.0
            flat[places] = after
        return batch


def _in_use(tables_in: Counter[int]) -> int:
    """Returns the groups of some tables, counted by their groups, as bits."""
    layout = 0
    for bits in tables_in:
        layout |= bits
    return layout


class _ShardDelta(NamedTuple):
    """Shards that leave ranks, or arrive on them.

    Attributes:
        columns: The plan that each table changes in.
        lengths: How many shards each table has.
        rows: Rows of all these shards, table by table.
        ranks: Their ranks.
    """

    columns: list[int]
    lengths: list[int]
    rows: list[int]
    ranks: list[int]


class _Everywhere(NamedTuple):
    """What arrives on all ranks alike, or leaves them.

    Attributes:
        columns: The plan that changes.
        rows: Row of the shard.
        signs: 1 where it arrives, -1 where it leaves.
    """

    columns: list[int]
    rows: list[int]
    signs: list[float]

    def add(self, column: int, row: int, sign: float) -> None:
        """Adds a shard."""
        self.columns.append(column)
        self.rows.append(row)
        self.signs.append(sign)


def _summed(
    keys: NDArray[np.int64],
    rows: NDArray[np.int64],
    signs: NDArray[np.float64],
    features: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Sums arriving and leaving rows by key, in ascending order of row.

    A row that leaves and returns adds nothing, not even a rounding error.

    Args:
        keys: Key of each row; shape `(entries,)`.
        rows: Row numbers; shape `(entries,)`.
        signs: 1 for arriving rows, -1 for leaving rows; shape `(entries,)`.
        features: Values of all rows; shape `(rows, features)`.

    Returns:
        Distinct keys, ascending; shape `(keys,)`. Their sums; shape `(keys, features)`.
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
