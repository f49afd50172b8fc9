"""Measured lookups: pooling factors and popularity of rows, from a stream of batches.

Rows are counted exactly while fewer than :data:`KEPT_ROWS` of a table have been seen. Beyond that
the most frequent rows are still counted one by one, and the others are sampled by a hash of the
row number; the sample is halved whenever it grows too large. A sampled row stands for two, four, …
rows, so the number of distinct rows and the histogram of their counts stay unbiased in bounded
memory.

Three distributions may describe what was counted: uniform, a Zipf law whose exponent gives
the counted number of distinct rows, or a histogram of reuse where neither reproduces both the
distinct rows of a batch and those of all batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.indices._distributions import IndexDistribution, ReuseHistogram, Uniform, Zipf
from dse.indices._ids import IdOrder

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Rows of a table that are counted, at most.
KEPT_ROWS = 2**20

#: Most frequent rows that are always counted once there are too many for all.
_HEAVY_ROWS = 2**14

#: Blocks of equal numbers of rows whose shares of the lookups are kept.
_BLOCKS = 64

#: Factor of the hash that chooses rows, from the golden ratio (Knuth, vol. 3, 6.4).
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

#: A law is taken if it misses the counted numbers of distinct rows by less.
_CLOSE = 0.02

#: Bins of a histogram in every doubling of the count, and counts below which each has its own.
_BINS_AN_OCTAVE, _SINGLE_COUNTS = 4, 8

#: Standard deviations by which the counted repetition may miss that of a law.
_SIGMAS = 3.0

#: Share of a table's rows above which their number says little of popularity.
_NEARLY_ALL = 0.8

_LARGEST_ALPHA = 4.0
_HALVINGS = 50


class LengthSketch:
    """Counts the lookups of a feature's bags."""

    def __init__(self) -> None:
        self._bags = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, lengths: NDArray[np.integer]) -> None:
        """Counts the bags of one batch.

        Args:
            lengths: Lookups of each bag, of any shape.
        """
        values = np.asarray(lengths, dtype=np.float64).ravel()
        self._bags += len(values)
        self._sum += float(values.sum())
        self._squares += float(values @ values)

    @property
    def mean(self) -> float:
        """Lookups of a mean bag; 0 if there is none."""
        return self._sum / self._bags if self._bags else 0.0

    @property
    def variance(self) -> float:
        """Variance of the lookups of a bag; 0 if there is none."""
        return max(0.0, self._squares / self._bags - self.mean**2) if self._bags else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ReuseCounts:
    """How often rows were looked up.

    Attributes:
        lookups: Lookups of all rows.
        counts: Lookups of one row, descending; shape `(groups,)`.
        rows: Rows that each group stands for; shape `(groups,)`.
    """

    lookups: int
    counts: NDArray[np.int64]
    rows: NDArray[np.float64]

    @property
    def unique_rows(self) -> float:
        """Distinct rows."""
        return float(self.rows.sum())

    @property
    def repetition(self) -> float:
        """Probability that two lookups are of the same row; the pairs that were, over all."""
        pairs = float(self.rows @ (self.counts * (self.counts - 1.0)))
        return pairs / (self.lookups * (self.lookups - 1.0)) if self.lookups > 1 else 0.0

    @property
    def repetition_error(self) -> float:
        """Standard deviation of `repetition` over itself: counts scatter by their roots.

        Rows of a sample scatter as much more as each stands for others.
        """
        squares = float(self.rows @ self.counts.astype(np.float64) ** 2)
        cubes = float(self.rows**2 @ self.counts.astype(np.float64) ** 3)
        return 2.0 * math.sqrt(cubes) / squares


