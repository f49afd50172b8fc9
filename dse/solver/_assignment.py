"""A sharding plan inside the search, and the scoring of plans that differ from it in few tables.

A neighbour's features are the base's plus what a few parts take from some ranks and add to others.
Only these ranks are touched; everything else of the batch is a copy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from dse.sharding import ShardingPlan
from dse.solver._catalogue import Reach

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dse.prediction import PlanScorer
    from dse.solver._catalogue import Catalogue

#: Feature values of one batch; bounds memory.
_BATCH_VALUES = 12_000_000

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
        self._usable = self._scorer.problem.cluster.device.usable_memory_bytes
        self.plans_scored = 0

    def features(self, assignment: Assignment) -> NDArray[np.float64]:
        """Returns the placement features of a plan; shape `(features, ranks)`."""
        rows, ranks = [], []
        for cut, places in zip(assignment.cuts, assignment.places, strict=True):
            for part, where in self._reached(cut, places):
                rows.append(np.broadcast_to(part, (len(where), len(part))))
                ranks.append(np.array(where))
        rank = np.concatenate(ranks)
        incidence = csr_array(
            (np.ones(len(rank)), (rank, np.arange(len(rank)))),
            shape=(self._catalogue.request.world_size, len(rank)),
        )
        return np.ascontiguousarray((incidence @ np.concatenate(rows)).T)

    def layout(self, assignment: Assignment) -> int:
        """Returns the exchange groups in use as a bit set."""
        cuts = self._catalogue.cuts
        return int(np.bitwise_or.reduce([cuts[cut].group_bit for cut in assignment.cuts]))

    def value(self, assignment: Assignment) -> tuple[float, float]:
        """Returns `time_s` and `rank_by` of one plan."""
        values = self.values(assignment, [()])
        return float(values.time_s[0]), float(values.rank_by[0])

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
                scored = self._scorer.score_features(int(layout), batch)
                fits = scored.scores.fits
                overflow_s = _OVERFLOW_S * scored.scores.peak_memory_bytes / self._usable
                time_s[index] = np.where(fits, scored.scores.iteration_time_s, overflow_s)
                rank_by[index] = time_s[index] + _SPREAD_WEIGHT * scored.load_s
        self.plans_scored += len(changes)
        return Values(time_s, rank_by)

    def _layouts(self, base: Assignment, changes: Sequence[Sequence[Change]]) -> NDArray[np.int64]:
        """Returns the layout of every changed plan, from how many tables use each group."""
        cuts = self._catalogue.cuts
        tables_in = Counter(cuts[cut].group_bit for cut in base.cuts)
        layouts = np.empty(len(changes), dtype=np.int64)
        unchanged = self.layout(base)
        for row, group in enumerate(changes):
            if all(
                cuts[change.cut].group_bit == cuts[base.cuts[change.table]].group_bit
                for change in group
            ):
                layouts[row] = unchanged
                continue
            more = Counter(cuts[change.cut].group_bit for change in group)
            less = Counter(cuts[base.cuts[change.table]].group_bit for change in group)
            layouts[row] = sum(
                bit for bit in tables_in | more if tables_in[bit] + more[bit] > less[bit]
            )
        return layouts

    def _batch(
        self,
        base: Assignment,
        features: NDArray[np.float64],
        changes: Sequence[Sequence[Change]],
    ) -> NDArray[np.float64]:
        """Returns features of the changed plans; shape `(features, ranks, plans)`."""
        count, ranks = len(changes), features.shape[1]
        keys: list[int] = []
        rows: list[int] = []
        signs: list[float] = []
        parts: list[NDArray[np.float64]] = []
        first_row: dict[int, int] = {}

        def add(column: int, cut: int, places: tuple[int, ...], sign: float) -> None:
            row = first_row.get(cut)
            if row is None:
                row = first_row[cut] = sum_rows[0]
                parts.append(self._catalogue.cuts[cut].features)
                sum_rows[0] += len(parts[-1])
            for offset, (_, where) in enumerate(self._reached(cut, places)):
                keys.extend([rank * count + column for rank in where])
                rows.extend([row + offset] * len(where))
                signs.extend([sign] * len(where))

        sum_rows = [0]
        for column, group in enumerate(changes):
            for table, cut, places in group:
                add(column, base.cuts[table], base.places[table], -1.0)
                add(column, cut, places, 1.0)
        batch = np.empty((len(features), ranks, count))
        batch[:] = features[:, :, None]
        if not keys:
            return batch
        touched, at = np.unique(np.array(keys), return_inverse=True)
        incidence = csr_array(
            (np.array(signs), (at.reshape(-1), np.array(rows))), shape=(len(touched), sum_rows[0])
        )
        before = features[:, touched // count]
        after = before + (incidence @ np.concatenate(parts)).T
        after[np.abs(after) <= _ROUNDING * before] = 0.0
        batch.reshape(len(features), -1)[:, touched] = after
        return batch

    def _reached(
        self, number: int, places: tuple[int, ...]
    ) -> Iterator[tuple[NDArray[np.float64], Sequence[int]]]:
        """Yields every part of a placed cut with the ranks that carry it."""
        cut, request = self._catalogue.cuts[number], self._catalogue.request
        if cut.reach is Reach.ALL:
            yield cut.features[0], range(request.world_size)
            return
        for part, place in zip(cut.features, places, strict=True):
            if cut.reach is Reach.RANK:
                yield part, (place,)
            else:
                start = place * request.devices_per_node
                yield part, range(start, start + request.local_size)
