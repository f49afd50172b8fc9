"""Popularity buckets: groups of rows that are drawn with the same probability.

Two questions are answered from them:

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

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Halvings of an interval; 64 exhaust the digits of a double.
BISECTIONS = 64

#: Mean draws of the least popular row after which all rows have been drawn.
_LONG_STAY = 64.0


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

    def ranks(self, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which popularity ranks of a table the buckets are, in their order.

        A bucket of less than a row, as histograms over many tables have them, is a whole one.

        Args:
            rows: Rows of the table.

        Returns:
            The first rank of each bucket, from 0, and the number of ranks, at least 1.
        """
        ends = np.minimum(np.round(np.cumsum(self.rows)), rows).astype(np.int64)
        starts = np.minimum(np.concatenate(([0], ends[:-1])), rows - 1)
        return starts, np.maximum(1, ends - starts)

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
        stay = self._stay(cache_rows, draws)
        resident = -np.expm1(-self.probability * stay)
        filling = max(0.0, stay - float(self.rows @ resident))
        steady = float((self.rows * self.probability) @ resident)
        # V lies a little below U where rows are drawn often; the bound is that of U.
        return min((filling + max(0.0, draws - stay) * steady) / draws, repeats)

    def lru_misses(self, draws: float, cache_rows: float) -> tuple[float, float]:
        """Returns what an LRU cache that has long been running lacks when a batch starts.

        Args:
            draws: Draws of the batch.
            cache_rows: Rows that the cache holds, more than 0 and fewer than there are.

        Returns:
            Expected draws of rows that it lacks, and the expected number of distinct rows among
            them.
        """
        least = float(self.probability[self.probability > 0].min())
        stay = self._stay(cache_rows, max(2.0 * cache_rows, _LONG_STAY / least))
        absent = self.rows * np.exp(-self.probability * stay)
        rest = PopularityBuckets(absent, self.probability)
        lookups = min(draws, draws * float(absent @ self.probability))
        return lookups, min(rest.unique_rows(draws), lookups)

    def _stay(self, cache_rows: float, longest: float) -> float:
        """Time in draws for which a row stays in an LRU cache; at most `longest`."""
        # In a time t at most t rows enter the cache, so the root is at least `cache_rows`.
        low, high = math.log(cache_rows), math.log(longest)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            resident = -np.expm1(-self.probability * math.exp(middle))
            low, high = (middle, high) if self.rows @ resident < cache_rows else (low, middle)
        return math.exp(low)
