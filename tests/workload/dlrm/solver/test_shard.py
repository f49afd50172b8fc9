from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

import dse
from dse.errors import ConfigError, InfeasibleError
from dse.machine import Precision
from dse.sharding import (
    PLANNERS,
    ComputeKernel,
    ShardingPlan,
    ShardingType,
    TableConstraints,
    TablePlan,
    check_plan,
    parse_allow,
    parse_pin,
)
from dse.workload import PlanEffort, predict_job
from dse.workload.dlrm import DlrmJob, DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import ShardingSolution, find_plan, planning_request
from tests.conftest import make_cluster, make_device, make_model, make_table

TW, RW = ShardingType.TABLE_WISE, ShardingType.ROW_WISE
UVM, CACHING = ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING


def make_scorer(tables=None, cluster=None, batch=8192) -> PlanScorer:
    return PlanScorer(
        DlrmProblem(
            make_model(tables), cluster or make_cluster(), batch, Precision.TF32, DlrmRuntime()
        )
    )


def by_name(plan: ShardingPlan) -> dict[str, TablePlan]:
    return {table.table: table for table in plan.tables}


def without_times(found: ShardingSolution) -> ShardingSolution:
    return replace(found, planning_time_s=0, bound_time_s=0)


def test_the_solution_is_consistent():
    scorer = make_scorer()
    found = find_plan(scorer)
    prediction = predict_job(DlrmJob.scored(scorer, found.plan))
    assert found.iteration_time_s == prediction.iteration_time_s
    assert found.peak_memory_bytes == max(prediction.memory_bytes_per_rank)
    assert found.fits
    assert 0 < found.lower_bound_s <= found.iteration_time_s * (1 + 1e-9)
    assert found.gap == pytest.approx(found.iteration_time_s / found.lower_bound_s - 1)
    assert found.planning_time_s > 0
    assert found.bound_time_s > 0
    assert found.plans_scored >= len(PLANNERS)


def test_constraints_hold_and_cost_no_more_than_every_allowed_plan():
    tables = tuple(make_table(f"t{i}", 100_000 * (i + 1), pooling=5 + i) for i in range(4))
    scorer = make_scorer(tables, make_cluster(2, 2))
    constraints = (parse_pin("t0=1"), parse_allow("t*=table_wise,fused"), parse_pin("t3=1"))
    found = find_plan(scorer, constraints=constraints)
    placed = by_name(found.plan)
    assert placed["t0"].ranks == placed["t3"].ranks == (1,)
    every = [
        ShardingPlan(2, tuple(TablePlan(f"t{i}", TW, (r,)) for i, r in enumerate((1, a, b, 1))))
        for a, b in product(range(2), repeat=2)
    ]
    optimum = scorer.score(every).iteration_time_s.min()
    assert found.iteration_time_s == pytest.approx(optimum, rel=1e-9)
    assert found.lower_bound_s <= optimum * (1 + 1e-9)


def test_types_kernels_and_patterns_are_kept():
    constraints = (parse_allow("t[0-2]=row_wise"), parse_allow("t5=table_wise,fused_uvm"))
    placed = by_name(find_plan(make_scorer(), constraints=constraints).plan)
    assert {placed[f"t{i}"].sharding_type for i in range(3)} == {RW}
    assert (placed["t5"].sharding_type, placed["t5"].compute_kernel) == (TW, UVM)
    assert {placed[f"t{i}"].compute_kernel.on_host for i in range(5)} == {False}


TIGHT = tuple(make_table(f"t{i}", rows=2_000_000, pooling=5) for i in range(8))


def tight(memory=3e9, **changes):
    return make_scorer(
        TIGHT, make_cluster(2, 2, device=make_device(memory_bytes=memory), **changes)
    )


def test_host_memory_makes_room():
    # Eight tables of 0.52 GB on two devices with 1 GB each.
    with pytest.raises(InfeasibleError, match=r"all tables together take at least 3\.9 GiB"):
        find_plan(tight())
    found = find_plan(tight(), allow_uvm=True)
    assert found.fits
    assert any(table.compute_kernel.on_host for table in found.plan.tables)
    assert 0 < found.lower_bound_s <= found.iteration_time_s * (1 + 1e-9)
    assert check_plan(found.plan, TIGHT, 2, 2) == found.plan


