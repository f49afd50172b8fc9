"""2D parallelism: sharding groups with copies of the tables, which are averaged now and then."""

from __future__ import annotations

from dataclasses import replace
import json

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

import dse
from dse.errors import ConfigError
from dse.machine import Precision, rank_group
from dse.machine.collectives import CollectiveOp, Group, collective_time_s
from dse.machine.platforms import load_platform
from dse.sharding import ShardingPlan, ShardingType, TablePlan, stored_bytes
from dse.simulate import simulate
from dse.workload import Configuration, explain_job, load_workload
from dse.workload.dlrm import DlrmJob, DlrmRuntime, PlanScorer, Slot, WeightSync, make_problem
from dse.workload.dlrm.solver import lower_bound, planning_request
from tests.conftest import make_cluster, make_model, make_table
from tests.workload.dlrm.solver.bound.oracle import ALL, best_time_s, random_tables

TW, RW, DP = ShardingType.TABLE_WISE, ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL
TABLES = tuple(
    make_table(f"t{index}", rows=40_000 * (index + 1), pooling=5 + 7 * index) for index in range(6)
)


def problem_of(cluster, sync=None, tables=TABLES, samples=1024):
    batch = samples * cluster.whole.world_size
    model = make_model(tables)
    return make_problem(model, cluster, batch, Precision.TF32, DlrmRuntime(), sync=sync)


def plan_of(cluster, kinds, seed=0):
    rng = np.random.default_rng(seed)
    tables = []
    for table, kind in zip(TABLES, kinds, strict=True):
        rank = int(rng.integers(cluster.world_size))
        on = (rank,) if kind is TW else tuple(range(cluster.world_size))
        tables.append(TablePlan(table.name, kind, on))
    return ShardingPlan(cluster.world_size, tuple(tables))


def slots_of(problem, plan):
    """Durations of what the plan decides, by slot and rank."""
    layout = PlanScorer(problem).filled(plan).expanded()
    keys = zip(layout.slot_kind.tolist(), layout.slot_rank.tolist(), strict=True)
    return dict(zip(keys, layout.graph.duration_s[layout.slot_task].tolist(), strict=True))


kinds = st.lists(st.sampled_from([TW, RW]), min_size=6, max_size=6)


def test_one_replica_is_the_job_without_replicas():
    where = {"world_size": 8, "global_batch_size": 8192}
    workload, platform = load_workload("dlrm_tiny"), load_platform("h100_sxm")
    jobs = [
        workload.job(platform, {**where, "replicas": 1, "sync_interval": 7, **more})
        for more in ({}, {"replica_placement": "contiguous"}, {"sync_optimizer_state": False})
    ]
    # Equal keys have equal plans and predictions.
    assert {job.key() for job in jobs} == {workload.job(platform, where).key()}


