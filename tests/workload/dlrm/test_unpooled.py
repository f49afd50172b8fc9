"""Tables without pooling: what they exchange, hold, and how they may be cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.errors import ConfigError, PlanError
from dse.model import Interaction, InteractionKind, PoolingDistribution, SequenceLayers
from dse.sharding import ShardingPlan, ShardingType, TablePlan
from dse.workload import explain_job, predict_job
from dse.workload.dlrm import DlrmJob, DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.scoring._features import (
    ExchangeGroup,
    GroupFeature,
    RankFeature,
    group_column,
    rank_column,
)
from dse.workload.dlrm.solver import lower_bound, planning_request
from tests.conftest import make_cluster, make_model, make_table
from tests.workload.dlrm.solver.bound.oracle import best_time_s

DIM, LOOKUPS, BATCH = 16, 10, 256
SEQUENCE = SequenceLayers(layers=2, hidden=DIM, heads=2, head_dim=8, value_dim=8)
EXCHANGED = group_column(ExchangeGroup.POOLED, GroupFeature.EXCHANGED)
HELD = rank_column(RankFeature.POOLED_OUTPUT)
INPUT = rank_column(RankFeature.INPUT)


def job(types=frozenset(ShardingType), ranks=4, pooled=False, sequence=SEQUENCE, lookups=LOOKUPS):
    history = replace(make_table("item", rows=1000, dim=DIM, pooling=lookups), pooled=pooled)
    model = replace(
        make_model((history, make_table("user", rows=500, dim=DIM, pooling=1))),
        dense_features=0,
        bottom_mlp=(),
        interaction=Interaction(InteractionKind.CONCAT),
        sequence=None if pooled else sequence,
    )
    problem = DlrmProblem(model, make_cluster(ranks, 2), BATCH, model.precision, DlrmRuntime())
    return DlrmJob(problem, allowed_types=types)


def features(plan_of_item, **kinds):
    one = job(**kinds)
    tables = (plan_of_item, TablePlan("user", ShardingType.TABLE_WISE, (0,)))
    plan = ShardingPlan(one.cluster.world_size, tables)
    return one.scorer.features(one.with_plan(plan).plan)[:, :, 0]


WHOLE = TablePlan("item", ShardingType.TABLE_WISE, (1,))
ROWS = TablePlan("item", ShardingType.ROW_WISE, (0, 1, 2, 3))


def test_every_lookup_is_exchanged():
    pooled, unpooled = features(WHOLE, pooled=True), features(WHOLE)
    # One vector a bag against one a lookup, of 16 columns.
    assert pooled[EXCHANGED, 1] == DIM
    assert unpooled[EXCHANGED, 1] == LOOKUPS * DIM
    assert unpooled[HELD, 1] == BATCH * LOOKUPS * DIM
    # Eight bytes an index and four a bag come in either way.
    assert unpooled[INPUT, 1] == pooled[INPUT, 1] == BATCH * (8 * LOOKUPS + 4)


def test_rows_are_sent_by_the_rank_that_has_them():
    cut = features(ROWS)
    user = DIM * np.array([1, 0, 0, 0])
    # No sums: each of four ranks holds a quarter of the vectors, by all-to-all.
    assert cut[EXCHANGED] == pytest.approx(LOOKUPS * DIM / 4 + user, rel=0.2)
    assert cut[EXCHANGED].sum() == pytest.approx(LOOKUPS * DIM + DIM)
    assert not cut[group_column(ExchangeGroup.ROW, GroupFeature.EXCHANGED)].any()


def test_outputs_take_memory_by_lookup():
    def outputs(pooled):
        one = job(pooled=pooled, sequence=SEQUENCE)
        return one.scorer.memory.fixed_io_bytes

    # Vectors of the local batch and their gradients, four bytes a value.
    local = 2 * 4 * BATCH // 4 * DIM
    assert outputs(pooled=True) == local * 2
    assert outputs(pooled=False) == local * (LOOKUPS + 1)


@pytest.mark.parametrize(
    ("kind", "ranks", "nearest"),
    [
        (ShardingType.TABLE_ROW_WISE, (0, 1), "row_wise"),
        (ShardingType.TABLE_COLUMN_WISE, (0, 1), "column_wise"),
        (ShardingType.GRID_SHARD, (0, 1, 2, 3), "column_wise"),
    ],
)
def test_types_that_sum_on_a_node_are_refused(kind, ranks, nearest):
    with pytest.raises(PlanError, match=f"use `{nearest}`"):
        features(TablePlan("item", kind, ranks))
    with pytest.raises(ConfigError, match=nearest):
        job(frozenset({kind})).solve(time_limit_s=0.1)


def test_plans_are_found_predicted_and_explained():
    one = job()
    found = one.solve(time_limit_s=0.2)
    kinds = {table.table: table.sharding_type for table in found.plan.tables}
    assert kinds["item"] not in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)
    solved = one.with_plan(found.plan, "test")
    assert predict_job(solved).feasible
    assert explain_job(solved).ranks
    groups = set(solved.attributed().groups)
    assert {"attention over the sequence forward", "sequence layers backward"} <= groups


def test_histories_that_differ_make_ranks_wait():
    even = job(lookups=2048)
    problem = even.problem
    tables = tuple(
        replace(table, pooling_distribution=PoolingDistribution.LOGNORMAL)
        for table in problem.model.tables
    )
    model = replace(problem.model, tables=tables)
    uneven = DlrmJob(replace(problem, model=model), allowed_types=even.allowed_types)
    assert uneven.optimistic_time_s() > even.optimistic_time_s()
    assert uneven.scorer.memory.activations_bytes > even.scorer.memory.activations_bytes
    assert any("differ in length" in note for note in uneven.notes())
    assert even.notes() == ()


def test_longer_histories_take_longer():
    times = [job(lookups=length).optimistic_time_s() for length in (64, 512, 4096)]
    assert times == sorted(set(times))


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_is_below_the_bound(seed):
    rng = np.random.default_rng(seed)
    base = job(ranks=int(rng.choice([2, 4]))).problem
    tables = tuple(
        replace(
            make_table(
                f"t{index}", int(rng.integers(50, 200_000)), 32, float(rng.integers(1, 60))
            ),
            pooled=bool(rng.random() < 0.4),
        )
        for index in range(3)
    )
    if all(table.pooled for table in tables):
        tables = (replace(tables[0], pooled=False), *tables[1:])
    scorer = PlanScorer(replace(base, model=replace(base.model, tables=tables)))
    request = planning_request(scorer, frozenset(ShardingType), 0)
    best_s = best_time_s(scorer, request, limit=3000)
    assert lower_bound(scorer, request).iteration_time_s <= best_s * (1 + 1e-9)
