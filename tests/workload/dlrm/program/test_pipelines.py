"""Train pipelines and TorchRec's handling of features: what they hide, hold and cost the host."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.sharding import ComputeKernel, ShardingPlan, ShardingType, TablePlan
from dse.workload import find_program, load_workload, predict_job
from dse.workload.dlrm import (
    DLRM_PROGRAMS,
    DlrmJob,
    DlrmProblem,
    DlrmRuntime,
    HandlingTimes,
    HostOperators,
    PlanScorer,
    Slot,
    TrainPipeline,
)
from tests.conftest import make_cluster, make_model, make_table
from tests.workload.dlrm.test_prediction import spread_plan

TW, RW = ShardingType.TABLE_WISE, ShardingType.ROW_WISE
RESERVED = "reserved by the allocator"
#: Nothing of the host: only what the devices do decides.
FREE = {"before_launch_s": 0.0, "after_launch_s": 0.0, "launch_s": 0.0, "between_operators_s": 0.0}
#: One dispatch of one launch takes 18 µs.
DISPATCH_S = 18e-6


def problem_of(software=None, *, tables=None, world_size=4, batch=4096, free_host=False):
    cluster = make_cluster(world_size)
    if free_host:
        cluster = replace(cluster, host=replace(cluster.host, **FREE, between_launches_s=0.0))
    return DlrmProblem(
        make_model(tables), cluster, batch, Precision.TF32, software or DlrmRuntime()
    )


def time_s(problem, plan) -> float:
    return float(PlanScorer(problem).score([plan]).iteration_time_s[0])


def host_s(problem, plan) -> float:
    """Host time of rank 0."""
    graph = PlanScorer(problem).filled(plan).expanded().graph
    host = [
        index
        for index, stream in enumerate(graph.streams)
        if stream.name == "host" and stream.rank == 0
    ]
    return float(graph.duration_s[np.isin(graph.stream, host)].sum())


def plan_of(tables, kind=TW, world_size=4) -> ShardingPlan:
    everyone = tuple(range(world_size))
    return ShardingPlan(
        world_size,
        tuple(
            TablePlan(table.name, kind, everyone if kind is RW else (index % world_size,))
            for index, table in enumerate(tables)
        ),
    )


# --- what overlaps ------------------------------------------------------------------------------


def test_each_pipeline_hides_no_less_than_the_one_that_it_extends():
    times = {
        pipeline: time_s(problem_of(DlrmRuntime(pipeline=pipeline), free_host=True), spread_plan())
        for pipeline in TrainPipeline
    }
    ahead = times[TrainPipeline.SPARSE_DIST]
    assert times[TrainPipeline.BASE] > ahead
    assert times[TrainPipeline.FUSED_SPARSE_DIST] <= ahead
    assert times[TrainPipeline.SEMI_SYNC] < ahead
    # Nothing is in host memory, so nothing is fetched from there.
    assert times[TrainPipeline.PREFETCH] == ahead


def test_lookups_ahead_of_updates_hide_their_whole_exchange():
    """What is left is the sum of all kernels and the exchange of gradients."""
    semi = DlrmRuntime(pipeline=TrainPipeline.SEMI_SYNC)
    layout = PlanScorer(problem_of(semi, free_host=True)).filled(spread_plan()).expanded()
    graph = layout.graph
    compute = [index for index, stream in enumerate(graph.streams) if stream.name == "compute"]
    exchange_s = graph.duration_s[layout.slot_task[layout.slot_kind == Slot.POOLED_EXCHANGE]]
    busy_s = max(float(graph.duration_s[graph.stream == index].sum()) for index in compute)
    found = time_s(problem_of(semi, free_host=True), spread_plan())
    # Of two exchanges only that of gradients, behind the last dense operator, may be left.
    assert busy_s * (1 - 1e-9) <= found <= busy_s + exchange_s.max()


def test_a_prefetch_takes_rows_out_of_the_lookup():
    table = make_table("a", rows=1_000_000, dim=64, pooling=10)
    plan = ShardingPlan(4, (TablePlan("a", TW, (1,), ComputeKernel.FUSED_UVM_CACHING, 0.1),))
    slots = {}
    for pipeline in (TrainPipeline.SPARSE_DIST, TrainPipeline.PREFETCH):
        scorer = PlanScorer(problem_of(DlrmRuntime(pipeline=pipeline), tables=(table,)))
        layout = scorer.filled(plan).expanded()
        seconds = layout.graph.duration_s[layout.slot_task]
        slots[pipeline] = {
            slot: seconds[layout.slot_kind == slot].max(initial=0.0) for slot in Slot
        }
    before, after = slots[TrainPipeline.SPARSE_DIST], slots[TrainPipeline.PREFETCH]
    fetched_s = after[Slot.ROW_PREFETCH]
    assert before[Slot.ROW_PREFETCH] == 0.0
    assert fetched_s > 0.0
    assert after[Slot.POOLED_LOOKUP] + fetched_s == pytest.approx(before[Slot.POOLED_LOOKUP])
    assert after[Slot.POOLED_UPDATE] == before[Slot.POOLED_UPDATE]


def test_rows_without_a_cache_cannot_be_prefetched():
    table = make_table("a", rows=1_000_000, dim=64, pooling=10)
    plan = ShardingPlan(4, (TablePlan("a", TW, (1,), ComputeKernel.FUSED_UVM),))
    ahead, prefetch = (
        time_s(problem_of(DlrmRuntime(pipeline=pipeline), tables=(table,), free_host=True), plan)
        for pipeline in (TrainPipeline.SPARSE_DIST, TrainPipeline.PREFETCH)
    )
    assert ahead == prefetch


# --- host ---------------------------------------------------------------------------------------


def test_host_time_by_hand():
    """Two features in a table-wise group, besides the operators of the model."""
    tables = (make_table("a"), make_table("b"))
    host = HostOperators(batch=10.0, feature=2.0, group=6.0, cut_rows=3.0, replicated=9.0)
    plain = problem_of(tables=tables)
    handled = problem_of(DlrmRuntime(host_operators=host), tables=tables)
    for kind, operators in ((TW, 10 + 2 * 2 + 6), (RW, 10 + 2 * 2 + 6 + 3)):
        plan = plan_of(tables, kind)
        added_s = host_s(handled, plan) - host_s(plain, plan)
        assert added_s == pytest.approx(operators * DISPATCH_S)
    copies = ShardingPlan(
        4, tuple(TablePlan(t.name, ShardingType.DATA_PARALLEL, (0, 1, 2, 3)) for t in tables)
    )
    added_s = host_s(handled, copies) - host_s(plain, copies)
    assert added_s == pytest.approx((10 + 2 * 2 + 9) * DISPATCH_S)


def test_handling_on_a_cpu_by_hand():
    """Two features; the second table is in a group of its own where it is cut by rows."""
    tables = (make_table("a"), make_table("b"))
    times = HandlingTimes(
        batch_s=1e-3, feature_s=2e-4, group_s=3e-4, cut_rows_s=1e-4, replicated_s=5e-4
    )
    plain, handled = (
        problem_of(tables=tables),
        problem_of(DlrmRuntime(handling=times), tables=tables),
    )
    every = tuple(range(4))
    for kind, added_s in (
        (TW, 1e-3 + 2 * 2e-4 + 3e-4),
        (RW, 1e-3 + 2 * 2e-4 + 3e-4 + 3e-4 + 1e-4),
        (ShardingType.DATA_PARALLEL, 1e-3 + 2 * 2e-4 + 3e-4 + 5e-4),
    ):
        second = TablePlan("b", kind, (1,) if kind is TW else every)
        plan = ShardingPlan(4, (TablePlan("a", TW, (0,)), second))
        assert host_s(handled, plan) - host_s(plain, plan) == pytest.approx(added_s)


@given(
    features=st.integers(1, 40),
    more=st.integers(0, 40),
    pipeline=st.sampled_from(list(TrainPipeline)),
)
@settings(max_examples=15, deadline=None)
def test_more_features_never_take_less_host_time(features, more, pipeline):
    software = replace(find_program(DLRM_PROGRAMS, "torchrec").software, pipeline=pipeline)
    times = []
    for count in (features, features + more):
        tables = tuple(make_table(f"t{index}") for index in range(count))
        problem = problem_of(software, tables=tables)
        times.append(host_s(problem, plan_of(tables)))
    per_feature = software.host_operators.feature * DISPATCH_S
    assert times[1] - times[0] == pytest.approx(more * per_feature, abs=1e-9)


def test_under_torchrec_layers_cost_what_they_cost_in_any_eager_loop():
    torchrec = find_program(DLRM_PROGRAMS, "torchrec").software
    added = []
    for software in (DlrmRuntime(), torchrec):
        shallow = problem_of(software)
        model = replace(shallow.model, top_mlp=(256, *[256] * 10, 1))
        deep = replace(shallow, model=model)
        added.append(host_s(deep, spread_plan()) - host_s(shallow, spread_plan()))
    # Forward, activation, their gradients, and the gradient of weights: five dispatches a layer.
    assert added == pytest.approx([10 * 5 * DISPATCH_S] * 2, rel=0.1)


def test_under_torchrec_rows_cut_over_ranks_cost_more_host_and_device_time():
    tables = tuple(make_table(f"t{index}") for index in range(4))
    torchrec = find_program(DLRM_PROGRAMS, "torchrec").software
    problem = problem_of(torchrec, tables=tables)
    assert host_s(problem, plan_of(tables, RW)) > host_s(problem, plan_of(tables, TW))
    plain = problem_of(tables=tables)

    def lookup_s(of, plan):
        layout = PlanScorer(of).filled(plan).expanded()
        slot = Slot.ROW_LOOKUP if plan.tables[0].sharding_type is RW else Slot.POOLED_LOOKUP
        return layout.graph.duration_s[layout.slot_task[layout.slot_kind == slot]].max()

    more = [
        lookup_s(problem, plan_of(tables, kind)) - lookup_s(plain, plan_of(tables, kind))
        for kind in (TW, RW)
    ]
    assert 0 < more[0] < more[1]


# --- wire, graphs, memory -----------------------------------------------------------------------


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_torchrec_sends_four_bytes_whatever_the_precision(precision):
    for program, wire_bytes in (("torchrec", 4), ("torchrec_dlrm", 4), ("hugectr", 2)):
        wire = DLRM_PROGRAMS[program].software_for(precision).wire
        assert wire.forward.value_bytes == wire.backward.value_bytes == wire_bytes


def test_host_read_splits_cannot_be_captured():
    workload, platform = load_workload("dlrm_tiny"), load_platform("h100_sxm")
    chosen = {"platform": "h100_sxm", "world_size": 2, "global_batch_size": 4096}
    for program in ("torchrec", "torchrec_dlrm"):
        with pytest.raises(ConfigError, match=r"cannot be captured.*hugectr"):
            workload.job(platform, {**chosen, "program": program, "launch": "cuda_graphs"})
    workload.job(platform, {**chosen, "program": "hugectr", "launch": "cuda_graphs"})
    # A bound on configurations that may be captured is one that can be.
    choices = {"launch": ("eager", "cuda_graphs")}
    favourable = workload.favourable({**chosen, "program": "torchrec"}, choices)
    assert favourable.get("launch", "eager") == "eager"
    assert workload.favourable({**chosen, "program": "hugectr"}, choices)["launch"] != "eager"


def test_programs_have_the_pipelines_that_they_are_written_with():
    workload, platform = load_workload("dlrm_tiny"), load_platform("h100_sxm")
    chosen = {"platform": "h100_sxm", "world_size": 2, "global_batch_size": 4096}
    for pipeline in TrainPipeline:
        workload.job(platform, {**chosen, "program": "torchrec", "train_pipeline": pipeline})
    with pytest.raises(ConfigError, match="no such pipeline"):
        workload.job(platform, {**chosen, "program": "hugectr", "train_pipeline": "semi_sync"})


def test_the_switch_of_earlier_versions_is_a_pipeline():
    workload, platform = load_workload("dlrm_tiny"), load_platform("h100_sxm")
    chosen = {"platform": "h100_sxm", "world_size": 2, "global_batch_size": 4096}
    for former, pipeline in ((True, "sparse_dist"), (False, "base")):
        old = workload.job(platform, {**chosen, "prefetch_input": former})
        new = workload.job(platform, {**chosen, "train_pipeline": pipeline})
        assert old.key() == new.key()
        block = workload.parameters.model_validate(
            {
                "platform": ["h100_sxm"],
                "world_size": [2],
                "global_batch_size": [4096],
                "prefetch_input": former,
            }
        )
        assert block.train_pipeline == [pipeline]


def test_reserved_memory_by_hand():
    """One rank, one table of 64 columns with pooling 10, so that all parts are known."""
    table = make_table("a", rows=1000, dim=64, pooling=10)
    plan = ShardingPlan(1, (TablePlan("a", TW, (0,)),))
    accounts = {}
    for pipeline in (TrainPipeline.BASE, TrainPipeline.SPARSE_DIST, TrainPipeline.PREFETCH):
        software = replace(find_program(DLRM_PROGRAMS, "torchrec").software, pipeline=pipeline)
        problem = problem_of(software, tables=(table,), world_size=1, batch=512)
        (accounts[pipeline],) = DlrmJob(problem).with_plan(plan).memory()
    batch_bytes = 512 * (10 * 8 + 4)
    io = {name: of.bytes_for("indices and pooled embeddings") for name, of in accounts.items()}
    base, ahead, prefetch = io.values()
    # Two own batches and a received one more, and one of each for one more stage.
    assert ahead - base == pytest.approx(3 * batch_bytes)
    assert prefetch - ahead == pytest.approx(2 * batch_bytes)
    for account, ratio in zip(accounts.values(), (1.30, 1.43, 1.43), strict=True):
        allocated = sum(
            account.bytes_for(purpose)
            for purpose in (
                "activations",
                "indices and pooled embeddings",
                "communication buffers",
            )
        )
        assert account.bytes_for(RESERVED) == pytest.approx((ratio - 1) * allocated)
        assert account.allocated_bytes == account.total_bytes - account.bytes_for(RESERVED)


def test_other_programs_count_what_is_allocated():
    account = predict_job(DlrmJob.scored(PlanScorer(problem_of()), spread_plan())).memory[0]
    assert account.bytes_for(RESERVED) == 0.0
