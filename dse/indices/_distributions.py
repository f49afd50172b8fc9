"""Distributions of the rows that lookups draw.

Every distribution is brought into one form, :class:`PopularityBuckets`, from which its unique rows
and cache hits follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, overload

import numpy as np

from dse.indices._ids import IdOrder, hashed_rows
from dse.indices._popularity import BISECTIONS, PopularityBuckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Ranks of a Zipf distribution that are kept one by one; the others share buckets.
_EXACT_RANKS = 512

#: Buckets for the remaining ranks, evenly spaced in the logarithm of the rank.
_TAIL_BUCKETS = 512

#: Popularity per reference batch of rows that were seen once: such rows are one of many alike.
_MIN_POPULARITY = 0.25


@dataclass(frozen=True)
class IndexDistribution(ABC):
    """How the rows of one table are drawn.

    Attributes:
        ids: How row numbers follow from popularity.
    """

    ids: IdOrder = field(default=IdOrder.HASHED, kw_only=True)

    @abstractmethod
    def buckets(self, rows: int) -> PopularityBuckets:
        """Returns the popularity of the rows of a table of `rows` rows."""

    @overload
    def expected_unique_rows(self, rows: int, draws: float) -> float: ...

    @overload
    def expected_unique_rows(
        self, rows: int, draws: NDArray[np.floating | np.integer]
    ) -> NDArray[np.float64]: ...

    def expected_unique_rows(
        self, rows: int, draws: float | NDArray[np.floating | np.integer]
    ) -> float | NDArray[np.float64]:
        """Returns the expected number of distinct rows among `draws` independent draws.

        Args:
            rows: Rows of the table.
            draws: Number of draws, at least 0; a number or an array of any shape.

        Returns:
            A number, or an array of the shape of `draws`.
        """
        if not isinstance(draws, np.ndarray):
            return _unique_rows(self, rows, float(draws))
        flat = [_unique_rows(self, rows, float(count)) for count in draws.ravel()]
        return np.array(flat, dtype=np.float64).reshape(draws.shape)

    def hit_rate(self, rows: int, draws: float, cache_rows: float) -> float:
        """Returns the share of the draws of one batch that an LRU cache serves.

        The cache holds no row of the table when the batch starts: every first touch misses.

        Args:
            rows: Rows of the table.
            draws: Draws of the batch.
            cache_rows: Rows that the cache holds.

        Returns:
            Between 0 and `1 − unique/draws`; never falls when the cache grows.
        """
        return _hit_rate(self, rows, float(draws), float(cache_rows))

    def head_share(self, rows: int, head_rows: float) -> float:
        """Returns the share of the draws that go to the most popular rows.

        Args:
            rows: Rows of the table.
            head_rows: How many of them, the most popular ones.
        """
        return _head_share(self, rows, float(head_rows))

    def expected_misses(self, rows: int, draws: float, cached_rows: float) -> tuple[float, float]:
        """Returns what an LRU cache that has long been running does not serve of one batch.

        Che's approximation: a row stays for a time `t` in draws with `Σ (1 − e^{−p_i t})` rows in
        the cache, so it is absent with probability `e^{−p_i t}`.

        Args:
            rows: Rows of the table.
            draws: Draws of the batch.
            cached_rows: Rows that the cache holds.

        Returns:
            Expected draws of rows that the cache lacks when the batch starts, and the expected
            number of distinct rows among them; both fall when `cached_rows` grows.
        """
        return _misses(self, rows, float(draws), float(cached_rows))

    def sample(
        self, rng: np.random.Generator, rows: int, count: int, table: str = ""
    ) -> NDArray[np.int64]:
        """Draws row numbers.

        Args:
            rng: Random numbers of the draws.
            rows: Rows of the table.
            count: Number of draws.
            table: Name of the table; hashed ids of different tables are scattered differently.

        Returns:
            Row numbers in the order of `ids`; shape `(count,)`.
        """
        popularity = self.buckets(rows)
        weight = popularity.rows * popularity.probability
        bucket = rng.choice(len(weight), size=count, p=weight / weight.sum())
        starts, widths = popularity.ranks(rows)
        ranks = starts[bucket] + rng.integers(0, widths[bucket])
        return ranks if self.ids is IdOrder.BY_POPULARITY else hashed_rows(ranks, rows, table)


@dataclass(frozen=True)
class Uniform(IndexDistribution):
    """Every row is equally likely."""

    def buckets(self, rows: int) -> PopularityBuckets:
        """Returns a single bucket."""
        return PopularityBuckets(np.array([float(rows)]), np.array([1.0 / rows]))


@dataclass(frozen=True)
class Zipf(IndexDistribution):
    """The row of popularity rank ``r`` is drawn with probability proportional to ``r^−alpha``.

    Attributes:
        alpha: Exponent, more than 0; recommendation traces have about 0.9 to 1.2.
    """

    alpha: float

    def buckets(self, rows: int) -> PopularityBuckets:
        """Returns the first ranks one by one and the others in logarithmic buckets."""
        return _zipf_buckets(self.alpha, rows)


@dataclass(frozen=True)
class PopularityRange(IndexDistribution):
    """The draws of another distribution that go to rows between two ranks of popularity.

    Attributes:
        whole: How the rows of the whole table are drawn.
        table_rows: Rows of the whole table.
        first: Rows that are more popular than those of the range.
        end: These and the rows of the range.
    """

    whole: IndexDistribution
    table_rows: int
    first: int
    end: int

    def buckets(self, rows: int) -> PopularityBuckets:
        """Returns the range's popularities; a block of its rows has an even share of each."""
        return _range_buckets(self, rows)