class RowSketch:
    """Counts the lookups of one table.

    Args:
        rows: Rows of the table.
        kept_rows: Rows that are counted at most.
    """

    def __init__(self, rows: int, kept_rows: int = KEPT_ROWS) -> None:
        self._table_rows, self._kept_rows = rows, kept_rows
        self._heavy = min(_HEAVY_ROWS, kept_rows // 8)
        self._rows = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.int64)
        self._always = np.zeros(0, dtype=np.int64)
        self._level = 0
        self._waiting: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._lookups = 0
        self._by_block = np.zeros(_BLOCKS, dtype=np.int64)
        self._batches: list[tuple[int, int]] = []

    def add(self, rows: NDArray[np.int64]) -> None:
        """Counts the lookups of one batch.

        Args:
            rows: Row numbers, of any shape.

        Raises:
            ValueError: A number is not a row of the table.
        """
        flat = np.asarray(rows, dtype=np.int64).ravel()
        if not len(flat):
            return
        if flat.min() < 0 or flat.max() >= self._table_rows:
            worst = int(flat.min() if flat.min() < 0 else flat.max())
            raise ValueError(f"row {worst} of a table of {self._table_rows} rows")
        self._lookups += len(flat)
        blocks = flat * _BLOCKS // self._table_rows
        self._by_block += np.bincount(blocks, minlength=_BLOCKS)
        distinct, counts = np.unique(flat, return_counts=True)
        self._batches.append((len(flat), len(distinct)))
        chosen = self._chosen(distinct)
        self._waiting.append((distinct[chosen], counts[chosen]))
        if sum(len(rows) for rows, _ in self._waiting) > self._kept_rows // 2:
            self._merge()

    def _merge(self) -> None:
        """Adds what waits to what is counted; samples more thinly if that is too much."""
        all_rows, all_counts = zip((self._rows, self._counts), *self._waiting, strict=True)
        self._waiting = []
        self._rows, self._counts = _counted(np.concatenate(all_rows), np.concatenate(all_counts))
        while len(self._rows) > self._kept_rows:
            if not self._level:
                order = np.argpartition(self._counts, -self._heavy)[-self._heavy :]
                self._always = np.sort(self._rows[order])
            self._level += 1
            kept = self._chosen(self._rows)
            self._rows, self._counts = self._rows[kept], self._counts[kept]

    def _chosen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows are counted at this level."""
        if not self._level:
            return np.ones(len(rows), dtype=bool)
        hashed = (rows.astype(np.uint64) * _FACTOR) >> np.uint64(64 - self._level)
        return np.asarray((hashed == 0) | self._is_heavy(rows))

    def _is_heavy(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not len(self._always):
            return np.zeros(len(rows), dtype=bool)
        at = np.minimum(np.searchsorted(self._always, rows), len(self._always) - 1)
        return np.asarray(self._always[at] == rows)

    def counts(self) -> ReuseCounts:
        """Returns how often rows were looked up in all batches."""
        self._merge()
        order = np.argsort(-self._counts, kind="stable")
        weights = np.where(self._is_heavy(self._rows), 1.0, 2.0**self._level)
        return ReuseCounts(self._lookups, self._counts[order], weights[order])

    def distribution(self) -> IndexDistribution:
        """Returns what describes the lookups: uniform, Zipf or a histogram of reuse.

        Raises:
            ValueError: Nothing was looked up.
        """
        if not self._lookups:
            raise ValueError("no lookup was counted")
        counts = self.counts()
        law: IndexDistribution = Uniform()
        if not self._fits(law, counts):
            law = Zipf(_zipf_alpha(self._table_rows, counts))
        if self._fits(law, counts):
            return law if isinstance(law, Uniform) else replace(law, ids=self._id_order(law))
        made = reuse_histogram(counts, self._table_rows)
        return replace(made, ids=self._id_order(made))

    def _fits(self, law: IndexDistribution, counts: ReuseCounts) -> bool:
        """Whether a law gives the distinct rows of a batch and of all, and their repetition."""
        batch, distinct = (float(np.mean(values)) for values in zip(*self._batches, strict=True))
        expected = law.expected_unique_rows(self._table_rows, np.array([batch, counts.lookups]))
        if np.abs(expected / np.array([distinct, counts.unique_rows]) - 1).max() > _CLOSE:
            return False
        tolerance = _CLOSE + _SIGMAS * counts.repetition_error
        least = max(counts.repetition, 1 / self._table_rows)
        return abs(_repetition(law, self._table_rows) - counts.repetition) <= tolerance * least

    def _id_order(self, law: IndexDistribution) -> IdOrder:
        """Returns which order of row numbers is closer to the shares of blocks of rows."""
        share = self._by_block / self._lookups
        popular = _shares_by_popularity(law, self._table_rows)
        by_popularity = float(np.abs(share - popular).sum())
        hashed = float(np.abs(share - 1 / _BLOCKS).sum())
        return IdOrder.BY_POPULARITY if by_popularity < hashed else IdOrder.HASHED


def reuse_histogram(counts: ReuseCounts, table_rows: int) -> ReuseHistogram:
    """Returns the histogram of reuse, in bins that grow with the count.

    Args:
        counts: Lookups by row.
        table_rows: Rows of the table.
    """
    level = np.where(
        counts.counts <= _SINGLE_COUNTS,
        counts.counts,
        _SINGLE_COUNTS
        + np.ceil(_BINS_AN_OCTAVE * np.log2(counts.counts / _SINGLE_COUNTS)).astype(np.int64),
    )
    _, bins = np.unique(level, return_inverse=True)
    rows = np.bincount(bins, counts.rows)
    lookups = np.bincount(bins, counts.rows * counts.counts)
    return ReuseHistogram(
        tuple((rows / rows.sum()).tolist()),
        tuple((lookups / lookups.sum()).tolist()),
        max(1.0, float(lookups.sum() / rows.sum())),
        min(1.0, float(rows.sum() / table_rows)),
    )


def _counted(
    rows: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns distinct rows in rising order, and the sum of the counts of each."""
    if not len(rows):
        return rows, counts
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[first], np.add.reduceat(counts[order], first)


def _repetition(law: IndexDistribution, table_rows: int) -> float:
    """Returns the probability that two lookups are of the same row."""
    buckets = law.buckets(table_rows)
    return float(buckets.rows @ buckets.probability**2)


def _zipf_alpha(table_rows: int, counts: ReuseCounts) -> float:
    """Returns the exponent that gives the counted distinct rows, which fall with it.

    Where nearly all rows were seen these say nothing, and repetition, which grows with it, does.
    """
    seen = counts.unique_rows / table_rows > _NEARLY_ALL

    def too_small(alpha: float) -> bool:
        law = Zipf(alpha)
        if seen:
            return _repetition(law, table_rows) < counts.repetition
        return law.expected_unique_rows(table_rows, float(counts.lookups)) > counts.unique_rows

    low, high = 1e-3, _LARGEST_ALPHA
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return round(0.5 * (low + high), 4)


def _shares_by_popularity(law: IndexDistribution, table_rows: int) -> NDArray[np.float64]:
    """Returns the shares of equal blocks of rows if the first rows were the most popular."""
    buckets = law.buckets(table_rows)
    ends = np.concatenate(([0.0], np.cumsum(buckets.rows)))
    drawn = np.concatenate(([0.0], np.cumsum(buckets.rows * buckets.probability)))
    edges = np.linspace(0.0, ends[-1], _BLOCKS + 1)
    return np.diff(np.interp(edges, ends, drawn))
