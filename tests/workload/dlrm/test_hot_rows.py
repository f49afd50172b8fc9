"""Tables with hot rows: durations, exchanges and memory of a plan, and physical laws."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import ConfigError
from dse.indices import Zipf
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import Optimizer
from dse.sharding import (
    ShardingPlan,
    ShardingType,
    TablePlan,
    bag_shares,
    cold_part,
    hot_part,
    hot_share,
)
from dse.validation import Candidate
from dse.validation.trainer.reference import ReferenceTrainer
from dse.workload import PlanEffort, load_workload, predict_job
from dse.workload.dlrm import (
    DlrmJob,
    DlrmProblem,
    DlrmRuntime,
    ExchangeGroup,
    PlanScorer,
    Slot,
    slot_durations_s,
)
from dse.workload.dlrm.scoring._features import (
    GroupFeature,
    RankFeature,
    group_column,
    rank_column,
)
from tests.conftest import make_cluster, make_model, make_table

TW, CW, RW = ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE
TABLE = replace(make_table("a", rows=1_000_000, dim=64, pooling=1), indices=Zipf(1.05))
BATCH, WORLD = 8192, 4
HOT = 500


def problem(table=TABLE, optimizer=Optimizer.ROWWISE_ADAGRAD, cluster=None, **software):
    model = replace(make_model((table,)), sparse_optimizer=optimizer)
    software.setdefault("hot_rows", True)
    return DlrmProblem(
        model, cluster or make_cluster(), BATCH, Precision.TF32, DlrmRuntime(**software)
    )


def plan(hot_rows=HOT, kind=TW, ranks=(1,)) -> ShardingPlan:
    return ShardingPlan(WORLD, (TablePlan("a", kind, ranks, hot_rows=hot_rows),))


def features(scorer, made):
    return scorer.features(made)[..., 0]


def exchanged(found, group):
    return found[group_column(group, GroupFeature.EXCHANGED)]


def test_what_ranks_hold_and_exchange_by_hand():
    scorer = PlanScorer(problem())
    found = features(scorer, plan())
    share, cold = hot_share(TABLE, HOT), bag_shares(TABLE, HOT).cold
    assert cold == pytest.approx(1 - share)
    # The owner exchanges the vectors of bags that are not hot; every rank reduces the hot rows.
    assert exchanged(found, ExchangeGroup.POOLED) == pytest.approx([0, 64 * cold, 0, 0])
    assert exchanged(found, ExchangeGroup.REPLICATED) == pytest.approx([64 * HOT] * WORLD)
    # Indices of the others and the length of each bag go to the owner.
    owner = found[:, 1]
    assert owner[rank_column(RankFeature.INPUT)] == pytest.approx(BATCH * (8 * cold + 4))
    assert owner[rank_column(RankFeature.POOLED_OUTPUT)] == pytest.approx(BATCH * 64 * cold)
    # A copy has weights, a value of state for each row, and a dense gradient.
    copy_bytes, state_bytes = HOT * 64 * 4, HOT * (4 + 64 * 4)
    assert found[rank_column(RankFeature.WEIGHTS), 0] == pytest.approx(copy_bytes)
    assert found[rank_column(RankFeature.STATE), 0] == pytest.approx(state_bytes)
    others_bytes = (1_000_000 - HOT) * 64 * 4
    assert owner[rank_column(RankFeature.WEIGHTS)] == pytest.approx(copy_bytes + others_bytes)


def test_it_is_the_sum_of_a_copied_table_and_a_sharded_one():
    # Long bags all have hot and other rows, so neither part has fewer bags.
    long = replace(TABLE, pooling_factors=(2000.0,))
    whole = PlanScorer(problem(long))
    parts = (replace(hot_part(long, HOT), name="hot"), cold_part(long, HOT))
    model = replace(make_model(parts), sparse_optimizer=Optimizer.ROWWISE_ADAGRAD)
    apart = PlanScorer(replace(whole.problem, model=model))
    everyone = tuple(range(WORLD))
    made = ShardingPlan(
        WORLD,
        (
            TablePlan("hot", ShardingType.DATA_PARALLEL, everyone),
            TablePlan(TABLE.name, RW, everyone),
        ),
    )
    found, expected = features(whole, plan(kind=RW, ranks=everyone)), features(apart, made)
    # Besides the lookup, bags of both kinds are merged and indices are told apart.
    added = np.zeros_like(found)
    values = BATCH / WORLD * 64
    forward = group_column(ExchangeGroup.REPLICATED, GroupFeature.FORWARD_MEMORY)
    backward = group_column(ExchangeGroup.REPLICATED, GroupFeature.BACKWARD_MEMORY)
    added[forward] = (3 * 4 * values + 2 * 8 * BATCH / WORLD * 2000) / 0.8
    added[backward] = 2 * 4 * values / 0.8
    assert found == pytest.approx(expected + added)


def test_bags_of_one_lookup_are_worked_on_where_their_row_is():
    scorer, made = PlanScorer(problem()), plan()
    share = bag_shares(TABLE, HOT)
    assert share.hot + share.cold == pytest.approx(1)
    assert share.both == pytest.approx(0)
    written = features(scorer, made), features(scorer, plan(0))
    owner = [
        found[group_column(ExchangeGroup.POOLED, GroupFeature.FORWARD_MEMORY), 1]
        for found in written
    ]
    assert owner[0] < owner[1]


def test_gradients_of_hot_rows_travel_in_the_precision_of_the_wire():
    times_s = []
    for value_bytes in (4, 2):
        scorer = PlanScorer(problem(replicated_gradient_bytes=value_bytes))
        layout, features = scorer.layout_and_features(plan(100_000))
        assert layout == 1 << ExchangeGroup.POOLED | 1 << ExchangeGroup.REPLICATED
        found = slot_durations_s(scorer.problem, layout, features)
        times_s.append(found[:, 0, 0])
    four, two = times_s
    assert two[Slot.REPLICATED_ALL_REDUCE] < four[Slot.REPLICATED_ALL_REDUCE]
    assert two[Slot.REPLICATED_UPDATE] == four[Slot.REPLICATED_UPDATE]


@given(st.integers(1, 900_000), st.sampled_from([1.0, 3.0, 20.0]))
def test_every_hot_row_takes_work_from_the_owner_and_memory_from_all(hot_rows, pooling):
    scorer = PlanScorer(problem(replace(TABLE, pooling_factors=(pooling,))))
    without, fewer, more = (
        features(scorer, plan(count)) for count in (0, max(1, hot_rows // 2), hot_rows)
    )
    for feature in GroupFeature:
        column = group_column(ExchangeGroup.POOLED, feature)
        # Cold rows hit the cache less, so only lookups as a whole must fall.
        if feature is GroupFeature.EXCHANGED:
            assert more[column, 1] <= fewer[column, 1] <= without[column, 1]
    forward = [
        group_column(ExchangeGroup.POOLED, feature)
        for feature in (GroupFeature.FORWARD_MEMORY, GroupFeature.FORWARD_CACHE)
    ]
    assert more[forward, 1].sum() <= without[forward, 1].sum() * (1 + 1e-9)
    weights = rank_column(RankFeature.WEIGHTS)
    assert more[weights, 0] >= fewer[weights, 0] > without[weights, 0] == 0


def test_a_few_hot_rows_shorten_a_step_that_its_exchange_binds():
    cluster = make_cluster(16, 4)
    tables = tuple(replace(TABLE, name=f"t{index}", dim=256) for index in range(16))
    model = make_model(tables)
    software = DlrmRuntime(hot_rows=True)
    scorer = PlanScorer(DlrmProblem(model, cluster, 65_536, Precision.TF32, software))
    times_s = [
        scorer.score(
            [
                ShardingPlan(
                    16, tuple(TablePlan(f"t{i}", TW, (i,), hot_rows=count) for i in range(16))
                )
            ]
        ).iteration_time_s[0]
        for count in (0, 1000, 500_000)
    ]
    assert times_s[1] < 0.8 * times_s[0]
    # Too many are worse than none: all their gradients are reduced.
    assert times_s[2] > times_s[0]


def test_a_prediction_accounts_for_hot_rows_on_all_ranks():
    job = DlrmJob(problem()).with_plan(plan(100_000))
    prediction = predict_job(job)
    assert prediction.feasible
    held = [account.bytes_for("embedding weights") for account in prediction.memory]
    assert held[0] == pytest.approx(100_000 * 64 * 4)
    spreads = job.scorer.placements.lookup_spreads(job.scorer.placements.options_of(plan(100_000)))
    assert (spreads[[ExchangeGroup.POOLED, ExchangeGroup.REPLICATED]] > 0).all()


def test_real_runs_refuse_hot_rows():
    candidate = Candidate("one", problem(), plan())
    with pytest.raises(ConfigError, match="no hot rows"):
        ReferenceTrainer().checked(candidate, "cpu")


def test_plans_without_hot_rows_are_scored_as_by_any_program():
    made = plan(0)
    with_them, without = (
        PlanScorer(problem(hot_rows=allowed)).score([made]).iteration_time_s
        for allowed in (True, False)
    )
    assert np.array_equal(with_them, without)


def popular_job(**software):
    tables = tuple(
        replace(make_table(f"t{i}", rows=400_000, dim=256, pooling=1), indices=Zipf(1.1))
        for i in range(4)
    )
    cluster = make_cluster(4, 2)
    return DlrmJob(
        DlrmProblem(make_model(tables), cluster, 32_768, Precision.TF32, DlrmRuntime(**software))
    )


def test_a_thorough_search_says_what_hot_rows_bring():
    without, found = popular_job().solve(), popular_job(hot_rows=True).solve()
    assert without.time_without_hot_rows_s is None
    assert found.time_without_hot_rows_s == pytest.approx(without.iteration_time_s)
    assert found.iteration_time_s < 0.95 * without.iteration_time_s
    assert any(table.hot_rows for table in found.plan.tables)
    assert found.lower_bound_s <= found.iteration_time_s
    # Every command finds the same plan for the same job.
    assert popular_job(hot_rows=True).planned(PlanEffort()).plan == found.plan


def test_a_parameter_overrides_the_program():
    workload, platform = load_workload("dlrm_tiny"), load_platform("h100_sxm")
    given = {"platform": "h100_sxm", "world_size": 2, "global_batch_size": 4096}
    for program, hot_rows, expected in (
        ("torchrec", None, False),
        ("torchrec", True, True),
        ("hugectr", None, True),
        ("hugectr", False, False),
    ):
        chosen = {} if hot_rows is None else {"hot_rows": hot_rows}
        job = workload.job(platform, {**given, "program": program, **chosen})
        assert job.problem.software.hot_rows is expected
    best = workload.favourable({**given, "hot_rows": False}, {"hot_rows": [False, True]})
    assert best["hot_rows"] is True


def test_a_program_that_cannot_keep_hot_rows_is_named():
    (note,) = DlrmJob(problem(hot_rows=False), plan(), program="torchrec").notes()
    assert "torchrec" in note
    assert DlrmJob(problem(hot_rows=False), plan(0), program="torchrec").notes() == ()
    assert DlrmJob(problem(hot_rows=True), plan(), program="hugectr").notes() == ()


def test_without_pooling_every_lookup_is_a_vector_of_its_own():
    sequence = replace(TABLE, pooling_factors=(20.0,), pooled=False)
    scorer = PlanScorer(problem(sequence))
    found, without = features(scorer, plan()), features(scorer, plan(0))
    cold = 1 - hot_share(TABLE, HOT)
    whole = exchanged(without, ExchangeGroup.POOLED)[1]
    assert exchanged(found, ExchangeGroup.POOLED)[1] == pytest.approx(cold * whole)
    output = rank_column(RankFeature.POOLED_OUTPUT)
    assert found[output, 1] == pytest.approx(cold * without[output, 1])
