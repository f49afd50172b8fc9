"""Bags of varying length: lookups of the slowest rank of a batch, and the largest input.

Lengths of bags are independent, so the lookups of a rank are a sum that varies about normally from
batch to batch. All ranks wait for the slowest, so what counts is the expected maximum over ranks.
Each rank is taken to have an even part of every table's bags, as whole tables that are dealt out
over ranks and local batches of copies give it. The blocks of a row-wise table vary less, because
they share their bags; that is left out.
"""

from __future__ import annotations

from functools import lru_cache
import math
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.model import EmbeddingTable

#: Batches of a run, of which the largest must fit the memory.
_BATCHES = 100_000


def _variance(table: EmbeddingTable) -> float:
    """Variance of a table's lookups of one sample; bags of one sample are independent."""
    distribution = table.pooling_distribution
    bags = table.lookups_per_sample / sum(table.pooling_factors)
    return bags * sum(distribution.mean_square(mean) - mean**2 for mean in table.pooling_factors)


def _largest(count: float) -> float:
    """Expected largest of some standard normal numbers (Blom's formula); 0 for one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


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
    mean = [
        samples * table.lookups_per_sample * size / ranks
        for table, size in zip(tables, row_bytes, strict=True)
    ]
    variance = [
        samples * _variance(table) * size**2 / ranks
        for table, size in zip(tables, row_bytes, strict=True)
    ]
    deviation = math.sqrt(sum(variance))
    if not deviation:
        return (1.0,) * len(tables)
    largest = _largest(ranks)
    return tuple(
        1.0 + largest * varies / (deviation * size)
        for varies, size in zip(variance, mean, strict=True)
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
    lookups = samples * sum(table.lookups_per_sample for table in tables) / ranks
    variance = samples * sum(_variance(table) for table in tables) / ranks
    relative = math.sqrt(variance) / lookups
    return (1.0 + _largest(ranks * _BATCHES) * relative) / (1.0 + _largest(ranks) * relative)
