"""Plans that tie because the host binds: the one with the least work for the devices."""

from __future__ import annotations

import pytest

from dse.machine import Precision
from dse.sharding import PLANNERS, ShardingType
from dse.workload import DurationClass, LaunchMode, PlanEffort
from dse.workload.dlrm import DlrmJob, DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import find_plan, planning_request, solve
from tests.conftest import make_cluster, make_model, make_table

ALL = frozenset(ShardingType)
QUICK = PlanEffort(quick=True)

#: One table is looked up so often that the order of the tables decides how busy ranks are.
TABLES = tuple(
    make_table(f"t{index}", rows=50_000, pooling=pooling)
    for index, pooling in enumerate((60, 50, 40, 40, 30, 20, 10, 10))
)


def scorer_of(batch, **software):
    model, runtime = make_model(TABLES), DlrmRuntime(**software)
    return PlanScorer(DlrmProblem(model, make_cluster(4, 4), batch, Precision.TF32, runtime))


def work_s(scorer, plan):
    return scorer.work_and_exchange_s(plan)[0]


@pytest.mark.parametrize("types", [ALL, {ShardingType.TABLE_WISE}], ids=["all", "table_wise"])
def test_of_plans_that_tie_the_one_with_the_least_work_is_taken(types):
    # Samples are loaded for a second; nothing that the devices do takes as long.
    scorer = scorer_of(4096, loader_s_per_sample=1e-3)
    types = frozenset(types)
    solved = solve(scorer, QUICK, allowed_types=types)
    request = planning_request(scorer, types, 0)
    baselines = [planner(request) for planner in PLANNERS.values()]
    best_s = scorer.score([solved.plan, *baselines]).iteration_time_s.min()
    assert scorer.score([solved.plan]).iteration_time_s[0] <= best_s * (1 + 1e-3)
    tied = [
        plan for plan in baselines if scorer.score([plan]).iteration_time_s[0] <= best_s * 1.001
    ]
    assert tied
    assert work_s(scorer, solved.plan) <= 1.02 * min(work_s(scorer, plan) for plan in tied)
    others = {plan for plan in tied if plan != solved.plan}
    assert solved.ties >= len(others) > 0
    assert DlrmJob.scored(scorer, solved.plan).simulated().host_share > 0.5


def test_the_answer_says_that_plans_tie():
    scorer = scorer_of(4096, loader_s_per_sample=1e-3)
    assert find_plan(scorer).ties > 0


def test_plans_that_the_devices_bind_do_not_tie():
    scorer = scorer_of(65536, launch=LaunchMode.CUDA_GRAPHS)
    solved = solve(scorer, QUICK, allowed_types=ALL)
    assert solved.ties == 0
    request = planning_request(scorer, ALL, 0)
    fastest_s = scorer.score(
        [planner(request) for planner in PLANNERS.values()]
    ).iteration_time_s.min()
    assert scorer.score([solved.plan]).iteration_time_s[0] <= fastest_s


def test_work_and_collectives_of_a_plan_by_hand():
    scorer = scorer_of(4096)
    plan = PLANNERS["dim_greedy"](
        planning_request(scorer, frozenset({ShardingType.TABLE_WISE}), 0)
    )
    found_s, exchange_s = scorer.work_and_exchange_s(plan)
    filled = scorer.filled(plan)
    # Nothing is replicated, so lookups and updates are all that the devices do for tables.
    kernels_s = filled.duration_s[filled.layout.duration_class == DurationClass.EMBEDDING].sum(0)
    assert found_s == pytest.approx(kernels_s.max())
    graph = filled.expanded().graph
    collectives = ("input all-to-all", "output all-to-all", "gradient all-to-all")
    by_name = {
        name: float(seconds)
        for name, seconds in zip(graph.names, graph.duration_s, strict=True)
        if name in collectives
    }
    assert set(by_name) == set(collectives)
    # One slot stands for both directions of the pooled vectors.
    expected_s = by_name["input all-to-all"] + by_name["output all-to-all"]
    assert exchange_s == pytest.approx(expected_s)
