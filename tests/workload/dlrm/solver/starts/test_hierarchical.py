"""Hierarchical starts: plans on several nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.machine import Precision
from dse.sharding import (
    PLANNERS,
    ShardingPlan,
    ShardingType,
    TableConstraints,
    TablePlan,
    check_plan,
)
from dse.workload import PlanEffort
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import planning_request, solve
from dse.workload.dlrm.solver._options import PlacementScope, ShardingOptions
from dse.workload.dlrm.solver.moves import (
    Evaluator,
    from_plan,
    to_plan,
)
from dse.workload.dlrm.solver.starts._hierarchical import (
    THOROUGH_SCHEDULE,
    HierarchicalBalancer,
    exchanged_between_nodes,
)
from tests.conftest import make_cluster, make_model, make_table

ALL = frozenset(ShardingType)
NODE_TYPES = frozenset({ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD})
WEIGHTS = np.array([1.0, 1.0, 1e-9, 1e-12])


def make_options(tables=(), world=8, per_node=2, constraints=()):
    tables = tables or tuple(
        make_table(f"t{i}", rows=60_000 * (i + 1), dim=dim, pooling=4 + 9 * i)
        for i, dim in enumerate((64, 64, 32, 32, 16, 16))
    )
    cluster = make_cluster(world, per_node)
    scorer = PlanScorer(
        DlrmProblem(make_model(tables), cluster, 8192, Precision.TF32, DlrmRuntime())
    )
    request = planning_request(scorer, NODE_TYPES, 0)
    return ShardingOptions(scorer, replace(request, constraints=constraints))


def make_balancer(options):
    evaluator = Evaluator(options)
    return HierarchicalBalancer(options, evaluator, 1e12, lambda: False), evaluator


def all_on_one_node(options):
    local = tuple(range(options.request.local_size))
    plans = [
        TablePlan(table.name, ShardingType.TABLE_ROW_WISE, local)
        for table in options.request.tables
    ]
    return from_plan(ShardingPlan(options.request.world_size, tuple(plans)), options)


def node_columns(options, plan):
    """Columns of each node."""
    held = np.zeros(options.request.node_count)
    for cut, (node,) in zip(plan.cuts, plan.places, strict=True):
        held[node] += options.request.tables[options.cuts[cut].key.table].dim
    return held


def test_shards_that_fill_nodes_are_placed_by_what_they_exchange():
    options = make_options()
    balancer, evaluator = make_balancer(options)
    start = all_on_one_node(options)
    plan = balancer.balance_nodes(start, WEIGHTS, np.random.default_rng(0))
    # 64, 64, 32 + 32, 16 + 16 on four nodes.
    assert node_columns(options, plan).max() == 64
    assert evaluator.value(plan)[0] < evaluator.value(start)[0]
    tables = options.request.tables
    check_plan(to_plan(plan, options), tables, 8, 2)
    again = balancer.balance_nodes(start, WEIGHTS, np.random.default_rng(0))
    assert again == plan


def test_shards_that_fill_nodes_stay_where_they_are_pinned():
    pinned = TableConstraints(tables="t0", pinned_ranks=frozenset({2, 3}))
    options = make_options(constraints=(pinned,))
    balancer, _ = make_balancer(options)
    start = all_on_one_node(options)
    moved = type(start)(start.cuts, ((1,), *start.places[1:]))
    plan = balancer.balance_nodes(moved, WEIGHTS, np.random.default_rng(0))
    assert plan.places[0] == (1,)


def test_the_exchange_between_nodes_depends_on_the_columns_of_whole_nodes():
    options = make_options()
    plan = all_on_one_node(options)
    _, evaluator = make_balancer(options)
    features = evaluator.features(plan)
    column = exchanged_between_nodes(options.scorer, len(features))
    assert column is not None
    columns = sum(table.dim for table in options.request.tables)
    assert features[column].tolist() == [columns] * 2 + [0.0] * 6
    one_node = make_options(world=4, per_node=4)
    assert exchanged_between_nodes(one_node.scorer, len(features)) is None


def test_shards_of_single_ranks_are_balanced_around_whole_nodes():
    options = make_options()
    scorer = options.scorer
    options = ShardingOptions(scorer, replace(options.request, allowed_types=ALL))
    balancer, evaluator = make_balancer(options)
    start = from_plan(PLANNERS["size_greedy"](options.request), options)
    plan = balancer.balance_ranks(start, WEIGHTS, THOROUGH_SCHEDULE)
    check_plan(to_plan(plan, options), options.request.tables, 8, 2)
    assert evaluator.value(plan)[0] <= evaluator.value(start)[0] * (1 + 1e-9)


def test_the_largest_shard_of_the_busiest_rank_is_oversized():
    options = make_options()
    balancer, _ = make_balancer(options)
    start = all_on_one_node(options)
    keys = balancer.oversized(start, WEIGHTS)
    # All ranks that are loaded hold a shard of every table; the last looks up most.
    assert {key.table for key in keys} == {5}
    assert all(options.cuts[cut].scope is PlacementScope.NODE for cut in start.cuts)


def test_a_third_of_what_every_rank_holds_is_not_oversized():
    tables = tuple(make_table(f"t{i}", rows=60_000, dim=32, pooling=8) for i in range(12))
    options = make_options(tables=tables)
    balancer, _ = make_balancer(options)
    start = all_on_one_node(options)
    even = type(start)(start.cuts, tuple((number % 4,) for number in range(12)))
    assert balancer.oversized(even, WEIGHTS) == set()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_plans_on_several_nodes_are_allowed_and_the_same_for_a_seed(seed):
    rng = np.random.default_rng(seed)
    tables = tuple(
        make_table(
            f"t{i}",
            rows=int(10 ** rng.uniform(3, 6.3)),
            dim=int(rng.choice([16, 32, 64])),
            pooling=float(rng.choice([2, 10, 60])),
        )
        for i in range(7)
    )
    plans, times = [], []
    for quick in (True, False, False):
        cluster = make_cluster(8, 2)
        scorer = PlanScorer(
            DlrmProblem(make_model(tables), cluster, 8192, Precision.TF32, DlrmRuntime())
        )
        found = solve(scorer, PlanEffort(seed=seed, quick=quick)).plan
        assert check_plan(found, tables, 8, 2) == found
        plans.append(found)
        times.append(float(scorer.score([found]).iteration_time_s[0]))
    assert plans[1] == plans[2]
    assert times[1] <= times[0] * (1 + 1e-12)
