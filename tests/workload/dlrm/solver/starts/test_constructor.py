"""Constructed starts."""

from __future__ import annotations

import numpy as np
import pytest

from dse.machine import Precision
from dse.sharding import PLANNERS, ShardingType, check_plan
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import planning_request
from dse.workload.dlrm.solver._options import ShardingOptions
from dse.workload.dlrm.solver.moves import Evaluator, PlanArrays, from_plan, to_plan
from dse.workload.dlrm.solver.starts import Constructor
from tests.conftest import make_cluster, make_model, make_table

ALL = frozenset(ShardingType)
TW, CW, DP = ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.DATA_PARALLEL


def make_scorer(world=8, per_node=4, tables=None, batch=8192) -> PlanScorer:
    tables = tables or tuple(
        make_table(f"t{i}", rows=20 * 10**i, pooling=2 + 9 * i) for i in range(6)
    )
    cluster = make_cluster(world, per_node)
    return PlanScorer(
        DlrmProblem(make_model(tables), cluster, batch, Precision.TF32, DlrmRuntime())
    )


def make_constructor(scorer: PlanScorer, types=ALL):
    options = ShardingOptions(scorer, planning_request(scorer, types, 0))
    first = from_plan(PLANNERS["size_greedy"](options.request), options)
    usable = scorer.problem.cluster.device.usable_memory_bytes
    evaluator = Evaluator(options)
    weights = scorer.marginal_costs(evaluator.layout(first), evaluator.features(first))
    return options, Constructor(options, first, usable), np.maximum(weights, 1e-12)


def constructed(scorer: PlanScorer, types=ALL):
    options, constructor, weights = make_constructor(scorer, types)
    plans = constructor.plans(weights)
    return options, [plans.plan(number) for number in range(len(plans.cuts))]


@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4), (4, 1)])
def test_constructed_plans_are_distinct_and_possible(world, per_node):
    scorer = make_scorer(world, per_node)
    options, plans = constructed(scorer)
    tables = scorer.problem.model.tables
    assert len(set(plans)) == len(plans) > 1
    for plan in plans:
        made = to_plan(plan, options)
        assert check_plan(made, tables, world, per_node) == made


def test_small_tables_are_copied_in_growing_numbers_the_smallest_first():
    options, plans = constructed(make_scorer(), frozenset({TW, DP}))
    copied = {
        tuple(options.cuts[cut].key.table for cut in plan.cuts if options.cuts[cut].key.kind is DP)
        for plan in plans
    }
    assert () in copied
    assert len(copied) > 2
    # Each of them holds the first tables, whose rows are the fewest.
    assert all(tables == tuple(range(len(tables))) for tables in copied)


def test_some_plans_copy_as_many_tables_as_leave_each_rank_equally_many_halves():
    # Three halves for each of four ranks are six tables; the smallest two are copied.
    tables = tuple(make_table(f"t{i}", rows=1000 + i, pooling=10) for i in range(8))
    options, plans = constructed(make_scorer(4, 4, tables), frozenset({TW, CW, DP}))
    keys = [[options.cuts[cut].key for cut in plan.cuts] for plan in plans]
    assert [DP] * 2 + [CW] * 6 in [
        [key.kind for key in chosen]
        for chosen in keys
        if all(key.shards == 2 for key in chosen if key.kind is CW)
    ]


def test_shards_are_spread_evenly():
    tables = tuple(make_table(f"t{i}", rows=10**5, pooling=10) for i in range(8))
    _, (plan,) = constructed(make_scorer(4, 4, tables), frozenset({TW}))
    held = np.bincount([rank for places in plan.places for rank in places], minlength=4)
    assert held.tolist() == [2, 2, 2, 2]


def test_plans_scored_together_score_as_by_themselves():
    options, plans = constructed(make_scorer())
    evaluator = Evaluator(options)
    together = evaluator.of_plans(PlanArrays.of(plans))
    for plan, time_s, rank_by in zip(plans, together.time_s, together.rank_by, strict=True):
        alone = evaluator.value(plan)
        assert (time_s, rank_by) == pytest.approx(alone, rel=1e-12)


def test_large_tables_are_cut_in_some_plans():
    tables = tuple(make_table(f"t{i}", rows=20_000 * (i + 1), pooling=2 + 9 * i) for i in range(6))
    _, plans = constructed(make_scorer(tables=tables))
    shards = [sum(max(1, len(places)) for places in plan.places) for plan in plans]
    assert max(shards) > len(tables)


@pytest.mark.parametrize(("world", "per_node"), [(4, 4), (8, 4)])
def test_a_plan_by_bytes_balances_memory(world, per_node):
    scorer = make_scorer(world, per_node)
    options, constructor, _ = make_constructor(scorer)
    found = constructor.plans_by_bytes()
    plans = [to_plan(found.plan(number), options) for number in range(len(found.cuts))]
    tables = scorer.problem.model.tables
    assert [check_plan(plan, tables, world, per_node) for plan in plans] == plans
    held = min(
        (scorer.memory.total_bytes(scorer.features(plan))[:, 0] for plan in plans), key=np.max
    )
    by_size = to_plan(from_plan(PLANNERS["size_greedy"](options.request), options), options)
    greedy = scorer.memory.total_bytes(scorer.features(by_size))[:, 0]
    assert held.max() <= greedy.max()
