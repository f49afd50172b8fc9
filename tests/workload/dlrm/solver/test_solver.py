"""Plan search: never worse than a baseline, close to brute force, reproducible."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.sharding import PLANNERS, ShardingPlan, ShardingType, TablePlan, check_plan
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import SolverSettings, planning_request, solve
from tests.conftest import make_cluster, make_device, make_model, make_table

TW, DP = ShardingType.TABLE_WISE, ShardingType.DATA_PARALLEL
ALL = frozenset(ShardingType)


def make_scorer(tables=None, cluster=None, batch=8192) -> PlanScorer:
    model = make_model(tables)
    return PlanScorer(
        DlrmProblem(model, cluster or make_cluster(), batch, Precision.TF32, DlrmRuntime())
    )


QUICK = SolverSettings(restarts=1, lns=False, quick=True)


def settings(rounds: int = 20) -> SolverSettings:
    return SolverSettings(tuple(PLANNERS), rounds)


@pytest.mark.parametrize("chosen", [settings(), QUICK], ids=["thorough", "quick"])
@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4)])
def test_plans_are_possible_and_never_worse_than_any_baseline(world, per_node, chosen):
    scorer = make_scorer(cluster=make_cluster(world, per_node))
    solved = solve(scorer, ALL, chosen)
    model = scorer.problem.model
    assert check_plan(solved.plan, model.tables, world, per_node) == solved.plan
    baselines = [plan(planning_request(scorer, ALL, 0)) for plan in PLANNERS.values()]
    best = scorer.score(baselines).iteration_time_s.min()
    assert scorer.score([solved.plan]).iteration_time_s[0] <= best
    assert solved.plans_scored >= len(PLANNERS)


def test_local_search_is_close_to_brute_force_on_tiny_instances():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        tables = tuple(
            make_table(f"t{i}", rows=int(rng.integers(1e4, 1e6)), pooling=int(rng.integers(1, 60)))
            for i in range(5)
        )
        scorer = make_scorer(tables, make_cluster(3, 3), batch=6144)
        every = [
            ShardingPlan(
                3,
                tuple(TablePlan(t.name, TW, (r,)) for t, r in zip(tables, ranks, strict=True)),
            )
            for ranks in product(range(3), repeat=5)
        ]
        optimum = scorer.score(every).iteration_time_s.min()
        solved = solve(scorer, frozenset({TW}), settings())
        found = scorer.score([solved.plan]).iteration_time_s[0]
        assert optimum <= found * (1 + 1e-12)
        assert found <= 1.03 * optimum


def test_only_allowed_types_are_used():
    solved = solve(make_scorer(), frozenset({ShardingType.ROW_WISE}), settings())
    assert {table.sharding_type for table in solved.plan.tables} == {ShardingType.ROW_WISE}


def test_a_plan_that_fits_is_preferred_to_a_faster_one_that_does_not():
    tables = tuple(make_table(f"t{i}", rows=2_000_000, pooling=5) for i in range(4))
    tight = make_cluster(device=make_device(memory_bytes=3e9))
    scorer = make_scorer(tables, tight)
    solved = solve(scorer, ALL, settings())
    assert scorer.score([solved.plan]).fits[0]


@pytest.mark.parametrize("chosen", [settings(), QUICK], ids=["thorough", "quick"])
def test_the_same_seed_gives_the_same_plan(chosen):
    first, second = (solve(make_scorer(), ALL, chosen, seed=3) for _ in range(2))
    assert first == second


def test_no_rounds_give_the_best_baseline():
    scorer = make_scorer()
    request = planning_request(scorer, ALL, 0)
    baselines = {name: plan(request) for name, plan in PLANNERS.items()}
    times = {name: scorer.score([plan]).iteration_time_s[0] for name, plan in baselines.items()}
    solved = solve(scorer, ALL, settings(0))
    assert times[solved.planner] == min(times.values())
    assert solved.plan == baselines[solved.planner]
    assert solved.plans_scored == len(PLANNERS)


def test_more_restarts_are_never_worse():
    tables = tuple(make_table(f"t{i}", rows=10_000 * (i + 1), pooling=3 + 7 * i) for i in range(9))
    times = []
    for restarts in (0, 4):
        scorer = make_scorer(tables)
        solved = solve(scorer, ALL, SolverSettings(restarts=restarts, lns=False))
        times.append(scorer.score([solved.plan]).iteration_time_s[0])
    assert times[1] <= times[0]


def test_a_time_limit_that_is_over_at_once_still_gives_a_plan():
    scorer = make_scorer()
    solved = solve(scorer, ALL, SolverSettings(time_limit_s=1e-9))
    baselines = [plan(planning_request(scorer, ALL, 0)) for plan in PLANNERS.values()]
    best = scorer.score(baselines).iteration_time_s.min()
    assert scorer.score([solved.plan]).iteration_time_s[0] <= best


@pytest.mark.parametrize(
    ("chosen", "message"),
    [({"time_limit_s": 0.0}, "expected a positive"), ({"planners": ()}, "at least one")],
)
def test_settings_that_cannot_be_are_an_error(chosen, message):
    with pytest.raises(ConfigError, match=message):
        solve(make_scorer(), ALL, SolverSettings(**chosen))


def test_a_plan_that_fits_is_found_where_no_baseline_finds_one():
    # Six tables of 0.36 and six of 0.16 of a rank's free memory: only pairs of one large table
    # with others fill four ranks evenly enough.
    scorer = make_scorer(cluster=make_cluster(4, 4))
    free_bytes = planning_request(scorer, ALL, 0).embedding_memory_bytes / 0.9
    rows = [int(share * free_bytes / (64 * 4 + 4)) for share in (0.36,) * 6 + (0.16,) * 6]
    assert min(rows) > 0
    tables = tuple(make_table(f"t{i}", rows=count, pooling=2) for i, count in enumerate(rows))
    tight = make_scorer(tables, make_cluster(4, 4))
    solved = solve(tight, frozenset({TW}), settings())
    assert tight.score([solved.plan]).fits[0]


def test_a_quick_search_is_close_to_brute_force_on_tiny_instances():
    """Every table on one of three ranks, or a copy on each: the search finds the best mix."""
    places = [*((rank,) for rank in range(3)), None]
    for seed in range(4):
        rng = np.random.default_rng(seed)
        tables = tuple(
            make_table(
                f"t{i}", rows=int(10 ** rng.uniform(1, 6)), pooling=int(rng.integers(1, 60))
            )
            for i in range(5)
        )
        scorer = make_scorer(tables, make_cluster(3, 3), batch=6144)
        every = [
            ShardingPlan(
                3,
                tuple(
                    TablePlan(table.name, DP, (0, 1, 2))
                    if ranks is None
                    else TablePlan(table.name, TW, ranks)
                    for table, ranks in zip(tables, chosen, strict=True)
                ),
            )
            for chosen in product(places, repeat=5)
        ]
        optimum_s = scorer.score(every).iteration_time_s.min()
        solved = solve(scorer, frozenset({TW, DP}), QUICK)
        found_s = scorer.score([solved.plan]).iteration_time_s[0]
        assert optimum_s <= found_s * (1 + 1e-12)
        assert found_s <= 1.03 * optimum_s