@given(kinds, st.integers(0, 100), st.sampled_from([2, 4]))
def test_a_group_of_a_node_does_what_as_many_ranks_do_alone(kinds, seed, replicas):
    alone = make_cluster(16 // replicas, 16)
    group = rank_group(make_cluster(16, 16), alone.world_size, replicas)
    plan = plan_of(alone, kinds, seed)
    grouped = slots_of(problem_of(group), plan)
    assert {key: s for key, s in grouped.items() if key[0] != Slot.WEIGHT_SYNC} == slots_of(
        problem_of(alone), plan
    )
    own, other = (PlanScorer(problem_of(one)) for one in (group, alone))
    features = own.features(plan)
    assert (
        own.memory.total_bytes(features).tolist()
        == other.memory.total_bytes(other.features(plan)).tolist()
    )


@given(kinds, st.integers(0, 100), st.sampled_from([1, 2, 10, 1000]))
def test_the_average_of_copies_comes_on_top_and_is_spread_over_its_interval(kinds, seed, interval):
    group = rank_group(make_cluster(16, 8), 8, 2)
    plan = plan_of(group, kinds, seed)
    every, some, never = (
        PlanScorer(problem_of(group, WeightSync(each))) for each in (1, interval, 10**12)
    )
    base_s = never.score([plan]).iteration_time_s[0]
    once_s = every.score([plan]).iteration_time_s[0] - base_s
    found_s = some.score([plan]).iteration_time_s[0]
    assert once_s > 0
    assert found_s == pytest.approx(base_s + once_s / interval, rel=1e-9)
    # One rank for all, all ranks, and the compiled form agree.
    graph = some.filled(plan).expanded().graph
    assert simulate(graph).makespan_s == pytest.approx(found_s, rel=1e-12)


@pytest.mark.parametrize("samples", [None, 40_960])
def test_groups_evaluate_equal_parts_at_the_same_time(samples):
    storage = {"storage_bandwidth_bytes_per_s": 1e6}
    for more in ({}, storage):
        alone = make_cluster(8, 8, **more)
        group = rank_group(make_cluster(16, 8, **more), 8, 1)
        plan = plan_of(alone, [TW] * 6)
        times_s = []
        for cluster in (alone, group):
            groups = cluster.replicas
            software = DlrmRuntime(
                evaluation_batch_size=samples and groups * samples,
                evaluation_batch_s=1e-3,
                evaluation_s_per_sample=1e-7,
                read_value_bytes=4.0,
            )
            job = DlrmJob(replace(problem_of(cluster), software=software)).with_plan(plan)
            times_s.append(job.evaluation_time_s(groups * 1e6))
        assert times_s[0] == pytest.approx(times_s[1])


def test_a_shard_is_reduced_over_the_ranks_that_hold_it():
    whole = make_cluster(16, 8)
    group = rank_group(whole, 4, 4)
    plan = ShardingPlan(
        4,
        tuple(
            TablePlan(t.name, TW if i < 2 else DP, (1,) if i < 2 else (0, 1, 2, 3))
            for i, t in enumerate(TABLES)
        ),
    )
    optimizer = make_model().sparse_optimizer
    own = sum(stored_bytes(t, optimizer, t.rows, t.dim) for t in TABLES[:2])
    weights = sum(4.0 * t.rows * t.dim for t in TABLES[:2])
    for sync, size_bytes in ((None, own), (WeightSync(optimizer_state=False), weights)):
        found = slots_of(problem_of(group, sync), plan)
        # Replicated tables have their gradients reduced over all ranks instead. Four copies are
        # neighbours on a node.
        alone_s = collective_time_s(whole, CollectiveOp.ALL_REDUCE, size_bytes, Group(1, 4))
        assert found[Slot.WEIGHT_SYNC, 0] == pytest.approx(float(alone_s))
        copied = 4.0 * sum(t.rows * t.dim for t in TABLES[2:])
        reduced_s = collective_time_s(whole, CollectiveOp.ALL_REDUCE, copied)
        assert found[Slot.REPLICATED_ALL_REDUCE, 0] == pytest.approx(float(reduced_s))


def test_copies_on_other_nodes_share_the_network_cards():
    whole = make_cluster(16, 8)
    one_card = replace(whole, network=replace(whole.network, nics_per_node=1))
    table = make_table("large", rows=4_000_000)
    one = ShardingPlan(8, (TablePlan("large", TW, (0,)),))
    every = ShardingPlan(8, (TablePlan("large", RW, tuple(range(8))),))
    seconds = {
        (cluster.network.nics_per_node, plan is one): slots_of(
            problem_of(rank_group(cluster, 8, 1), tables=(table,)), plan
        )[Slot.WEIGHT_SYNC, 0]
        for cluster in (whole, one_card)
        for plan in (one, every)
    }
    # A whole table on one rank goes through its own card, an eighth of it on each through all.
    assert seconds[8, True] == pytest.approx(8 * seconds[8, False], rel=0.05)
    # One card for the node has the same bytes to carry either way.
    assert seconds[1, True] == pytest.approx(seconds[1, False], rel=0.05)
    assert seconds[1, True] == pytest.approx(seconds[8, True], rel=0.05)


@pytest.mark.parametrize(("replicas", "stride"), [(2, 2), (2, 1), (4, 1)])
def test_no_plan_of_a_group_is_below_the_bound(replicas, stride):
    rng = np.random.default_rng(replicas + stride)
    # With one small table copies on every rank are best, and nothing is averaged.
    for tables, interval in ((1, 1), (2, 50), (3, 1)):
        for ranks in (2, 4):
            group = rank_group(make_cluster(ranks * replicas, 4), ranks, stride)
            made = random_tables(rng, tables)
            scorer = PlanScorer(problem_of(group, WeightSync(interval), made))
            request = planning_request(scorer, ALL, 0)
            best_s = best_time_s(scorer, request, limit=800)
            bound = lower_bound(scorer, request)
            assert bound.iteration_time_s <= best_s
            assert bound.gap(best_s) < 0.5


def test_row_wise_exchanges_over_a_slow_network_gain_from_groups():
    slow = make_cluster(64, 8)
    slow = replace(slow, network=replace(slow.network, nic_bandwidth_bytes_per_s=3e9))
    kinds, seldom = [RW] * 6, WeightSync(1000)

    def time_s(cluster):
        scorer = PlanScorer(problem_of(cluster, seldom))
        return float(scorer.score([plan_of(cluster, kinds)]).iteration_time_s[0])

    # A group of one node exchanges nothing between nodes.
    assert time_s(rank_group(slow, 8, 1)) < time_s(rank_group(slow, 32, 1)) < time_s(slow)


def test_what_is_predicted_is_of_all_ranks_and_listed_for_a_group():
    where = {"world_size": 16, "global_batch_size": 16384}
    job = load_workload("dlrm_tiny").job(load_platform("h100_sxm"), {**where, "replicas": 4})
    assert isinstance(job, DlrmJob)
    assert (job.world_size, job.samples_per_iteration) == (16, 16384)
    assert job.represented.world_size == 4
    plan = ShardingPlan(
        4, tuple(TablePlan(t.name, RW, (0, 1, 2, 3)) for t in job.problem.model.tables)
    )
    planned = job.with_plan(plan)
    assert len(planned.memory()) == len(planned.simulated().breakdown) == 4
    assert "weight sync" in planned.attributed().groups
    explained = explain_job(planned)
    assert explained.iteration_time_s == pytest.approx(planned.simulated().time_s)


def test_groups_are_exported_for_torchrec():
    workload = load_workload("dlrm_tiny")
    parameters = {
        "platform": "h100_sxm",
        "world_size": 32,
        "global_batch_size": 32768,
        "replicas": 4,
        "replica_placement": "contiguous",
        "sync_interval": 20,
    }
    names = [table.name for table in workload.tables]
    plan = ShardingPlan(8, tuple(TablePlan(name, RW, tuple(range(8))) for name in names))
    configuration = Configuration(
        "dlrm", "h100_sxm", 32, 32768, tuple(parameters.items()), "torchrec", plan
    )
    text = workload.framework_text(configuration, "torchrec", load_platform("h100_sxm"))
    document = json.loads(text)
    assert document["world_size"] == 8
    assert document["dmp_collection"] == {
        "world_size": 32,
        "sharding_group_size": 8,
        "node_group_size": 8,
        "use_inter_host_allreduce": True,
    }
    assert document["sync"] == {"interval": 20, "include_optimizer_state": True}


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": 3},
        {"replicas": 16},
        {"replicas": 2, "program": "hugectr"},
        {"replicas": 2, "replica_placement": "diagonal"},
    ],
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError):
        dse.Job("dlrm_tiny", "h100_sxm", world_size=16, global_batch_size=16384, **wrong)
