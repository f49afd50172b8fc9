"""Many first plans at once, and the search that starts from them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dse.machine import Precision
from dse.sharding import PLANNERS, ShardingPlan, ShardingType, TablePlan, check_plan
from dse.workload.dlrm import PlanScorer, Problem, Software
from dse.workload.dlrm.solver import SolverSettings, planning_request, solve
from dse.workload.dlrm.solver._assignment import Evaluator, of_plan, to_plan
from dse.workload.dlrm.solver._catalogue import Catalogue
from dse.workload.dlrm.solver._portfolio import Portfolio
from tests.conftest import make_cluster, make_model, make_table

ALL = frozenset(ShardingType)
TW, DP = ShardingType.TABLE_WISE, ShardingType.DATA_PARALLEL
QUICK = SolverSettings(restarts=1, lns=False, quick=True)


def make_scorer(world=8, per_node=4, tables=None, batch=8192) -> PlanScorer:
    tables = tables or tuple(
        make_table(f"t{i}", rows=20 * 10**i, pooling=2 + 9 * i) for i in range(6)
    )
    cluster = make_cluster(world, per_node)
    return PlanScorer(Problem(make_model(tables), cluster, batch, Precision.TF32, Software()))


def portfolio_of(scorer: PlanScorer, types=ALL):
    catalogue = Catalogue(scorer, planning_request(scorer, types, 0))
    baseline = PLANNERS["size_greedy"](catalogue.request)
    first = of_plan(baseline, catalogue)
    usable = scorer.problem.cluster.device.usable_memory_bytes
    evaluator = Evaluator(catalogue)
    weights = scorer.marginal_costs(evaluator.layout(first), evaluator.features(first))
    return catalogue, Portfolio(catalogue, first, usable).plans(np.maximum(weights, 1e-12))


@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4), (4, 1)])
def test_first_plans_are_different_and_possible(world, per_node):
    scorer = make_scorer(world, per_node)
    catalogue, plans = portfolio_of(scorer)
    tables = scorer.problem.model.tables
    assert len(set(plans)) == len(plans) > 1
    for plan in plans:
        made = to_plan(plan, catalogue)
        assert check_plan(made, tables, world, per_node) == made


def test_small_tables_are_copied_in_growing_numbers_the_smallest_first():
    catalogue, plans = portfolio_of(make_scorer(), frozenset({TW, DP}))
    copied = {
        tuple(
            catalogue.cuts[cut].key.table
            for cut in plan.cuts
            if catalogue.cuts[cut].key.kind is DP
        )
        for plan in plans
    }
    assert () in copied
    assert len(copied) > 2
    # Each of them holds the first tables, whose rows are the fewest.
    assert all(tables == tuple(range(len(tables))) for tables in copied)


def test_parts_of_a_plan_are_dealt_out_evenly():
    tables = tuple(make_table(f"t{i}", rows=10**5, pooling=10) for i in range(8))
    _, (plan,) = portfolio_of(make_scorer(4, 4, tables), frozenset({TW}))
    held = np.bincount([rank for places in plan.places for rank in places], minlength=4)
    assert held.tolist() == [2, 2, 2, 2]


def test_plans_scored_together_score_as_by_themselves():
    catalogue, plans = portfolio_of(make_scorer())
    evaluator = Evaluator(catalogue)
    together = evaluator.of_plans(plans)
    for plan, time_s, rank_by in zip(plans, together.time_s, together.rank_by, strict=True):
        alone = evaluator.value(plan)
        assert (time_s, rank_by) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4)])
def test_a_quick_search_is_never_worse_than_any_baseline(world, per_node):
    scorer = make_scorer(world, per_node)
    solved = solve(scorer, ALL, QUICK)
    baselines = [plan(planning_request(scorer, ALL, 0)) for plan in PLANNERS.values()]
    best_s = scorer.score(baselines).iteration_time_s.min()
    assert scorer.score([solved.plan]).iteration_time_s[0] <= best_s
    assert solve(make_scorer(world, per_node), ALL, QUICK) == solved


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
        scorer = make_scorer(3, 3, tables, batch=6144)
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
