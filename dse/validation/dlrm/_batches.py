"""Synthetic batches that depend on the seed but not on the number of ranks or the plan.

Samples are drawn in blocks of fixed size with one generator each, so a rank generates only its own
samples, and any division of the batch gives the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.model import LENGTH_SPREAD, PoolingDistribution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dse.model import DlrmModel, EmbeddingTable

#: Samples per block.
_BLOCK = 512

#: Distinguishes the generator of dense features and labels from those of the tables.
_DENSE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LocalBatch:
    """Samples of one rank.

    Attributes:
        dense: Dense features; shape `(samples, features)`.
        labels: 0 or 1; shape `(samples,)`.
        lengths: Bag lengths of each table, by feature, then by sample.
        indices: Rows of the bags of each table, in the same order.
    """

    dense: NDArray[np.float64]
    labels: NDArray[np.float64]
    lengths: tuple[NDArray[np.int32], ...]
    indices: tuple[NDArray[np.int64], ...]


def local_batch(model: DlrmModel, seed: int, number: int, first: int, samples: int) -> LocalBatch:
    """Draws a part of a global batch.

    Args:
        model: Tables with their index distributions and pooling factors.
        seed: Seed of all batches.
        number: Index of the batch.
        first: First sample of the part.
        samples: Number of samples.
    """
    dense, labels = [], []
    for rng, inside in _blocks((seed, number, _DENSE), first, samples):
        dense.append(rng.standard_normal((_BLOCK, model.dense_features))[inside])
        labels.append((rng.random(_BLOCK) < 0.5)[inside].astype(np.float64))
    lengths, indices = [], []
    for table_number, table in enumerate(model.tables):
        own = [
            _bags(table, (seed, number, table_number, feature), factor, first, samples)
            for feature, factor in enumerate(table.pooling_factors)
        ]
        lengths.append(np.concatenate([one for one, _ in own]))
        indices.append(np.concatenate([rows for _, rows in own]))
    return LocalBatch(
        np.concatenate(dense), np.concatenate(labels), tuple(lengths), tuple(indices)
    )


def _bags(
    table: EmbeddingTable, key: tuple[int, ...], factor: float, first: int, samples: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    lengths, rows = [], []
    for rng, inside in _blocks(key, first, samples):
        drawn = _lengths(rng, table.pooling_distribution, factor)
        ends = np.cumsum(drawn)
        indices = table.indices.sample(rng, table.rows, int(ends[-1]), table.name)
        begin = int(ends[inside.start - 1]) if inside.start else 0
        lengths.append(drawn[inside].astype(np.int32))
        rows.append(indices[begin : int(ends[inside.stop - 1])])
    return np.concatenate(lengths), np.concatenate(rows)


def _lengths(
    rng: np.random.Generator, distribution: PoolingDistribution, factor: float
) -> NDArray[np.int64]:
    """Returns bag lengths of a block; random rounding preserves a fractional mean."""
    if distribution is PoolingDistribution.POISSON:
        return rng.poisson(factor, _BLOCK)
    mean = np.full(_BLOCK, factor)
    if distribution is PoolingDistribution.LOGNORMAL:
        normal = rng.standard_normal(_BLOCK)
        mean *= np.exp(LENGTH_SPREAD * normal - 0.5 * LENGTH_SPREAD**2)
    return np.floor(mean + rng.random(_BLOCK)).astype(np.int64)


def _blocks(
    key: tuple[int, ...], first: int, samples: int
) -> Iterator[tuple[np.random.Generator, slice]]:
    """Yields the generator of each block and the range of its samples that are needed."""
    for block in range(first // _BLOCK, -(-(first + samples) // _BLOCK)):
        start = block * _BLOCK
        inside = slice(max(first - start, 0), min(first + samples - start, _BLOCK))
        yield np.random.Generator(np.random.PCG64([*key, block])), inside
