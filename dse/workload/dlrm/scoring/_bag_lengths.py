"""Bags of varying length: lookups of the slowest rank of a batch, and the largest input.

Lengths of bags are independent, and all ranks wait for the one that has most in a batch. Each rank
is taken to have an even part of every table's bags, as whole tables that are spread over ranks
and local batches of copies give it. The blocks of a row-wise table vary less, because they share
their bags; that is left out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dse.model import busiest_share, length_moment

if TYPE_CHECKING:
    from dse.model import EmbeddingTable

#: Batches of a run, of which the largest must fit the memory.
_BATCHES = 100_000


def _variance(table: EmbeddingTable) -> float:
    """Variance of a table's lookups of one sample; its bags are independent."""
    lengths = table.pooling_distribution
    return table.bags_per_sample * sum(
        length_moment(lengths, mean, 2) - mean**2 for mean in table.pooling_factors
    )


@lru_cache(maxsize=1024)
def lookup_factors(
    tables: tuple[EmbeddingTable, ...], samples: int, ranks: int
) -> tuple[float, ...]:
    """Returns how many lookups a table has on the slowest rank, relative to the mean.

    What the slowest rank has more than others is divided among tables by the variance that they
    bring, so tables of fixed lengths have none of it.

    Args:
        tables: The model's tables.
        samples: Samples of a batch over all ranks.
        ranks: Ranks.

    Returns:
        One factor for each table, at least 1; exactly 1 for bags of fixed length and for one rank.
    """
    row_bytes = [table.dim * table.data_type.value_bytes for table in tables]
    mean = [table.lookups_per_sample * size for table, size in zip(tables, row_bytes, strict=True)]
    variance = [_variance(table) * size**2 for table, size in zip(tables, row_bytes, strict=True)]
    more = busiest_share(sum(variance) / sum(mean) ** 2, samples // ranks, ranks) - 1.0
    if not more:
        return (1.0,) * len(tables)
    per_variance = more * sum(mean) / sum(variance)
    return tuple(
        1.0 + per_variance * varies / size for varies, size in zip(variance, mean, strict=True)
    )


def largest_input(tables: tuple[EmbeddingTable, ...], samples: int, ranks: int) -> float:
    """Returns the largest input of a run, relative to that of the slowest rank of a usual batch.

    Args:
        tables: The model's tables.
        samples: Samples of a batch over all ranks.
        ranks: Ranks.

    Returns:
        At least 1; exactly 1 for bags of fixed length.
    """
    lookups = sum(table.lookups_per_sample for table in tables)
    relative = sum(_variance(table) for table in tables) / lookups**2
    usual = busiest_share(relative, samples // ranks, ranks)
    return busiest_share(relative, samples // ranks, ranks * _BATCHES) / usual
