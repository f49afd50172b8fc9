"""Evening out many ranks, and plans on several nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

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
from dse.workload.dlrm import PlanScorer, Problem, Software
from dse.workload.dlrm.solver import SolverSettings, planning_request, solve
from dse.workload.dlrm.solver._assignment import Evaluator, of_plan, to_plan
from dse.workload.dlrm.solver._catalogue import Catalogue, Reach
from dse.workload.dlrm.solver._even import Evener
from dse.workload.dlrm.solver._levels import THOROUGH_SCHEDULE, Levels, exchanged_between_nodes
from dse.workload.dlrm.solver._pieces import Pieces
from tests.conftest import make_cluster, make_model, make_table

ALL = frozenset(ShardingType)
NODE_TYPES = frozenset({ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD})
WEIGHTS = np.array([1.0, 1.0, 1e-9, 1e-12])


def make_pieces(loads, rank, ranks, *, table=None, allowed=None):
    """Parts with some loads and a byte each."""
    loads = np.atleast_2d(np.array(loads, dtype=float))
    count = loads.shape[1]
    return Pieces(
        table=np.arange(count) if table is None else np.array(table),
        offset=np.zeros(count, dtype=np.int64),
        rank=np.array(rank, dtype=np.int64),
        node=np.full(count, -1),
        loads=np.vstack((loads, np.ones(count))),
        fixed=np.zeros((len(loads) + 1, ranks)),
        load_of=np.arange(len(loads)),
        allowed=allowed,
    )


def evened(pieces, weights=None, memory_bytes=1e9):
    costs = np.ones(len(pieces.load_of)) if weights is None else weights
    evener = Evener(pieces, costs, memory_bytes, 8, lambda: False)
    evener.even(THOROUGH_SCHEDULE)
    return evener


def sums(pieces, rank):
    """Loads of all ranks, without bytes."""
    total = np.zeros((len(pieces.load_of), pieces.fixed.shape[1]))
    np.add.at(total.T, rank, pieces.loads[:-1].T)
    return total


def test_evening_finds_the_even_split_of_two_loads_at_once():
    # Each kind twice on a rank is uneven; one of each kind on every rank is exactly even.
    loads = [[4, 4, 4, 4, 1, 1, 1, 1], [1, 1, 1, 1, 4, 4, 4, 4]]
    pieces = make_pieces(loads, [0, 0, 1, 1, 2, 2, 3, 3], 4)
    found = evened(pieces)
    assert sums(pieces, found.places).tolist() == [[5.0] * 4, [5.0] * 4]


def test_evening_lowers_ranks_that_are_equally_loaded():
    # Three ranks are the most loaded: no single exchange lowers the largest load.
    pieces = make_pieces([[5, 5, 5, 5, 5, 5, 1, 1, 1]], [0, 0, 1, 1, 2, 2, 3, 4, 5], 6)
    found = evened(pieces)
    assert sums(pieces, found.places).max() == 6.0


@pytest.mark.parametrize("seed", range(4))
def test_evening_is_near_the_optimum_and_never_worse_than_the_start(seed):
    rng = np.random.default_rng(seed)
    loads = rng.integers(1, 20, (2, 7)).astype(float)
    pieces = make_pieces(loads, [0] * 7, 3)
    found = evened(pieces)
    costs = [
        sums(pieces, np.array(each)).max(axis=1).sum() for each in product(range(3), repeat=7)
    ]
    cost = sums(pieces, found.places).max(axis=1).sum()
    assert cost <= 1.15 * min(costs)
    start = Evener(pieces, np.ones(2), 1e9, 8, lambda: False)
    assert found.value() <= start.value()


def test_evening_keeps_memory_parts_of_a_table_apart_and_what_is_pinned():
    crowded = make_pieces([[9, 1, 1, 1]], [0, 1, 1, 1], 2)
    places = evened(crowded, memory_bytes=3.0).places
    assert np.bincount(places, minlength=2).max() <= 3
    cut = make_pieces([[8, 8, 1, 1]], [0, 1, 0, 1], 2, table=[0, 0, 1, 2])
    places = evened(cut).places
    assert places[0] != places[1]
    allowed = np.array([[True, False], [True, True], [True, True]])
    pinned = make_pieces([[6, 5, 1]], [0, 0, 0], 2, allowed=allowed)
    places = evened(pinned).places
    assert places[0] == 0
    assert sums(pinned, places).max() == 6.0


def test_evening_leaves_a_single_rank_and_no_parts_alone():
    assert evened(make_pieces([[3, 2]], [0, 0], 1)).places.tolist() == [0, 0]
    empty = make_pieces(np.zeros((1, 0)), [], 2)
    assert len(evened(empty).places) == 0


def make_catalogue(dims=(64, 64, 32, 32, 16, 16), world=8, per_node=2, constraints=()):
    tables = tuple(
        make_table(f"t{i}", rows=60_000 * (i + 1), dim=dim, pooling=4 + 9 * i)
        for i, dim in enumerate(dims)
    )
    cluster = make_cluster(world, per_node)
    scorer = PlanScorer(Problem(make_model(tables), cluster, 8192, Precision.TF32, Software()))
    request = planning_request(scorer, NODE_TYPES, 0)
    return Catalogue(scorer, replace(request, constraints=constraints))


def levels_of(catalogue):
    evaluator = Evaluator(catalogue)
    return Levels(catalogue, evaluator, 1e12, lambda: False), evaluator


def all_on_one_node(catalogue):
    local = tuple(range(catalogue.request.local_size))
    plans = [
        TablePlan(table.name, ShardingType.TABLE_ROW_WISE, local)
        for table in catalogue.request.tables
    ]
    return of_plan(ShardingPlan(catalogue.request.world_size, tuple(plans)), catalogue)


def node_columns(catalogue, plan):
    """Columns of each node."""
    held = np.zeros(catalogue.request.node_count)
    for cut, (node,) in zip(plan.cuts, plan.places, strict=True):
        held[node] += catalogue.request.tables[catalogue.cuts[cut].key.table].dim
    return held


def test_parts_that_fill_nodes_are_dealt_out_by_what_they_exchange():
    catalogue = make_catalogue()
    levels, evaluator = levels_of(catalogue)
    start = all_on_one_node(catalogue)
    plan = levels.nodes_evened(start, WEIGHTS, np.random.default_rng(0))
    # 64, 64, 32 + 32, 16 + 16 on four nodes.
    assert node_columns(catalogue, plan).max() == 64
    assert evaluator.value(plan)[0] < evaluator.value(start)[0]
    tables = catalogue.request.tables
    check_plan(to_plan(plan, catalogue), tables, 8, 2)
    again = levels.nodes_evened(start, WEIGHTS, np.random.default_rng(0))
    assert again == plan


def test_parts_that_fill_nodes_stay_where_they_are_pinned():
    pinned = TableConstraints(tables="t0", pinned_ranks=frozenset({2, 3}))
    catalogue = make_catalogue(constraints=(pinned,))
    levels, _ = levels_of(catalogue)
    start = all_on_one_node(catalogue)
    moved = type(start)(start.cuts, ((1,), *start.places[1:]))
    plan = levels.nodes_evened(moved, WEIGHTS, np.random.default_rng(0))
    assert plan.places[0] == (1,)


def test_the_exchange_between_nodes_depends_on_the_columns_of_whole_nodes():
    catalogue = make_catalogue()
    plan = all_on_one_node(catalogue)
    _, evaluator = levels_of(catalogue)
    features = evaluator.features(plan)
    column = exchanged_between_nodes(catalogue.scorer, len(features))
    assert column is not None
    columns = sum(table.dim for table in catalogue.request.tables)
    assert features[column].tolist() == [columns] * 2 + [0.0] * 6
    one_node = make_catalogue(world=4, per_node=4)
    assert exchanged_between_nodes(one_node.scorer, len(features)) is None


def test_parts_of_single_ranks_are_evened_out_around_whole_nodes():
    catalogue = make_catalogue()
    scorer = catalogue.scorer
    catalogue = Catalogue(scorer, replace(catalogue.request, allowed_types=ALL))
    levels, evaluator = levels_of(catalogue)
    start = of_plan(PLANNERS["size_greedy"](catalogue.request), catalogue)
    plan = levels.ranks_evened(start, WEIGHTS, THOROUGH_SCHEDULE)
    check_plan(to_plan(plan, catalogue), catalogue.request.tables, 8, 2)
    assert evaluator.value(plan)[0] <= evaluator.value(start)[0] * (1 + 1e-9)


def test_the_largest_part_of_the_busiest_rank_is_too_large():
    catalogue = make_catalogue()
    levels, _ = levels_of(catalogue)
    start = all_on_one_node(catalogue)
    keys = levels.too_large(start, WEIGHTS)
    # All ranks that are loaded hold a part of every table; the last looks up most.
    assert {key.table for key in keys} == {5}
    assert all(catalogue.cuts[cut].reach is Reach.NODE for cut in start.cuts)


@pytest.mark.parametrize("seed", range(2))
def test_plans_on_several_nodes_are_allowed_and_the_same_for_a_seed(seed):
    rng = np.random.default_rng(seed)
    tables = tuple(
        make_table(
            f"t{i}",
            rows=int(10 ** rng.uniform(3, 6.3)),
            dim=int(rng.choice([16, 32, 64])),
            pooling=float(rng.choice([2, 10, 60])),
        )
        for i in range(14)
    )
    plans, times = [], []
    for lp_start in (False, True, True):
        cluster = make_cluster(8, 2)
        scorer = PlanScorer(Problem(make_model(tables), cluster, 8192, Precision.TF32, Software()))
        found = solve(scorer, ALL, SolverSettings(lns=False, lp_start=lp_start), seed=seed).plan
        assert check_plan(found, tables, 8, 2) == found
        plans.append(found)
        times.append(float(scorer.score([found]).iteration_time_s[0]))
    assert plans[1] == plans[2]
    assert times[1] <= times[0] * 1.02
