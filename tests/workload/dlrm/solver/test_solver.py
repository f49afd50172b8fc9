"""Plan search: never worse than a baseline, close to brute force, reproducible."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.sharding import PLANNERS, ShardingPlan, ShardingType, TablePlan, check_plan
from dse.workload import PlanEffort
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import planning_request, solve
from tests.conftest import make_cluster, make_device, make_model, make_table
from tests.workload.dlrm.solver.bound.oracle import best_time_s

TW, DP = ShardingType.TABLE_WISE, ShardingType.DATA_PARALLEL
ALL = frozenset(ShardingType)


def make_scorer(tables=None, cluster=None, batch=8192) -> PlanScorer:
    model = make_model(tables)
    return PlanScorer(
        DlrmProblem(model, cluster or make_cluster(), batch, Precision.TF32, DlrmRuntime())
    )


def random_tables(rng: np.random.Generator, count: int):
    return tuple(
        make_table(
            f"t{i}",
            rows=int(10 ** rng.uniform(1, 6)),
            dim=int(rng.choice([16, 32, 64])),
            pooling=int(rng.integers(1, 60)),
        )
        for i in range(count)
    )


THOROUGH, QUICK = PlanEffort(), PlanEffort(quick=True)

both_efforts = pytest.mark.parametrize("effort", [THOROUGH, QUICK], ids=["thorough", "quick"])


@both_efforts
@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4)])
def test_plans_are_possible_and_never_worse_than_any_baseline(world, per_node, effort):
    scorer = make_scorer(cluster=make_cluster(world, per_node))
    solved = solve(scorer, effort)
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
        solved = solve(scorer, THOROUGH, allowed_types=frozenset({TW}))
        found = scorer.score([solved.plan]).iteration_time_s[0]
        assert optimum <= found * (1 + 1e-12)
        assert found <= 1.03 * optimum


def test_only_allowed_types_are_used():
    solved = solve(make_scorer(), allowed_types=frozenset({ShardingType.ROW_WISE}))
    assert {table.sharding_type for table in solved.plan.tables} == {ShardingType.ROW_WISE}


def test_a_plan_that_fits_is_preferred_to_a_faster_one_that_does_not():
    tables = tuple(make_table(f"t{i}", rows=2_000_000, pooling=5) for i in range(4))
    tight = make_cluster(device=make_device(memory_bytes=3e9))
    scorer = make_scorer(tables, tight)
    solved = solve(scorer)
    assert scorer.score([solved.plan]).fits[0]


@both_efforts
def test_the_same_seed_gives_the_same_plan(effort):
    first, second = (solve(make_scorer(), replace(effort, seed=3)) for _ in range(2))
    assert first == second


def test_no_rounds_give_the_best_baseline():
    scorer = make_scorer()
    request = planning_request(scorer, ALL, 0)
    baselines = {name: plan(request) for name, plan in PLANNERS.items()}
    times = {name: scorer.score([plan]).iteration_time_s[0] for name, plan in baselines.items()}
    solved = solve(scorer, PlanEffort(improvement_rounds=0))
    assert times[solved.planner] == min(times.values())
    assert solved.plan == baselines[solved.planner]
    assert solved.plans_scored == len(PLANNERS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("world", "per_node"), [(4, 4), (8, 2)])
def test_a_thorough_search_is_never_worse_than_a_quick_one(world, per_node, seed):
    tables = random_tables(np.random.default_rng(seed), 9)
    scorer = make_scorer(tables, make_cluster(world, per_node))
    quick, thorough = (solve(scorer, replace(effort, seed=seed)) for effort in (QUICK, THOROUGH))
    quick_s, thorough_s = scorer.score([quick.plan, thorough.plan]).iteration_time_s
    assert thorough_s <= quick_s * (1 + 1e-12)


def test_a_time_limit_that_is_over_at_once_still_gives_a_plan():
    scorer = make_scorer()
    solved = solve(scorer, PlanEffort(time_limit_s=1e-9))
    baselines = [plan(planning_request(scorer, ALL, 0)) for plan in PLANNERS.values()]
    best = scorer.score(baselines).iteration_time_s.min()
    assert scorer.score([solved.plan]).iteration_time_s[0] <= best


@pytest.mark.parametrize(
    ("chosen", "message"),
    [({"time_limit_s": 0.0}, "expected a positive"), ({"planners": ("best",)}, "one of random")],
)
def test_efforts_that_cannot_be_are_an_error(chosen, message):
    with pytest.raises(ConfigError, match=message):
        solve(make_scorer(), PlanEffort(**chosen))


@both_efforts
def test_memory_is_left_free_where_a_plan_can(effort):
    # Loads of 4 + 1 and 2 + 3 are even, but then one rank holds 12 of 16 parts of the bytes, of
    # 120 MB each; with 4 + 2 and 1 + 3 both hold 8. 2 GB are usable.
    sizes = ((6, 4), (6, 1), (2, 2), (2, 3))
    tables = tuple(
        make_table(f"t{i}", rows=int(bytes_ * 120e6 / (64 * 4 + 4)), pooling=20 * load)
        for i, (bytes_, load) in enumerate(sizes)
    )
    scorer = make_scorer(tables, make_cluster(2, 2, device=make_device(memory_bytes=4e9)))
    usable = scorer.problem.cluster.device.usable_memory_bytes

    def free_share(headroom: float) -> float:
        asked = replace(effort, headroom=headroom)
        found = solve(scorer, asked, allowed_types=frozenset({TW}))
        return 1.0 - scorer.score([found.plan]).peak_memory_bytes[0] / usable

    assert free_share(0.0) < 0.4 <= free_share(0.4)
    # What no plan leaves free is not asked for.
    assert free_share(0.9) == free_share(0.0)


def test_a_plan_that_fits_is_found_where_no_baseline_finds_one():
    # Six tables of 0.36 and six of 0.16 of a rank's free memory: only pairs of one large table
    # with others fill four ranks evenly enough.
    scorer = make_scorer(cluster=make_cluster(4, 4))
    free_bytes = planning_request(scorer, ALL, 0).embedding_memory_bytes / 0.9
    rows = [int(share * free_bytes / (64 * 4 + 4)) for share in (0.36,) * 6 + (0.16,) * 6]
    assert min(rows) > 0
    tables = tuple(make_table(f"t{i}", rows=count, pooling=2) for i, count in enumerate(rows))
    tight = make_scorer(tables, make_cluster(4, 4))
    solved = solve(tight, allowed_types=frozenset({TW}))
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
        solved = solve(scorer, QUICK, allowed_types=frozenset({TW, DP}))
        found_s = scorer.score([solved.plan]).iteration_time_s[0]
        assert optimum_s <= found_s * (1 + 1e-12)
        assert found_s <= 1.03 * optimum_s


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
def test_plans_on_several_nodes_are_close_to_brute_force(seed):
    """Every table on one of four ranks, by rows on a node or on all ranks, or copied."""
    types = frozenset({TW, DP, ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE})
    scorer = make_scorer(random_tables(np.random.default_rng(seed), 5), make_cluster(4, 2))
    optimum_s = best_time_s(scorer, planning_request(scorer, types, 0), limit=8**5)
    plans = [solve(scorer, effort, allowed_types=types).plan for effort in (QUICK, THOROUGH)]
    quick_s, thorough_s = scorer.score(plans).iteration_time_s
    assert optimum_s <= thorough_s * (1 + 1e-12)
    assert thorough_s <= 1.005 * optimum_s
    assert quick_s <= 1.05 * optimum_s


def dealt_by_hand(tables, world: int, most_rows: int, pieces: int) -> ShardingPlan:
    """Small tables on all ranks, the columns of the others dealt out one after the other."""
    plans, dealt = [], 0
    for table in tables:
        if table.rows <= most_rows:
            plans.append(TablePlan(table.name, DP, tuple(range(world))))
            continue
        ranks = tuple((dealt + piece) % world for piece in range(pieces))
        dealt += pieces
        kind = TW if pieces == 1 else ShardingType.COLUMN_WISE
        plans.append(TablePlan(table.name, kind, ranks))
    return ShardingPlan(world, tuple(plans))


@both_efforts
@pytest.mark.parametrize(("world", "per_node"), [(8, 4), (16, 4)])
def test_no_plan_is_slower_than_those_dealt_by_hand(world, per_node, effort):
    # Two sizes far apart, and none at which the large ones alone are a multiple of the ranks.
    small = tuple(make_table(f"s{i}", rows=20 * 2**i, pooling=1) for i in range(9))
    large = tuple(make_table(f"l{i}", rows=5_000_000, pooling=1) for i in range(4))
    medium = tuple(make_table(f"m{i}", rows=40_000 + i, pooling=1) for i in range(5))
    tables = (*large, *small, *medium)
    scorer = make_scorer(tables, make_cluster(world, per_node), batch=world * 8192)
    by_hand = [
        dealt_by_hand(tables, world, most_rows, pieces)
        for most_rows in sorted({0, *(table.rows for table in (*small, *medium))})
        for pieces in (1, 2, 4, 8)
    ]
    best_s = scorer.score(by_hand).iteration_time_s.min()
    found_s = scorer.score([solve(scorer, effort).plan]).iteration_time_s[0]
    assert found_s <= best_s * (1 + 1e-9)
