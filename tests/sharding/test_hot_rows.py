"""Hot rows: the two parts of a table, and the numbers of hot rows worth trying."""

from __future__ import annotations

from dataclasses import replace
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import PlanError
from dse.indices import PopularityRange, ReuseHistogram, Zipf
from dse.model import LENGTH_SPREAD, PoolingDistribution
from dse.sharding import (
    ShardingPlan,
    ShardingType,
    TablePlan,
    bag_shares,
    check_plan,
    cold_part,
    hot_part,
    hot_row_counts,
    hot_share,
    plan_to_json,
    plan_to_torchrec,
    read_plan,
    table_shards,
)
from tests.conftest import make_table

TW, RW, DP = ShardingType.TABLE_WISE, ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL


def zipf_table(rows=1000, alpha=1.0, pooling=1.0):
    return replace(make_table("a", rows=rows, pooling=pooling), indices=Zipf(alpha))


#: Ranks 1 to 4 of a Zipf distribution with exponent 1: shares 12, 6, 4 and 3 of 25.
FOUR = zipf_table(rows=4)


def test_parts_of_a_table_of_four_rows_by_hand():
    assert hot_share(FOUR, 1) == pytest.approx(12 / 25)
    hot, cold = hot_part(FOUR, 1), cold_part(FOUR, 1)
    assert (hot.rows, cold.rows) == (1, 3)
    assert hot.pooling_factors == pytest.approx((12 / 25,))
    assert cold.pooling_factors == pytest.approx((13 / 25,))
    assert cold.indices.buckets(3).probability == pytest.approx(np.array([6, 4, 3]) / 13)
    assert cold_part(FOUR, 0) is FOUR


def test_a_block_of_the_other_rows_has_an_even_share_of_each_popularity():
    block = cold_part(zipf_table(), 100).indices.buckets(90)
    assert block.rows.sum() == pytest.approx(90)
    assert block.rows @ block.probability == pytest.approx(1)
    whole = cold_part(zipf_table(), 100).indices.buckets(900)
    assert block.probability == pytest.approx(10 * whole.probability)


def test_rows_that_are_never_drawn_are_equally_likely():
    seen = ReuseHistogram((0.5, 0.5), (0.9, 0.1), 4.0, 0.001)
    nothing = PopularityRange(seen, 1_000_000, 900_000, 1_000_000).buckets(100)
    assert nothing.rows.tolist() == [100.0]
    assert nothing.probability.tolist() == [0.01]


@pytest.mark.parametrize(
    ("distribution", "pooling", "cold"),
    [
        (PoolingDistribution.FIXED, 1.0, 13 / 25),
        (PoolingDistribution.FIXED, 2.0, 1 - (12 / 25) ** 2),
        # Every second bag has one lookup, the others none.
        (PoolingDistribution.FIXED, 0.5, 0.5 * 13 / 25),
        (PoolingDistribution.POISSON, 2.0, 1 - math.exp(-2 * 13 / 25)),
    ],
)
def test_bags_with_a_lookup_of_another_row_by_hand(distribution, pooling, cold):
    table = replace(FOUR, pooling_factors=(pooling,), pooling_distribution=distribution)
    assert bag_shares(table, 1).cold == pytest.approx(cold)
    assert bag_shares(table, 0) == (0.0, 1.0, 0.0)


def test_bags_with_hot_and_other_rows_by_hand():
    two = replace(FOUR, pooling_factors=(2.0,))
    # Both hot, both others, or one of each.
    hot, cold = 12 / 25, 13 / 25
    assert bag_shares(two, 1) == pytest.approx((1 - cold**2, 1 - hot**2, 2 * hot * cold))
    half = replace(FOUR, pooling_factors=(0.5,))
    assert bag_shares(half, 1) == pytest.approx((0.5 * hot, 0.5 * cold, 0.0))