@dataclass(frozen=True)
class ReuseHistogram(IndexDistribution):
    """A measured histogram of how often rows are used in one reference batch.

    A bin holds the rows that were used about ``r`` times. Seen rows are a zero-truncated sample:
    with popularity ``λ`` per batch a row is seen with probability ``1 − e^−λ`` and then used
    ``λ / (1 − e^−λ)`` times on average. Solving that for ``λ`` gives popularities that reproduce
    both the distinct rows and the lookups of the reference batch. On a table of another size the
    shares are kept.

    Attributes:
        row_share: Share of the seen rows in each bin; shape `(bins,)`, adds up to 1.
        lookup_share: Share of the lookups that go to rows of that bin; shape `(bins,)`.
        mean_reuse: Lookups per seen row in the reference batch, more than 1.
        touched_share: Share of a table's rows that the reference batch sees.
    """

    row_share: tuple[float, ...]
    lookup_share: tuple[float, ...]
    mean_reuse: float
    touched_share: float

    def buckets(self, rows: int) -> PopularityBuckets:
        """Returns one bucket a bin of the histogram."""
        row_share, popularity = _bins(self.row_share, self.lookup_share, self.mean_reuse)
        seen = rows * self.touched_share * row_share
        existing = seen / -np.expm1(-popularity)
        # Rows that are seldom seen may not outnumber the table.
        seldom = int(np.argmin(popularity))
        others = existing.sum() - existing[seldom]
        existing[seldom] = min(existing[seldom], max(seen[seldom], rows - others))
        weight = existing * popularity
        order = np.argsort(-popularity)
        return PopularityBuckets(existing[order], (weight / existing / weight.sum())[order])


@lru_cache(maxsize=4096)
def _bins(
    row_share: tuple[float, ...], lookup_share: tuple[float, ...], mean_reuse: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the share of the seen rows and the popularity of each bin; no table's size matters.

    Callers must not change the arrays.
    """
    rows, lookups = np.array(row_share), np.array(lookup_share)
    used = (rows > 0) & (lookups > 0)
    rows = rows[used] / rows[used].sum()
    lookups = lookups[used] / lookups[used].sum()
    return rows, _untruncated(mean_reuse * lookups / rows)


def _untruncated(reuse: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solves ``λ / (1 − e^−λ) = r`` for each bin, bounded below for rows seen only once."""
    low = np.full_like(reuse, _MIN_POPULARITY)
    high = np.maximum(reuse, 2 * _MIN_POPULARITY)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        below = middle / -np.expm1(-middle) < reuse
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


@lru_cache(maxsize=512)
def _zipf_buckets(alpha: float, rows: int) -> PopularityBuckets:
    exact = min(rows, _EXACT_RANKS)
    ranks = np.arange(1, exact + 1, dtype=np.float64)
    counts = np.ones(exact)
    weights = ranks**-alpha
    if rows > exact:
        edges = np.unique(np.round(np.geomspace(exact, rows, _TAIL_BUCKETS + 1)))
        # Ranks low + 1 … high of a bucket: the integral with half-rank ends approximates the sum.
        low, high = edges[:-1], edges[1:]
        tail_counts = high - low
        total = _power_integral(high + 0.5, alpha) - _power_integral(low + 0.5, alpha)
        counts = np.concatenate((counts, tail_counts))
        weights = np.concatenate((weights, total / tail_counts))
    return PopularityBuckets(counts, weights / (counts @ weights))


@lru_cache(maxsize=4096)
def _range_buckets(part: PopularityRange, rows: int) -> PopularityBuckets:
    """Callers must not change the arrays."""
    rest = part.whole.buckets(part.table_rows).tail(part.first)
    before = np.cumsum(rest.rows) - rest.rows
    inside = np.clip(part.end - part.first - before, 0.0, rest.rows)
    drawn = (inside > 0) & (rest.probability > 0)
    share = inside[drawn] @ rest.probability[drawn]
    if not drawn.any() or share <= 0:
        return PopularityBuckets(np.array([float(rows)]), np.array([1.0 / rows]))
    scale = rows / (part.end - part.first)
    return PopularityBuckets(scale * inside[drawn], rest.probability[drawn] / (scale * share))


def _power_integral(rank: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Returns the antiderivative of ``r^−alpha``."""
    if abs(alpha - 1.0) < 1e-9:
        return np.log(rank)
    return np.asarray(rank ** (1.0 - alpha) / (1.0 - alpha))


@lru_cache(maxsize=65536)
def _unique_rows(indices: IndexDistribution, rows: int, draws: float) -> float:
    if draws <= 0:
        return 0.0
    return min(indices.buckets(rows).unique_rows(draws), float(rows), draws)


@lru_cache(maxsize=65536)
def _hit_rate(indices: IndexDistribution, rows: int, draws: float, cache_rows: float) -> float:
    return indices.buckets(rows).lru_hit_rate(draws, cache_rows)


@lru_cache(maxsize=65536)
def _head_share(indices: IndexDistribution, rows: int, head_rows: float) -> float:
    if head_rows >= rows:
        return 1.0
    rest = indices.buckets(rows).tail(head_rows)
    return 1.0 - min(1.0, float(rest.rows @ rest.probability))


@lru_cache(maxsize=65536)
def _misses(
    indices: IndexDistribution, rows: int, draws: float, cached_rows: float
) -> tuple[float, float]:
    if draws <= 0 or cached_rows >= rows:
        return 0.0, 0.0
    if cached_rows <= 0:
        return draws, _unique_rows(indices, rows, draws)
    return indices.buckets(rows).lru_misses(draws, cached_rows)
