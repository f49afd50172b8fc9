from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dse.hardware import Precision
from dse.prediction import PlanScorer, Problem, Software
from dse.sharding import PLANNERS, ShardingPlan, ShardingType, TablePlan, check_plan
from dse.solver import SolverSettings, planning_request, solve
from tests.conftest import make_cluster, make_device, make_model, make_table

TW = ShardingType.TABLE_WISE
ALL = frozenset(ShardingType)


def make_scorer(tables=None, cluster=None, batch=8192) -> PlanScorer:
    model = make_model(tables)
    return PlanScorer(Problem(model, cluster or make_cluster(), batch, Precision.TF32, Software()))


def settings(rounds: int = 20) -> SolverSettings:
    return SolverSettings(tuple(PLANNERS), rounds)


@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4)])
def test_plans_are_possible_and_never_worse_than_any_baseline(world, per_node):
    scorer = make_scorer(cluster=make_cluster(world, per_node))
    solved = solve(scorer, ALL, settings())
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


def test_the_same_seed_gives_the_same_plan():
    first, second = (solve(make_scorer(), ALL, settings(), seed=3) for _ in range(2))
    assert first == second