@given(st.floats(0.3, 1.5), st.integers(3, 100_000), st.floats(0.5, 50), st.integers(1, 99))
def test_more_hot_rows_leave_fewer_lookups_and_bags_to_the_others(alpha, rows, pooling, percent):
    table = zipf_table(rows, alpha, pooling)
    more = max(1, rows * percent // 100)
    fewer = max(1, more // 2)
    assert 0 <= hot_share(table, fewer) <= hot_share(table, more) <= 1
    assert bag_shares(table, more).cold <= bag_shares(table, fewer).cold + 1e-12
    hot, cold = hot_part(table, more), cold_part(table, more)
    assert hot.rows + cold.rows == rows
    assert hot.lookups_per_sample + cold.lookups_per_sample == pytest.approx(pooling)
    # Nothing is looked up that the whole table would not.
    draws = 1000.0
    distinct = sum(
        part.indices.expected_unique_rows(part.rows, draws * part.lookups_per_sample / pooling)
        for part in (hot, cold)
    )
    whole = table.indices.expected_unique_rows(rows, draws)
    assert distinct == pytest.approx(whole, rel=0.02)


def test_bags_of_varying_length_are_those_of_a_simulated_draw():
    table = replace(
        FOUR, pooling_factors=(2.5,), pooling_distribution=PoolingDistribution.LOGNORMAL
    )
    rng = np.random.default_rng(0)
    mean = 2.5 * np.exp(LENGTH_SPREAD * rng.standard_normal(200_000) - 0.5 * LENGTH_SPREAD**2)
    lengths = np.floor(mean + rng.random(len(mean)))
    hot = (1 - (13 / 25) ** lengths).mean()
    cold = (1 - (12 / 25) ** lengths).mean()
    assert bag_shares(table, 1)[:2] == pytest.approx((hot, cold), abs=0.005)


def test_counts_follow_draws_of_single_rows_and_equal_rows_have_none():
    table = zipf_table(rows=100_000)
    counts = hot_row_counts(table, 1000.0)
    popularity = table.indices.buckets(table.rows)
    assert counts == tuple(sorted(set(counts)))
    for count, least in zip(counts, (4.0, 1.0, 0.25), strict=True):
        assert count == pytest.approx(
            popularity.rows[1000 * popularity.probability >= least].sum(), abs=1
        )
    assert hot_row_counts(table, 1000.0, few=True) == (counts[1],)
    assert hot_row_counts(make_table("even"), 1000.0) == ()
    assert hot_row_counts(zipf_table(rows=4), 1e6) == ()


def test_shards_are_those_of_the_other_rows():
    table = make_table("a", rows=1001, dim=32)
    shards = table_shards(TablePlan("a", RW, (0, 1, 2, 3), hot_rows=1), table, 4)
    assert [(shard.row_offset, shard.rows) for shard in shards] == [
        (1, 250),
        (251, 250),
        (501, 250),
        (751, 250),
    ]


def test_a_plan_with_hot_rows_is_written_and_read(tmp_path):
    plan = ShardingPlan(2, (TablePlan("a", TW, (1,), hot_rows=7), TablePlan("b", TW, (0,))))
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(plan, "model"))
    assert read_plan(path) == plan
    assert path.read_text().count("hot_rows") == 1


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (TablePlan("a", TW, (0,), hot_rows=1000), "1,000 hot rows of 1,000"),
        (TablePlan("a", TW, (0,), hot_rows=-1), "hot rows"),
        (TablePlan("a", DP, (0, 1), hot_rows=5), "leave `hot_rows` out"),
    ],
)
def test_impossible_numbers_of_hot_rows_are_refused(placement, words):
    with pytest.raises(PlanError, match=words):
        check_plan(ShardingPlan(2, (placement,)), (make_table("a", rows=1000),), 2, 2)


def test_torchrec_is_refused_by_name():
    plan = ShardingPlan(2, (TablePlan("a", TW, (0,), hot_rows=5),))
    with pytest.raises(PlanError, match="TorchRec keeps no hot rows"):
        plan_to_torchrec(plan, (make_table("a"),), 2)
