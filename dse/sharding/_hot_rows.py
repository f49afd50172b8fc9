"""Hot rows: the most popular rows of a table, which every rank keeps a copy of.

A table with hot rows is two tables: one of its hot rows, which every rank looks up for its own
samples, and one of the others, which is sharded. Lookups go to either by popularity.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.indices import PopularityRange
from dse.model import LENGTH_SPREAD, PoolingDistribution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.model import EmbeddingTable

#: Numbers of hot rows worth trying: all rows that a rank draws at least so often in a batch. A row
#: drawn once a rank costs about as much to reduce as its pooled vectors cost to exchange.
_LEAST_DRAWS = (4.0, 1.0, 0.25)

#: The same where many tables are placed.
_ONE_LEAST_DRAWS = (1.0,)

#: Least share of a table's lookups that hot rows must have to be worth a copy.
_LEAST_SHARE = 0.02

#: Lengths of bags at which log-normal ones are looked at.
_LENGTHS = 32

#: Tables and numbers of hot rows that are remembered.
_KEPT = 16_384


@lru_cache(maxsize=_KEPT)
def hot_share(table: EmbeddingTable, hot_rows: int) -> float:
    """Returns the share of a table's lookups that go to its `hot_rows` most popular rows."""
    if hot_rows <= 0:
        return 0.0
    return table.indices.head_share(table.rows, hot_rows)


@lru_cache(maxsize=_KEPT)
def hot_part(table: EmbeddingTable, hot_rows: int) -> EmbeddingTable:
    """Returns the table of the hot rows, with the lookups that go to them.

    Args:
        table: The whole table.
        hot_rows: The most popular rows; at least 1.
    """
    return _part(table, 0, hot_rows, hot_share(table, hot_rows))


@lru_cache(maxsize=_KEPT)
def cold_part(table: EmbeddingTable, hot_rows: int) -> EmbeddingTable:
    """Returns the table of all other rows, with the lookups that go to them.

    Args:
        table: The whole table.
        hot_rows: The most popular rows; the table itself is returned for 0.
    """
    if not hot_rows:
        return table
    return _part(table, hot_rows, table.rows, 1.0 - hot_share(table, hot_rows))


def _part(table: EmbeddingTable, first: int, end: int, share: float) -> EmbeddingTable:
    return replace(
        table,
        rows=end - first,
        pooling_factors=tuple(share * factor for factor in table.pooling_factors),
        indices=PopularityRange(table.indices, table.rows, first, end, ids=table.indices.ids),
    )


class BagShares(NamedTuple):
    """Shares of a table's bags with a lookup of a hot row, of another row, and of both."""

    hot: float
    cold: float
    both: float


@lru_cache(maxsize=_KEPT)
def bag_shares(table: EmbeddingTable, hot_rows: int) -> BagShares:
    """Returns the shares of bags with hot and with other rows.

    Lookups of a bag are independent draws, and lengths vary as the table says.

    Args:
        table: The whole table.
        hot_rows: The most popular rows; all bags count as those of other rows for 0.
    """
    if not hot_rows:
        return BagShares(0.0, 1.0, 0.0)
    share, features = hot_share(table, hot_rows), len(table.pooling_factors)
    hot, cold, either = (
        sum(1.0 - _none(table, factor, taken) for factor in table.pooling_factors) / features
        for taken in (share, 1.0 - share, 1.0)
    )
    return BagShares(hot, cold, max(0.0, hot + cold - either))


@cache
def _normal_nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns points of a normal distribution and their weights; callers must not change them."""
    return np.polynomial.hermite_e.hermegauss(_LENGTHS)


def _none(table: EmbeddingTable, factor: float, taken: float) -> float:
    """Probability that no lookup of a bag goes to rows with some share of the lookups."""
    if table.pooling_distribution is PoolingDistribution.POISSON:
        return math.exp(-factor * taken)
    lengths, weights = np.array([factor]), np.ones(1)
    if table.pooling_distribution is PoolingDistribution.LOGNORMAL:
        nodes, weights = _normal_nodes()
        lengths = factor * np.exp(LENGTH_SPREAD * nodes - 0.5 * LENGTH_SPREAD**2)
    # Lengths are whole numbers: a fraction is the chance of one more.
    whole, more = np.divmod(lengths, 1.0)
    return float(weights @ ((1.0 - taken) ** whole * (1.0 - more * taken)) / weights.sum())


@lru_cache(maxsize=_KEPT)
def hot_row_counts(table: EmbeddingTable, samples: float, *, few: bool = False) -> tuple[int, ...]:
    """Returns the numbers of hot rows that are worth trying, fewest first.

    They follow from the draws of single rows: none for a table whose rows are all equally popular.

    Args:
        table: The table.
        samples: Samples of one rank in one batch.
        few: Whether at most one number is wanted.
    """
    popularity = table.indices.buckets(table.rows)
    draws = samples * table.lookups_per_sample * popularity.probability
    if np.ptp(popularity.probability) <= 1e-12 * popularity.probability.max():
        return ()
    counts = {
        math.floor(float(popularity.rows[draws >= least].sum()) + 1e-9)
        for least in (_ONE_LEAST_DRAWS if few else _LEAST_DRAWS)
    }
    return tuple(
        count
        for count in sorted(counts)
        if 0 < count < table.rows and hot_share(table, count) >= _LEAST_SHARE
    )
