"""Plans as arrays."""

from __future__ import annotations

import numpy as np
import pytest

from dse.machine import Precision
from dse.sharding import PLANNERS, ShardingType
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import planning_request
from dse.workload.dlrm.solver._options import ShardingOptions
from dse.workload.dlrm.solver.moves import Evaluator, PlanArrays, from_plan, to_plan
from tests.conftest import make_cluster, make_model, make_table

KINDS = (
    {ShardingType.TABLE_WISE},
    {ShardingType.COLUMN_WISE},
    {ShardingType.ROW_WISE},
    {ShardingType.TABLE_ROW_WISE},
    {ShardingType.GRID_SHARD},
    {ShardingType.DATA_PARALLEL},
    set(ShardingType),
)


def make_plans(world: int, per_node: int):
    tables = tuple(make_table(f"t{i}", rows=97 * 10**i, pooling=2 + 9 * i) for i in range(5))
    cluster = make_cluster(world, per_node)
    problem = DlrmProblem(make_model(tables), cluster, 8400, Precision.TF32, DlrmRuntime())
    scorer = PlanScorer(problem)
    options = ShardingOptions(scorer, planning_request(scorer, frozenset(ShardingType), 0))
    plans = [
        planner(planning_request(scorer, frozenset(kinds), seed))
        for kinds in KINDS
        for seed, planner in enumerate(PLANNERS.values())
    ]
    return options, list(dict.fromkeys(from_plan(plan, options) for plan in plans))


@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4), (6, 1)])
def test_arrays_hold_the_plans(world, per_node):
    _, plans = make_plans(world, per_node)
    arrays = PlanArrays.of(plans)
    assert [arrays.plan(number) for number in range(len(plans))] == plans
    odd = arrays.chosen(np.arange(1, len(plans), 2))
    assert [odd.plan(number) for number in range(len(odd.cuts))] == plans[1::2]


@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4), (6, 1)])
def test_plans_in_arrays_score_as_each_does(world, per_node):
    options, plans = make_plans(world, per_node)
    found = Evaluator(options).of_plans(PlanArrays.of(plans))
    expected = options.scorer.score([to_plan(plan, options) for plan in plans])
    np.testing.assert_allclose(found.time_s, expected.iteration_time_s, rtol=1e-12)