def test_host_memory_is_not_used_where_the_devices_have_room():
    scorer = make_scorer(cluster=make_cluster(2, 2))
    without, allowed = find_plan(scorer), find_plan(scorer, allow_uvm=True)
    assert allowed.iteration_time_s <= without.iteration_time_s
    assert not any(table.compute_kernel.on_host for table in allowed.plan.tables)


def test_host_memory_that_is_too_small_is_reported():
    # About 4.1 GB in all, of which the devices cannot hold half.
    with pytest.raises(InfeasibleError, match=r"953\.7 MiB of host memory, 1\.2 GiB are missing"):
        find_plan(tight(host_memory_bytes=1e9), allow_uvm=True)
    found = find_plan(tight(host_memory_bytes=4e9), allow_uvm=True)
    held = sum(
        memory.host_bytes for memory in predict_job(DlrmJob.scored(tight(), found.plan)).memory
    )
    assert 0 < held <= 4e9


def test_a_table_that_fits_nowhere_is_named():
    tables = (make_table("small"), make_table("huge", rows=10_000_000))
    scorer = make_scorer(tables, make_cluster(device=make_device(memory_bytes=3.5e9)))
    with pytest.raises(InfeasibleError) as caught:
        find_plan(scorer, allowed_types=frozenset({TW}))
    # 10 million rows of 64 values and one of state: 2.6 GB, or 2.42 GiB.
    assert "`huge` fits nowhere: its largest shard takes at least 2.4 GiB" in str(caught.value)
    assert "row_wise (619.9 MiB a rank)" in str(caught.value)
    assert find_plan(scorer).fits


def test_the_ranks_that_are_proposed_have_room():
    tables = tuple(make_table(f"t{i}", rows=2_000_000, pooling=5) for i in range(16))
    cluster = make_cluster(device=make_device(memory_bytes=3e9))
    with pytest.raises(InfeasibleError, match="there would be room with 12 ranks"):
        find_plan(make_scorer(tables, cluster, batch=12 * 1024))
    larger = make_cluster(12, 4, device=cluster.device)
    assert find_plan(make_scorer(tables, larger, batch=12 * 1024)).fits


def test_contradictions_and_cpus_are_refused_before_any_search():
    with pytest.raises(ConfigError, match="contradicts"):
        find_plan(make_scorer(), constraints=(parse_pin("t0=1"), parse_allow("t0=row_wise")))
    cpu = make_cluster(device=make_device(kind="cpu"))
    for demands in ({"allow_uvm": True}, {"constraints": (parse_allow("t0=fused_uvm"),)}):
        with pytest.raises(ConfigError, match="leave UVM out"):
            find_plan(make_scorer(cluster=cpu), **demands)


def test_the_same_seed_gives_the_same_plan():
    constraints = (TableConstraints("t*", pinned_ranks=frozenset({0, 1, 2})),)
    first, second = (
        find_plan(make_scorer(), PlanEffort(seed=3), constraints=constraints, allow_uvm=True)
        for _ in range(2)
    )
    assert without_times(first) == without_times(second)


def test_a_time_limit_still_gives_a_plan():
    constraints = (parse_pin("t0=1"),)
    found = find_plan(make_scorer(), PlanEffort(time_limit_s=1e-9), constraints=constraints)
    assert by_name(found.plan)["t0"].ranks == (1,)
    # Only starts were scored: a single round scores many more plans.
    assert found.plans_scored < 150


def test_constraints_do_not_change_what_solvers_are_asked_otherwise():
    request = planning_request(make_scorer(), frozenset({TW}), 0)
    assert (request.constraints, request.allow_uvm) == ((), False)


def test_the_public_function_takes_names_and_objects():
    arguments = {"world_size": 2, "global_batch_size": 4096, "allowed_types": frozenset({TW})}
    named = dse.shard("dlrm_tiny", "h100_sxm", **arguments)
    given = dse.shard(dse.load_model("dlrm_tiny"), dse.load_platform("h100_sxm"), **arguments)
    assert named.plan == given.plan
    assert {table.sharding_type for table in named.plan.tables} == {TW}


@pytest.mark.parametrize(("world", "per_node"), [(4, 4), (8, 4)])
def test_a_job_is_planned_as_it_is_sharded(world, per_node):
    job = DlrmJob(make_scorer(cluster=make_cluster(world, per_node)).problem)
    sharded = job.solve(seed=2)
    planned = job.planned(PlanEffort(seed=2))
    assert (planned.plan, planned.planner) == (sharded.plan, sharded.planner)
