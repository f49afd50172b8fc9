"""Starts from the linear programs of layouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.machine import Precision
from dse.sharding import ComputeKernel, ShardingType, check_plan
from dse.workload import PlanEffort
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import planning_request, solve
from dse.workload.dlrm.solver._options import ShardingOptions
from dse.workload.dlrm.solver.bound import table_choices
from dse.workload.dlrm.solver.moves import from_plan, to_plan
from dse.workload.dlrm.solver.starts import Constructor, relaxed_cuts, rounded
from tests.conftest import make_cluster, make_model, make_table

ALL = frozenset(ShardingType)
TW, RW = ShardingType.TABLE_WISE, ShardingType.ROW_WISE


def make_scorer(tables, world: int = 8, per_node: int = 4) -> PlanScorer:
    cluster = make_cluster(world, per_node)
    return PlanScorer(
        DlrmProblem(make_model(tables), cluster, 8192, Precision.TF32, DlrmRuntime())
    )


def small_and_large():
    small = tuple(make_table(f"s{i}", rows=50 + i, pooling=2 + i % 5) for i in range(14))
    large = tuple(make_table(f"l{i}", rows=400_000, pooling=5 + 8 * i) for i in range(6))
    return small + large


def test_shares_of_equal_tables_are_rounded_to_whole_tables():
    same = tuple(make_table(f"t{i}", rows=1000, pooling=3) for i in range(3))
    scorer = make_scorer((*same, make_table("other", rows=5000, pooling=3)), 2, 2)
    choices = table_choices(scorer, planning_request(scorer, frozenset({TW, RW}), 0))
    assert choices.class_of.tolist() == [0, 0, 0, 1]
    kinds = [kind for kind, *_ in choices.cuts]
    assert kinds == [TW, RW, TW, RW]
    chosen = rounded(choices, np.array([1.8, 1.2, 0.4, 0.6]))
    assert [key.kind for key in chosen] == [TW, RW, TW, RW]
    assert [key.table for key in chosen] == [0, 1, 2, 3]
    # Of equal shares the first one.
    tied = rounded(choices, np.array([3.0, 0.0, 0.5, 0.5]))
    assert [key.kind for key in tied] == [TW] * 4
    assert {key.kernel for key in tied} == {ComputeKernel.FUSED}


@pytest.mark.parametrize(("world", "per_node"), [(4, 4), (8, 4)])
def test_cuts_of_programs_make_plans_that_are_allowed(world, per_node):
    tables = small_and_large()
    scorer = make_scorer(tables, world, per_node)
    request = planning_request(scorer, ALL, 0)
    options = ShardingOptions(scorer, request)
    baseline = solve(scorer, PlanEffort(improvement_rounds=0)).plan
    usable = scorer.problem.cluster.device.usable_memory_bytes
    weights = np.array([1.0, 1.0, 1e-9, 1e-12])
    constructor = Constructor(options, from_plan(baseline, options), usable)
    cuts = relaxed_cuts(scorer, request, np.inf)
    assert len(cuts) >= 2
    for keys in cuts:
        plan = to_plan(constructor.placed(keys, weights), options)
        assert check_plan(plan, tables, world, per_node) == plan


def test_only_allowed_types_are_cut_and_layouts_that_are_too_slow_are_left_out():
    scorer = make_scorer(small_and_large())
    request = replace(planning_request(scorer, ALL, 0), allowed_types=frozenset({TW, RW}))
    kinds = {key.kind for keys in relaxed_cuts(scorer, request, np.inf) for key in keys}
    assert kinds <= {TW, RW}
    assert relaxed_cuts(scorer, request, 1e-9) == []
    assert relaxed_cuts(scorer, request, np.inf, lambda: True) == []
