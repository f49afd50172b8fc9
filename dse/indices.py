"""Distributions of embedding indices: unique rows and cache hits of lookups.

Every distribution is brought into one form, *popularity buckets*: groups of rows that are drawn
with the same probability. Two questions are answered from it:

* distinct rows among ``n`` draws: ``U(n) = Σ (1 − (1 − p_i)^n)``;
* the hit rate of an LRU cache of ``C`` rows that is empty when the batch starts, by Che's
  approximation (Che et al., IEEE JSAC 2002): a row stays in the cache for a characteristic time
  ``t``, counted in draws, with ``V(t) = Σ (1 − e^{−p_i t}) = C``. The draw at time ``s`` hits when
  its row was drawn in the last ``min(s, t)``, with probability ``H(min(s, t))`` where
  ``H(t) = Σ p_i (1 − e^{−p_i t}) = 1 − V'(t)``. Over the batch, for ``t ≤ n``,

  ``n h = ∫₀ⁿ H(min(s, t)) ds = (t − V(t)) + (n − t) H(t)``.

  The first term is the filling of the cache, where only first touches miss, the second the steady
  state. When the batch ends before the cache is full only first touches miss: ``h = 1 − U/n``.

HiPC'22 (arXiv 2201.07821) gives this for uniform draws: the same value when the rows fit, else
cold misses plus draws outside the resident set, ``H = C / rows``. TPDS'24 (arXiv 2404.12674)
replaces the uniform draw by the table's own distribution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
import math
from typing import TYPE_CHECKING, overload

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Ranks of a Zipf distribution that are kept one by one; the others share buckets.
_EXACT_RANKS = 512

#: Buckets for the remaining ranks, evenly spaced in the logarithm of the rank.
_TAIL_BUCKETS = 512

#: Halvings of an interval; 64 exhaust the digits of a double.
_BISECTIONS = 64

#: Popularity per reference batch of rows that were seen once: such rows are one of many alike.
_MIN_POPULARITY = 0.25


@dataclass(frozen=True, slots=True)
class PopularityBuckets:
    """Rows grouped by popularity.

    Attributes:
        rows: Rows in each bucket; shape `(buckets,)`.
        probability: Probability of each row of the bucket in one draw; shape `(buckets,)`.
    """

    rows: NDArray[np.float64]
    probability: NDArray[np.float64]

    def unique_rows(self, draws: float) -> float:
        """Returns the expected number of distinct rows among `draws` draws."""
        # 1 − (1 − p)^n without cancellation for tiny p; a table of one row has p = 1.
        with np.errstate(divide="ignore"):
            absent = draws * np.log1p(-np.minimum(self.probability, 1.0))
        return float(self.rows @ -np.expm1(absent))

    def tail(self, head_rows: float) -> PopularityBuckets:
        """Returns what is left when the `head_rows` most popular rows are taken away."""
        order = np.argsort(-self.probability, kind="stable")
        rows, probability = self.rows[order], self.probability[order]
        before = np.cumsum(rows) - rows
        left = rows - np.clip(head_rows - before, 0.0, rows)
        return PopularityBuckets(left, probability)

    def lru_hit_rate(self, draws: float, cache_rows: float) -> float:
        """Returns the share of `draws` draws that an LRU cache serves which is empty at first.

        Che's approximation with the filling of the cache; see the module's docstring.

        Args:
            draws: Draws of the batch.
            cache_rows: Rows that the cache holds.
        """
        if draws <= 0 or cache_rows <= 0:
            return 0.0
        first_touches = self.unique_rows(draws)
        repeats = max(0.0, 1.0 - first_touches / draws)
        if cache_rows >= first_touches:
            return repeats
        # In a time t at most t rows enter the cache, so the root is at least `cache_rows`.
        low, high = math.log(cache_rows), math.log(draws)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            resident = -np.expm1(-self.probability * math.exp(middle))
            low, high = (middle, high) if self.rows @ resident < cache_rows else (low, middle)
        stay = math.exp(low)
        resident = -np.expm1(-self.probability * stay)
        filling = max(0.0, stay - float(self.rows @ resident))
        steady = float((self.rows * self.probability) @ resident)
        # V lies a little below U where rows are drawn often; the bound is that of U.
        return min((filling + max(0.0, draws - stay) * steady) / draws, repeats)


@dataclass(frozen=True)
class IndexDistribution(ABC):
    """How the rows of one table are drawn."""

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

    def expected_tail(self, rows: int, draws: float, head_rows: float) -> tuple[float, float]:
        """Returns what a cache that holds the most popular rows does not serve.

        Args:
            rows: Rows of the table.
            draws: Draws of the batch.
            head_rows: Rows that are held, the most popular ones.

        Returns:
            Expected draws of other rows, and the expected number of distinct rows among them;
            both fall when `head_rows` grows.
        """
        return _tail(self, rows, float(draws), float(head_rows))

    def sample(self, rng: np.random.Generator, rows: int, count: int) -> NDArray[np.int64]:
        """Draws row numbers; shape `(count,)`. Popular rows have low numbers."""
        popularity = self.buckets(rows)
        weight = popularity.rows * popularity.probability
        bucket = rng.choice(len(weight), size=count, p=weight / weight.sum())
        ends = np.round(np.cumsum(popularity.rows)).astype(np.int64)
        starts = np.concatenate(([0], ends[:-1]))
        width = np.maximum(1, ends - starts)[bucket]
        return np.minimum(starts[bucket] + rng.integers(0, width), rows - 1)


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
    for _ in range(_BISECTIONS):
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
def _tail(
    indices: IndexDistribution, rows: int, draws: float, head_rows: float
) -> tuple[float, float]:
    if draws <= 0 or head_rows >= rows:
        return 0.0, 0.0
    rest = indices.buckets(rows).tail(head_rows)
    lookups = min(draws, draws * float(rest.rows @ rest.probability))
    return lookups, min(rest.unique_rows(draws), lookups)
