"""Batches are those of their seed, however samples are divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.indices import Uniform, Zipf
from dse.model import PoolingDistribution
from dse.validation import local_batch
from tests.validation.models import model, table


def joined(parts, table_number, features):
    """Bags of a table, by feature then by sample, as tuples of sorted rows."""
    bags = [[] for _ in range(features)]
    for part in parts:
        lengths, rows = part.lengths[table_number], part.indices[table_number]
        cut = np.split(rows, np.cumsum(lengths)[:-1])
        samples = len(lengths) // features
        for feature in range(features):
            bags[feature] += [tuple(one) for one in cut[feature * samples :][:samples]]
    return bags


@pytest.mark.parametrize("size", [1, 7, 500, 513])
def test_parts_make_up_the_whole(size):
    what = model()
    samples = 1100
    whole = [local_batch(what, 5, 2, 0, samples)]
    parts = [
        local_batch(what, 5, 2, first, min(size, samples - first))
        for first in range(0, samples, size)
        if size > 100 or first < 5 * size
    ]
    kept = sum(len(part.labels) for part in parts)
    np.testing.assert_array_equal(
        np.concatenate([part.dense for part in parts]), whole[0].dense[:kept]
    )
    np.testing.assert_array_equal(
        np.concatenate([part.labels for part in parts]), whole[0].labels[:kept]
    )
    for number, one in enumerate(what.tables):
        features = one.feature_count
        expected = [bags[:kept] for bags in joined(whole, number, features)]
        assert joined(parts, number, features) == expected


def test_seeds_and_numbers_differ():
    what = model()
    draws = [local_batch(what, *of, 0, 64) for of in ((0, 0), (0, 1), (1, 0))]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert (draws[first].dense != draws[second].dense).any()
        assert not np.array_equal(draws[first].indices[0], draws[second].indices[0])


@pytest.mark.parametrize("distribution", list(PoolingDistribution))
@pytest.mark.parametrize("factor", [0.3, 2.0, 7.4])
def test_bags_have_the_mean_length_and_rows_lie_in_the_table(distribution, factor):
    what = model(tables=(replace(table("t", 1000, (factor,)), pooling_distribution=distribution),))
    batch = local_batch(what, 0, 0, 0, 20_000)
    spread = batch.lengths[0].std() / np.sqrt(20_000)
    assert abs(batch.lengths[0].mean() - factor) < 5 * spread + 1e-9
    assert len(batch.indices[0]) == batch.lengths[0].sum()
    assert batch.indices[0].min() >= 0
    assert batch.indices[0].max() < 1000
    if distribution is PoolingDistribution.FIXED:
        assert set(batch.lengths[0].tolist()) == {int(np.floor(factor)), int(np.ceil(factor))}


def test_popular_rows_are_scattered_over_the_table():
    rows = 1000
    what = model(tables=(table("t", rows, (8.0,), indices=Zipf(1.2)),))
    drawn = local_batch(what, 0, 0, 0, 4096).indices[0]
    by_quarter = np.bincount(drawn // 250, minlength=4) / len(drawn)
    assert np.bincount(drawn).max() > 0.1 * len(drawn)
    assert by_quarter.min() > 0.05
    uniform = model(tables=(table("t", rows, (8.0,), indices=Uniform()),))
    counts = np.bincount(local_batch(uniform, 0, 0, 0, 4096).indices[0], minlength=rows)
    assert counts.max() < 3 * counts.mean()
