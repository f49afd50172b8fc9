"""Blocks of rows in the model of an iteration: what each rank looks up, receives and stores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.indices import IdOrder, Uniform, Zipf
from dse.machine.platforms import load_platform
from dse.sharding import ShardingPlan, ShardingType, TablePlan
from dse.workload.dlrm import ExchangeGroup, PlanScorer
from dse.workload.dlrm.scoring._features import (
    GroupFeature,
    RankFeature,
    group_column,
    rank_column,
)
from dse.workload.dlrm.solver import planning_request
from dse.workload.dlrm.solver._options import ShardingOptions
from dse.workload.dlrm.solver.moves import Evaluator, from_plan
from tests.conftest import make_cluster, make_table
from tests.workload.dlrm.solver.bound.oracle import dlrm

RW, TWRW = ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE
INPUT, WEIGHTS = rank_column(RankFeature.INPUT), rank_column(RankFeature.WEIGHTS)
LOOKUP = group_column(ExchangeGroup.ROW, GroupFeature.FORWARD_MEMORY)


def row_wise(tables, ranks):
    return ShardingPlan(
        ranks, tuple(TablePlan(table.name, RW, tuple(range(ranks))) for table in tables)
    )


def features(table, ranks=8, batch=1024):
    scorer = PlanScorer(dlrm((table,), make_cluster(ranks, ranks), batch=batch))
    return scorer.features(row_wise((table,), ranks))[:, :, 0]


def test_ranks_without_rows_look_up_and_store_nothing():
    table = make_table("t", rows=3, dim=16, pooling=10)
    found = features(table)
    assert found[WEIGHTS].tolist() == [16 * 4] * 3 + [0] * 5
    # Lengths of all bags reach every rank; indices only those with rows.
    assert found[INPUT] == pytest.approx([1024 * (4 + 8 * 10 / 3)] * 3 + [1024 * 4] * 5)
    assert (found[LOOKUP, :3] > 0).all()
    assert not found[LOOKUP, 3:].any()


def test_input_and_lookups_follow_the_share_of_the_block():
    # 1, 1/2, 1/3 and 1/4 in blocks of two: 18/25 and 7/25.
    indices = Zipf(1.0, ids=IdOrder.BY_POPULARITY)
    table = replace(make_table("t", rows=4, dim=16, pooling=25), indices=indices)
    found = features(table, ranks=2)
    assert found[INPUT] == pytest.approx([1024 * (4 + 8 * 18), 1024 * (4 + 8 * 7)])
    assert found[LOOKUP, 0] > found[LOOKUP, 1]


def test_even_blocks_are_one_class_and_all_ranks_alike():
    found = features(make_table("t", rows=1_000_003, dim=16, pooling=7))
    assert (found == found[:, :1]).all()
    assert found[INPUT, 0] == 1024 * (4 + 7)


def test_few_rows_on_many_ranks_take_the_time_of_their_busiest_rank():
    cluster = load_platform("h100_sxm").cluster(8)

    def time_s(rows):
        tables = tuple(
            replace(make_table(f"t{i}", rows=rows, dim=128, pooling=100), indices=Uniform())
            for i in range(8)
        )
        scorer = PlanScorer(dlrm(tables, cluster, batch=65_536))
        return float(scorer.score([row_wise(tables, 8)]).iteration_time_s[0])

    assert time_s(1) > 1.5 * time_s(3) > 1.5 * time_s(8)


def test_popular_rows_first_are_slower_than_hashed_ones():
    cluster = load_platform("h100_sxm").cluster(8)
    times_s = []
    for indices in (Uniform(), Zipf(1.1), Zipf(1.1, ids=IdOrder.BY_POPULARITY)):
        tables = tuple(
            replace(make_table(f"t{i}", rows=10_000_000, dim=128, pooling=50), indices=indices)
            for i in range(8)
        )
        scorer = PlanScorer(dlrm(tables, cluster, batch=65_536))
        found = scorer.features(row_wise(tables, 8))[INPUT, :, 0]
        times_s.append(float(scorer.score([row_wise(tables, 8)]).iteration_time_s[0]))
        assert found.sum() == pytest.approx(8 * (8 * 50 + 4 * 8) * 65_536)
    assert times_s[2] > times_s[1]


@pytest.mark.parametrize("kind", [RW, TWRW])
def test_the_search_sees_the_same_features_as_the_scorer(kind):
    tables = tuple(
        replace(make_table(f"t{i}", rows=rows, dim=32, pooling=3), indices=Zipf(1.2))
        for i, rows in enumerate((5, 1000, 300_000))
    )
    scorer = PlanScorer(dlrm(tables, make_cluster(8, 4), batch=1024))
    request = planning_request(scorer, frozenset(ShardingType), 0)
    options = ShardingOptions(scorer, request)
    ranks = tuple(range(8)) if kind is RW else (4, 5, 6, 7)
    plan = ShardingPlan(8, tuple(TablePlan(table.name, kind, ranks) for table in tables))
    found = Evaluator(options).features(from_plan(plan, options))
    expected = scorer.features(plan)[:, :, 0]
    assert found == pytest.approx(expected, rel=1e-12)
    assert len(np.unique(found[INPUT])) > 2
