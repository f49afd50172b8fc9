"""Moves: conversion, incremental scores, balancing, repacking."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.machine import Precision
from dse.sharding import PLANNERS, ShardingType, check_plan
from dse.workload import DurationClass
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import planning_request
from dse.workload.dlrm.solver._options import ShardingOptions
from dse.workload.dlrm.solver.moves import (
    QUICK,
    Assignment,
    Balancer,
    Candidate,
    Change,
    Evaluator,
    MovableShards,
    Moves,
    Neighbourhood,
    from_plan,
    movable_shards,
    repack,
    to_plan,
)
from dse.workload.dlrm.solver.moves._evaluator import _summed
from tests.conftest import make_cluster, make_model, make_table

ALL = frozenset(ShardingType)
WEIGHTS = np.array([1.0, 1.0, 1e-9, 1e-12])


def make_options(world: int = 8, per_node: int = 4) -> ShardingOptions:
    tables = tuple(make_table(f"t{i}", rows=20_000 * (i + 1), pooling=2 + 9 * i) for i in range(6))
    cluster = make_cluster(world, per_node)
    scorer = PlanScorer(
        DlrmProblem(make_model(tables), cluster, 8192, Precision.TF32, DlrmRuntime())
    )
    return ShardingOptions(scorer, planning_request(scorer, ALL, 0))


def make_shards(
    loads: list[float], rank: list[int], ranks: int, table: list[int] | None = None
) -> MovableShards:
    """Shards with one load and a byte each."""
    count = len(loads)
    return MovableShards(
        table=np.arange(count) if table is None else np.array(table),
        offset=np.zeros(count, dtype=np.int64),
        rank=np.array(rank),
        node=np.full(count, -1),
        loads=np.array([loads, [1.0] * count]),
        fixed=np.zeros((2, ranks)),
        load_of=np.zeros(1, dtype=np.int64),
    )


def make_balancer(shards: MovableShards, memory_bytes: float = 1e9) -> Balancer:
    return Balancer(shards, np.array([1.0]), memory_bytes, 8, lambda: False)


def largest(shards: MovableShards, rank: np.ndarray) -> float:
    ranks = shards.fixed.shape[1]
    return float(np.bincount(rank, weights=shards.loads[0], minlength=ranks).max())


@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4)])
def test_plans_survive_conversion_and_back(world, per_node):
    options = make_options(world, per_node)
    for planner in PLANNERS.values():
        plan = planner(options.request)
        assert to_plan(from_plan(plan, options), options) == plan


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_arriving_and_leaving_shards_add_up_by_rank(seed, entries):
    rng = np.random.default_rng(seed)
    features = rng.random((5, 3))
    keys, rows = rng.integers(0, 4, entries), rng.integers(0, 5, entries)
    signs = rng.choice([-1.0, 1.0], entries)
    found, sums = _summed(keys, rows, signs, features)
    assert found.tolist() == sorted(set(keys.tolist()))
    for key, total in zip(found.tolist(), sums, strict=True):
        mine = keys == key
        np.testing.assert_allclose(total, signs[mine] @ features[rows[mine]], atol=1e-12)


def test_a_shard_that_leaves_and_returns_leaves_no_rounding():
    features = np.array([[0.1], [0.3]])
    _, sums = _summed(np.zeros(3, int), np.array([0, 1, 0]), np.array([-1.0, 1, 1]), features)
    assert sums.tolist() == [[0.3]]


@pytest.mark.parametrize(("world", "per_node"), [(4, 4), (8, 4)])
def test_placed_lists_equal_the_arrays(world, per_node):
    options = make_options(world, per_node)
    for planner in PLANNERS.values():
        assignment = from_plan(planner(options.request), options)
        for cut, places in zip(assignment.cuts, assignment.places, strict=True):
            rows, ranks = options.placed_shards(cut, places)
            joined = [list(numbers) for numbers in options.placed_lists(cut, places)]
            assert joined == [rows.tolist(), ranks.tolist()]


@pytest.mark.parametrize(("world", "per_node"), [(4, 4), (8, 4)])
def test_changes_score_as_the_changed_plans(world, per_node):
    options = make_options(world, per_node)
    evaluator = Evaluator(options)
    base = from_plan(PLANNERS["size_greedy"](options.request), options)
    neighbourhood = Neighbourhood(options, 600)
    changes = neighbourhood.around(base, WEIGHTS)
    changes += neighbourhood.exchanges(base, movable_shards(base, options), WEIGHTS, 100)
    kinds = {options.cuts[change.cut].key.kind for group in changes for change in group}
    assert len(kinds) >= 5
    plans = [to_plan(base.changed(group), options) for group in changes]
    for plan in plans:
        check_plan(plan, options.request.tables, world, per_node)
    exact = options.scorer.score(plans)
    assert exact.fits.all()
    found = evaluator.values(base, changes)
    np.testing.assert_allclose(found.time_s, exact.iteration_time_s, rtol=1e-9)
    assert evaluator.plans_scored == len(changes)


def test_an_emptied_rank_has_no_work_left_over_from_rounding():
    options = make_options(4, 4)
    evaluator = Evaluator(options)
    plan = PLANNERS["size_greedy"](options.request)
    base = from_plan(plan, options)
    busy = base.places[0][0]
    leaving = [
        (table, cut, ((busy + 1) % 4,))
        for table, (cut, places) in enumerate(zip(base.cuts, base.places, strict=True))
        if places == (busy,)
    ]
    changes = tuple(Change(*each) for each in leaving)
    emptied = base.changed(changes)
    assert evaluator.features(emptied)[:, busy].max() == 0.0
    expected = options.scorer.score([to_plan(emptied, options)]).iteration_time_s[0]
    assert evaluator.values(base, [changes]).time_s[0] == pytest.approx(expected, rel=1e-12)


def test_loads_of_shards_add_up_to_the_kernels_of_a_rank():
    options = make_options(4, 4)
    scorer = options.scorer
    plan = PLANNERS["lookup_greedy"](options.request)
    assignment = from_plan(plan, options)
    shards = movable_shards(assignment, options)
    total = shards.total()
    features = scorer.features(plan)
    held = scorer.memory.total_bytes(features)[:, 0]
    np.testing.assert_allclose(total[-1], held, rtol=1e-12)
    filled = scorer.filled(plan)
    kernels_s = filled.duration_s[filled.layout.duration_class == DurationClass.EMBEDDING].sum(0)
    device = scorer.problem.cluster.device
    # One launch of the lookup and eight of the update are not part of the additive loads.
    np.testing.assert_allclose(
        shards.load_s(np.array([1.0, 1.0, 0.0, 0.0])) + 9 * device.kernel_floor_s,
        kernels_s,
        rtol=1e-9,
    )


def test_marginal_costs_predict_a_small_change():
    options = make_options(4, 4)
    scorer = options.scorer
    plan = PLANNERS["lookup_greedy"](options.request)
    layout, features = scorer.layout_and_features(plan)
    features = features[:, :, 0]
    costs = scorer.marginal_costs(layout, features)
    assert costs.shape == (4,)
    assert (costs >= 0).all()
    # A second of the largest lookup or update cannot cost more than a second.
    assert (costs[:2] <= 1 + 1e-9).all()
    assert costs[1] > 0


def test_balancing_finds_the_even_split_by_exchanges():
    # 7 + 5 + 4 and 6 + 6 + 4: from 7 + 6 + 6 against 5 + 4 + 4 only an exchange helps.
    shards = make_shards([7, 6, 6, 5, 4, 4], [0, 0, 0, 1, 1, 1], 2)
    balancer = make_balancer(shards)
    balancer.descend(50)
    assert largest(shards, balancer.places) == 16


def test_what_no_exchange_helps_stays():
    balancer = make_balancer(make_shards([3, 3, 2], [0, 1, 2], 3))
    balancer.descend(1)
    assert balancer.places.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("bytes_there", "places"), [(0.0, [1, 2]), (1.0, [0, 1])])
def test_a_shard_is_pushed_on_where_memory_allows_it(bytes_there, places):
    # The first shard may go from the busiest rank to that of the second one, which may go on to a
    # rank that is free. It fills a rank of two bytes.
    shards = MovableShards(
        table=np.arange(2),
        offset=np.zeros(2, dtype=np.int64),
        rank=np.array([0, 1]),
        node=np.full(2, -1),
        loads=np.array([[0.4, 0.3], [2.0, 1.0]]),
        fixed=np.array([[0.2, 0.0, 0.0], [0.0, bytes_there, 0.0]]),
        load_of=np.zeros(1, dtype=np.int64),
        allowed=np.array([[True, True, False], [False, True, True]]),
    )
    balancer = make_balancer(shards, memory_bytes=2.0)
    balancer.descend(10)
    assert balancer.places.tolist() == places


def test_other_places_save_at_most_what_the_mean_and_the_largest_shard_leave():
    # 19 now, and 16 on average.
    even = make_shards([7, 6, 6, 5, 4, 4], [0, 0, 0, 1, 1, 1], 2)
    assert make_balancer(even).most_gain_s() == pytest.approx(3)
    # 12 now, and 9 with the largest shard alone.
    uneven = make_shards([9, 1, 1, 1], [0, 0, 0, 0], 2)
    assert make_balancer(uneven).most_gain_s() == pytest.approx(3)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=5), st.integers(2, 3))
def test_no_places_save_more_than_the_most_gain(loads, ranks):
    shards = make_shards(loads, [0] * len(loads), ranks)
    most_s = make_balancer(shards).most_gain_s()
    best = min(
        largest(shards, np.array(places)) for places in product(range(ranks), repeat=len(loads))
    )
    assert largest(shards, shards.rank) - best <= most_s + 1e-9


def test_plans_balanced_together_are_those_balanced_alone():
    options = make_options(2, 2)
    moves = Moves(options, effort=QUICK, deadline=None)
    plans = [from_plan(planner(options.request), options) for planner in PLANNERS.values()]
    crowded = Assignment(plans[0].cuts, ((0,),) * len(options.request.tables))
    starts = moves.score_all([*plans, crowded])
    weights = moves.weights(crowded)
    together = moves.all_balanced(starts, weights)
    alone = [moves.balanced(start, weights, perturbations=0) for start in starts]
    assert [found.plan for found in together] == [found.plan for found in alone]
    np.testing.assert_allclose(
        [found.rank_by for found in together], [found.rank_by for found in alone], rtol=1e-12
    )
    assert together[-1].rank_by < starts[-1].rank_by


def test_plans_too_far_behind_are_not_balanced():
    options = make_options(2, 2)
    moves = Moves(options, effort=QUICK, deadline=None)
    plan = from_plan(PLANNERS["size_greedy"](options.request), options)
    crowded = moves.score(Assignment(plan.cuts, ((0,),) * len(options.request.tables)))
    weights = moves.weights(crowded.plan)
    (balanced,) = moves.all_balanced([crowded], weights)
    assert balanced.rank_by < crowded.rank_by
    # Even ranks halve the work at best.
    ahead = Candidate(plan, crowded.rank_by / 4)
    assert moves.all_balanced([crowded, ahead], weights)[0] == crowded


def test_a_descent_ends_when_it_is_too_far_behind():
    options = make_options()
    plan = from_plan(PLANNERS["size_greedy"](options.request), options)
    crowded = Assignment(plan.cuts, ((0,),) * len(options.request.tables))
    found, scored = [], []
    for share in (0.01, 100.0):
        moves = Moves(options, effort=QUICK, deadline=None)
        start = moves.score(crowded)
        found.append(moves.descend(start, 12, Candidate(plan, share * start.rank_by)))
        scored.append(moves.evaluator.plans_scored)
    assert scored[0] < scored[1]
    assert found[1].rank_by < found[0].rank_by < start.rank_by


def test_balancing_never_fills_a_rank_over_its_memory():
    shards = make_shards([9, 1, 1, 1], [0, 1, 1, 1], 2)
    balancer = make_balancer(shards, memory_bytes=3.0)
    balancer.descend(50)
    balancer.improve(np.random.default_rng(0), 20, 50)
    assert np.bincount(balancer.places, minlength=2).max() <= 3


def test_balancing_empties_a_rank_that_is_over_its_memory():
    shards = make_shards([1, 1, 1, 1, 9], [0, 0, 0, 0, 1], 2)
    balancer = make_balancer(shards, memory_bytes=3.0)
    balancer.descend(50)
    assert np.bincount(balancer.places, minlength=2).max() == 3


def test_shards_of_a_table_stay_apart_and_on_their_node():
    shards = make_shards([8, 8, 1, 1], [0, 1, 0, 1], 4, table=[0, 0, 1, 2])
    bound = MovableShards(
        shards.table,
        shards.offset,
        shards.rank,
        np.array([-1, -1, 0, 0]),
        shards.loads,
        shards.fixed,
        shards.load_of,
    )
    balancer = Balancer(bound, np.array([1.0]), 1e9, 2, lambda: False)
    balancer.descend(50)
    balancer.improve(np.random.default_rng(1), 40, 50)
    places = balancer.places
    assert places[0] != places[1]
    assert set(places[2:].tolist()) <= {0, 1}


def test_a_small_program_finds_the_optimum():
    rng = np.random.default_rng(3)
    for _ in range(5):
        loads = rng.integers(1, 30, 7).astype(float).tolist()
        shards = make_shards(loads, [0] * 7, 3)
        packed = repack(shards, np.array([0, 1, 2]), np.array([1.0]), 1e9, 8)
        assert packed is not None
        optimum = min(
            largest(shards, np.array(every)) for every in product(range(3), repeat=len(loads))
        )
        assert largest(shards, packed) <= optimum * (1 + 1e-3)


def make_two_kinds() -> MovableShards:
    """Two shards that wait for memory on one rank, two that wait for cache on the other."""
    return MovableShards(
        table=np.arange(4),
        offset=np.zeros(4, dtype=np.int64),
        rank=np.array([0, 0, 1, 1]),
        node=np.full(4, -1),
        loads=np.array([[4.0, 4.0, 1.0, 1.0], [1.0, 1.0, 4.0, 4.0], [1.0] * 4]),
        fixed=np.zeros((3, 2)),
        load_of=np.array([0, 0]),
    )


def test_shards_that_wait_for_memory_are_paired_with_those_that_wait_for_cache():
    shards = make_two_kinds()
    assert shards.load_s(np.array([2.0])).tolist() == [16.0, 16.0]
    balancer = make_balancer(shards)
    balancer.descend(10)
    for places in (
        balancer.places,
        repack(shards, np.array([0, 1]), np.array([1.0]), 1e9, 8),
    ):
        assert places is not None
        # One of each kind: 4 + 1 in memory and 1 + 4 in cache.
        assert sorted(places[:2].tolist()) == sorted(places[2:].tolist()) == [0, 1]


def test_a_small_program_leaves_other_ranks_alone():
    shards = make_shards([5, 4, 3, 2, 1], [0, 0, 0, 1, 2], 3)
    packed = repack(shards, np.array([0, 1]), np.array([1.0]), 1e9, 8)
    assert packed is not None
    assert packed[4] == 2
    assert largest(shards, packed) == 7
    assert repack(shards, np.array([2]), np.array([1.0]), 1e9, 8) is None
