"""Bags of varying length: against drawn lengths, and what they change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.model import PoolingDistribution
from dse.sharding import ShardingPlan, ShardingType, TablePlan
from dse.validation import local_batch
from dse.workload.dlrm import PlanScorer
from tests.conftest import make_cluster, make_model, make_table
from tests.workload.dlrm.solver.bound.oracle import dlrm

RANKS = 4
VARYING = [PoolingDistribution.POISSON, PoolingDistribution.LOGNORMAL]


def tables(distribution, count=RANKS, pooling=20.0):
    return tuple(
        replace(
            make_table(f"t{index}", rows=10_000, pooling=pooling),
            pooling_distribution=distribution,
        )
        for index in range(count)
    )


def scores(distribution, samples):
    """Scores of the plan that gives each rank one of equal tables."""
    problem = dlrm(tables(distribution), make_cluster(RANKS, RANKS), batch=samples)
    whole = [TablePlan(f"t{i}", ShardingType.TABLE_WISE, (i,)) for i in range(RANKS)]
    return PlanScorer(problem).score([ShardingPlan(RANKS, tuple(whole))])


def input_bytes(distribution, samples):
    """Indices, without lengths, that a rank with one table receives on the slowest rank."""
    from dse.workload.dlrm.scoring._features import RankFeature, rank_column

    problem = dlrm(tables(distribution), make_cluster(RANKS, RANKS), batch=samples)
    scorer = PlanScorer(problem)
    whole = [TablePlan(f"t{i}", ShardingType.TABLE_WISE, (i,)) for i in range(RANKS)]
    features = scorer.features(ShardingPlan(RANKS, tuple(whole)))
    return features[rank_column(RankFeature.INPUT), :, 0] - 4 * samples


@pytest.mark.parametrize("distribution", VARYING)
def test_the_slowest_rank_against_drawn_lengths(distribution):
    samples = 256
    model = make_model(tables(distribution))
    drawn = [
        max(lengths.sum() for lengths in local_batch(model, 0, number, 0, samples).lengths)
        for number in range(60)
    ]
    assert input_bytes(distribution, samples).max() == pytest.approx(8 * np.mean(drawn), rel=0.015)


def test_bags_of_fixed_length_add_nothing():
    assert input_bytes(PoolingDistribution.FIXED, 256) == pytest.approx(8 * 20 * 256, rel=1e-15)


def test_the_more_lengths_vary_the_slower_and_the_more_memory():
    order = [PoolingDistribution.FIXED, *VARYING]
    found = [scores(distribution, 64) for distribution in order]
    times = [float(score.iteration_time_s[0]) for score in found]
    peaks = [float(score.peak_memory_bytes[0]) for score in found]
    assert times == sorted(times)
    assert times[2] > times[0]
    assert peaks[0] < peaks[1] < peaks[2]


def test_large_batches_even_out():
    def more(samples):
        lognormal = scores(PoolingDistribution.LOGNORMAL, samples)
        fixed = scores(PoolingDistribution.FIXED, samples)
        return float(lognormal.iteration_time_s[0] / fixed.iteration_time_s[0]) - 1.0

    assert more(65_536) < 0.02
    assert input_bytes(PoolingDistribution.LOGNORMAL, 16).max() / (8 * 20 * 16) > 1.2


def test_only_tables_of_varying_bags_have_more_lookups():
    one = tables(PoolingDistribution.LOGNORMAL, 1)
    other = (make_table("fixed", rows=10_000, pooling=20),)
    scorer = PlanScorer(dlrm(one + other, make_cluster(2, 2), batch=128))
    from dse.workload.dlrm.scoring._features import RankFeature, rank_column

    plan = ShardingPlan(
        2,
        tuple(
            TablePlan(table.name, ShardingType.TABLE_WISE, (rank,))
            for rank, table in enumerate(one + other)
        ),
    )
    varying, fixed = scorer.features(plan)[rank_column(RankFeature.INPUT), :, 0]
    assert fixed == (8 * 20 + 4) * 128
    assert varying > fixed
