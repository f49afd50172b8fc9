"""Lower bound against brute force, and the properties it must have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.errors import ConfigError
from dse.indices import IdOrder, Uniform, Zipf
from dse.machine.kernels import FBGEMM
from dse.sharding import ShardingType, TableConstraints, parse_allow, placements_allowed
from dse.simulate import simulate
from dse.workload import LaunchMode, PlanEffort
from dse.workload.dlrm import PlanScorer, Slot, build_layout
from dse.workload.dlrm.solver import lower_bound, planning_request, solve
from dse.workload.dlrm.solver.bound._layout import slot_graph
from tests.conftest import THOROUGH, make_cluster, make_table
from tests.workload.dlrm.solver.bound.oracle import (
    ALL,
    TABLE_WISE,
    TW,
    best_time_s,
    bound_of,
    dlrm,
    random_demands,
    random_problem,
    random_tables,
    random_types,
    skewed,
    with_hot_rows,
)

SEEDS = pytest.mark.parametrize(
    ("seed", "problems"),
    [
        (0, 8),
        *(pytest.param(s, 20, marks=pytest.mark.slow) for s in range(1, 12 if THOROUGH else 3)),
    ],
)


@SEEDS
def test_no_plan_of_a_small_problem_is_below_the_bound(seed, problems):
    rng = np.random.default_rng(seed)
    checked = 0
    for _ in range(problems):
        count = int(rng.integers(1, 5))
        problem = random_problem(rng, count, [(1, 4), (2, 2), (3, 3), (2, 1), (4, 2)])
        types = random_types(rng)
        scorer = PlanScorer(problem)
        request = random_demands(rng, planning_request(scorer, types, 0))
        optimum = best_time_s(scorer, request, limit=2500, seed=seed)
        bound = lower_bound(scorer, request)
        assert bound.iteration_time_s <= optimum, (problem, types)
        assert bound.iteration_time_s > 0
        assert bound.reasons
        checked += np.isfinite(optimum)
    assert checked > problems / 2


@SEEDS
def test_no_plan_with_uneven_blocks_is_below_the_bound(seed, problems):
    rng = np.random.default_rng(seed)
    checked = 0
    for _ in range(problems):
        clusters = [(1, 4), (2, 2), (3, 3), (4, 2), (4, 4), (6, 2)]
        problem = skewed(random_problem(rng, int(rng.integers(1, 5)), clusters), rng)
        scorer = PlanScorer(problem)
        types = random_types(rng) | {ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE}
        request = planning_request(scorer, types, 0)
        optimum = best_time_s(scorer, request, limit=2500, seed=seed)
        bound = lower_bound(scorer, request)
        assert 0 < bound.iteration_time_s <= optimum, (problem, types)
        checked += np.isfinite(optimum)
    assert checked > problems / 2


@SEEDS
def test_no_plan_with_hot_rows_is_below_the_bound(seed, problems):
    rng = np.random.default_rng([seed, 7])
    checked = hot = 0
    for _ in range(problems):
        count = int(rng.integers(1, 4))
        problem = random_problem(rng, count, [(2, 2), (3, 3), (2, 1), (4, 2)])
        problem = with_hot_rows(problem, rng)
        types = random_types(rng)
        scorer = PlanScorer(problem)
        request = random_demands(rng, planning_request(scorer, types, 0))
        optimum = best_time_s(scorer, request, limit=4000, seed=seed)
        bound = lower_bound(scorer, request)
        assert bound.iteration_time_s <= optimum, (problem, types)
        checked += np.isfinite(optimum)
        hot += any(request.hot_rows)
        # Fewer plans cannot have a lower bound than all of them together.
        without = replace(request, hot_rows=())
        assert best_time_s(scorer, without, limit=4000, seed=seed) >= bound.iteration_time_s
    assert checked > problems / 2
    assert hot > problems / 2


@SEEDS
def test_no_plan_of_whole_shards_on_several_nodes_is_below_the_bound(seed, problems):
    # Few shards for as many ranks, so that the fullest rank or node has more than the average.
    rng = np.random.default_rng([seed, 11])
    whole = (
        {TABLE_WISE, ShardingType.COLUMN_WISE},
        {ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD},
        {TABLE_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.ROW_WISE},
    )
    checked = 0
    for _ in range(problems):
        problem = random_problem(rng, int(rng.integers(2, 6)), [(4, 2), (6, 2), (4, 1), (8, 4)])
        if rng.random() < 0.4:
            problem = with_hot_rows(problem, rng)
        scorer = PlanScorer(problem)
        types = frozenset(whole[rng.integers(len(whole))])
        request = planning_request(scorer, types, 0)
        optimum = best_time_s(scorer, request, limit=2500, seed=seed)
        assert lower_bound(scorer, request).iteration_time_s <= optimum, (problem, types)
        checked += np.isfinite(optimum)
    assert checked > problems / 2


def test_where_hot_rows_pay_the_bound_is_lower_and_the_plan_has_them():
    tables = tuple(
        replace(make_table(f"t{i}", rows=400_000, dim=256, pooling=1), indices=Zipf(1.1))
        for i in range(8)
    )
    problem = dlrm(tables, make_cluster(8, 2), batch=65_536, hot_rows=True)
    scorer = PlanScorer(problem)
    times_s, bounds_s = [], []
    for allowed in (False, True):
        found = solve(scorer, PlanEffort(quick=True), hot_rows=allowed)
        times_s.append(float(scorer.score([found.plan]).iteration_time_s[0]))
        request = planning_request(scorer, ALL, 0, hot_rows=allowed)
        bounds_s.append(lower_bound(scorer, request, incumbent_s=times_s[-1]).iteration_time_s)
        assert bounds_s[-1] <= times_s[-1]
        assert any(table.hot_rows for table in found.plan.tables) is allowed
    assert times_s[1] < 0.9 * times_s[0]
    assert bounds_s[1] < bounds_s[0]


@pytest.mark.parametrize(
    ("world", "per_node", "tables"),
    [
        (8, 8, 8),
        (8, 4, 8),
        *(pytest.param(*size, 20, marks=pytest.mark.slow) for size in [(8, 8), (8, 4), (12, 4)]),
    ],
)
def test_no_random_plan_of_a_larger_problem_is_below_the_bound(world, per_node, tables):
    rng = np.random.default_rng(world * per_node)
    problem = dlrm(random_tables(rng, tables), make_cluster(world, per_node), batch=world * 1024)
    scorer = PlanScorer(problem)
    request = planning_request(scorer, ALL, 0)
    bound = lower_bound(scorer, request)
    assert bound.iteration_time_s <= best_time_s(scorer, request, limit=3000)


@pytest.mark.parametrize("dim", [16, 20, 64])
def test_an_exchange_that_dominates_is_bounded_by_shards_on_different_nodes(dim):
    # A hundred features: two shards of the table are best on one rank of each node.
    table = replace(make_table("wide", rows=2000, dim=dim), pooling_factors=(1.0,) * 100)
    scorer = PlanScorer(dlrm((table,), make_cluster(4, 2), batch=16384))
    request = planning_request(scorer, frozenset({ShardingType.COLUMN_WISE}), 0)
    assert lower_bound(scorer, request).iteration_time_s <= best_time_s(scorer, request, 2000)


def test_one_rank_leaves_no_choice_and_no_gap():
    problem = dlrm(random_tables(np.random.default_rng(1), 6), make_cluster(1, 4))
    scorer = PlanScorer(problem)
    request = planning_request(scorer, TW, 0)
    only = best_time_s(scorer, request, limit=10)
    assert lower_bound(scorer, request).iteration_time_s == pytest.approx(only, rel=1e-5)


def test_equal_tables_that_spread_evenly_leave_hardly_a_gap():
    tables = tuple(make_table(f"t{index}", rows=400_000, pooling=20) for index in range(8))
    scorer = PlanScorer(dlrm(tables, make_cluster(4, 4)))
    request = planning_request(scorer, TW, 0)
    even = [scorer.placements.option(i, next_of(request, i, i % 4)) for i in range(8)]
    time_s = float(scorer.score_options(np.array([even])).iteration_time_s[0])
    bound = lower_bound(scorer, request)
    assert bound.iteration_time_s <= time_s
    assert bound.gap(time_s) < 0.01


def test_exchanges_of_several_kinds_of_cuts_leave_hardly_a_gap():
    # Forty features of 128 columns: every cut costs its part of the exchange of all of them.
    wide = tuple(
        replace(make_table(f"t{index}", rows=20_000, dim=128), pooling_factors=(1.0,) * 40)
        for index in range(4)
    )
    scorer = PlanScorer(dlrm(wide, make_cluster(2, 2)))
    request = planning_request(scorer, frozenset({TABLE_WISE, ShardingType.ROW_WISE}), 0)
    optimum = best_time_s(scorer, request, limit=1000)
    bound = lower_bound(scorer, request)
    assert bound.iteration_time_s <= optimum
    assert bound.gap(optimum) < 0.01


def next_of(request, index, rank):
    return placements_allowed(index, request)[0].on(request.tables[index].name, (rank,))


def test_one_table_more_than_ranks_means_that_two_share_a_rank():
    tables = tuple(make_table(f"t{index}", rows=2_000_000, pooling=200) for index in range(5))
    problem = dlrm(tables, make_cluster(4, 4))
    scorer = PlanScorer(problem)
    request = planning_request(scorer, TW, 0)
    optimum = best_time_s(scorer, request, limit=1024)
    bound = lower_bound(scorer, request)
    assert bound.iteration_time_s <= optimum
    # On average a rank has five quarters of a table; some rank has two.
    assert bound.gap(optimum) < 0.05
    assert "share a rank" in bound.reasons[0]


#: Updates take long however few rows they are of.
SLOW_LAUNCHES = replace(FBGEMM, update_floor_kernels=400.0)


@pytest.mark.parametrize(
    ("cluster", "kind"),
    [
        (make_cluster(4, 4), ShardingType.ROW_WISE),
        (make_cluster(8, 4), ShardingType.TABLE_ROW_WISE),
    ],
)
def test_ranks_without_rows_of_one_table_have_the_launches_of_another(cluster, kind):
    # Some ranks get no row of the small table, but all of them, or of the nodes, get some of the
    # large one.
    tables = (make_table("large", rows=1_000_000, pooling=20), make_table("small", rows=3))
    scorer = PlanScorer(dlrm(tables, cluster, embedding=SLOW_LAUNCHES))
    request = planning_request(scorer, frozenset({kind}), 0)
    optimum = best_time_s(scorer, request, limit=100)
    assert lower_bound(scorer, request).iteration_time_s <= optimum
    assert lower_bound(scorer, request).gap(optimum) < 0.02


def test_a_rank_with_nothing_to_look_up_has_no_launch():
    tables = (make_table("used", pooling=20), make_table("unused", pooling=0))
    scorer = PlanScorer(dlrm(tables, make_cluster(2, 2), embedding=SLOW_LAUNCHES))
    request = planning_request(scorer, TW, 0)
    optimum = best_time_s(scorer, request, limit=10)
    assert lower_bound(scorer, request).iteration_time_s <= optimum


def test_a_group_leaves_nodes_without_launches_only_if_others_have_more():
    # Blocks of `hot` differ between ranks, so that a rank without rows of the others may be the
    # slowest one.
    names = ("hot", "a", "b", "c")
    tables = tuple(
        replace(
            make_table(name, rows=400_000, pooling=60 if name == "hot" else 20),
            indices=Zipf(1.05, ids=IdOrder.HASHED),
        )
        for name in names
    )
    scorer = PlanScorer(dlrm(tables, make_cluster(4, 2), embedding=SLOW_LAUNCHES))
    kinds = {"hot": ShardingType.ROW_WISE, "[abc]": ShardingType.TABLE_ROW_WISE}
    constraints = tuple(
        TableConstraints(tables=name, allowed_types=frozenset({kind}))
        for name, kind in kinds.items()
    )
    request = replace(
        planning_request(scorer, frozenset(kinds.values()), 0), constraints=constraints
    )
    optimum = best_time_s(scorer, request, limit=1000)
    assert lower_bound(scorer, request).iteration_time_s <= optimum
    assert lower_bound(scorer, request).gap(optimum) < 0.05


@pytest.mark.parametrize(
    ("kind", "world", "tables"),
    [
        (TABLE_WISE, 4, 5),
        (TABLE_WISE, 4, 6),
        (ShardingType.TABLE_ROW_WISE, 6, 4),
        (ShardingType.TABLE_ROW_WISE, 4, 3),
    ],
)
def test_shards_that_do_not_spread_evenly_leave_one_rank_or_node_to_exchange_more(
    kind, world, tables
):
    # Forty features of 128 columns: exchanges decide. On average a rank has five quarters of a
    # table, a node four thirds; some rank, or node, has two.
    wide = tuple(
        replace(make_table(f"t{index}", rows=20_000 + index, dim=128), pooling_factors=(1.0,) * 40)
        for index in range(tables)
    )
    scorer = PlanScorer(dlrm(wide, make_cluster(world, 2), batch=world * 4096))
    request = planning_request(scorer, frozenset({kind}), 0)
    optimum = best_time_s(scorer, request, limit=5000)
    bound = lower_bound(scorer, request)
    assert bound.iteration_time_s <= optimum
    assert bound.gap(optimum) < 0.02


def test_a_table_that_cannot_be_cut_decides():
    tables = (
        make_table("small", rows=1000, pooling=1),
        make_table("large", rows=2_000_000, pooling=300),
    )
    problem = dlrm(tables, make_cluster(4, 4))
    scorer = PlanScorer(problem)
    request = planning_request(scorer, TW, 0)
    bound = lower_bound(scorer, request)
    assert bound.reasons[0] == "largest indivisible shard: table `large` on one rank"
    assert bound.gap(best_time_s(scorer, request, limit=16)) < 0.02


@pytest.mark.parametrize(
    ("seed", "tables"),
    [(0, 4), *(pytest.param(seed, 8, marks=pytest.mark.slow) for seed in range(3))],
)
def test_more_types_never_raise_the_bound(seed, tables):
    rng = np.random.default_rng(seed)
    problem = dlrm(random_tables(rng, tables), make_cluster(4, 2))
    types = frozenset()
    least = np.inf
    for kind in rng.permutation(np.arange(len(ShardingType))):
        types |= {list(ShardingType)[kind]}
        bound_s = bound_of(problem, types).iteration_time_s
        # Refinement stops at different points; what it leaves open is below this.
        assert bound_s <= least * 1.005
        least = min(least, bound_s)


@pytest.mark.parametrize(
    "faster",
    [
        lambda c: replace(c, link=replace(c.link, bandwidth_bytes_per_s=6e11)),
        lambda c: replace(c, network=replace(c.network, nic_bandwidth_bytes_per_s=5e10)),
        lambda c: replace(c, device=replace(c.device, memory_bandwidth_bytes_per_s=4e12)),
    ],
)
def test_more_bandwidth_never_raises_the_bound(faster):
    tables = random_tables(np.random.default_rng(4), 5)
    cluster = make_cluster(4, 2)
    slow = bound_of(dlrm(tables, cluster)).iteration_time_s
    fast = bound_of(dlrm(tables, faster(cluster))).iteration_time_s
    assert fast <= slow * 1.005


def test_memory_is_ignored_if_no_plan_fits():
    tables = tuple(make_table(f"t{index}", rows=100_000_000) for index in range(8))
    problem = dlrm(tables)
    scorer = PlanScorer(problem)
    request = planning_request(scorer, TW, 0)
    assert best_time_s(scorer, request, limit=2000) == np.inf
    assert 0 < lower_bound(scorer, request).iteration_time_s < np.inf


def test_tight_memory_raises_the_bound_of_copies():
    tables = tuple(make_table(f"t{index}", rows=3_000_000, pooling=1) for index in range(4))
    roomy = dlrm(tables, make_cluster(2, 2))
    scorer = PlanScorer(roomy)
    floor = scorer.memory_bytes_without_tables
    tight = replace(
        roomy.cluster,
        device=replace(roomy.cluster.device, memory_bytes=floor + 4e9 + 2e9),
    )
    either = frozenset({ShardingType.DATA_PARALLEL, TABLE_WISE})
    copies = bound_of(roomy, frozenset({ShardingType.DATA_PARALLEL})).iteration_time_s
    scorer = PlanScorer(replace(roomy, cluster=tight))
    request = planning_request(scorer, either, 0)
    optimum = best_time_s(scorer, request, limit=4000)
    assert lower_bound(scorer, request).iteration_time_s <= optimum < copies


def test_the_bound_of_an_optimal_plan_needs_no_refining_beyond_it():
    problem = dlrm(random_tables(np.random.default_rng(7), 4), make_cluster(2, 2))
    scorer = PlanScorer(problem)
    request = planning_request(scorer, TW, 0)
    optimum = best_time_s(scorer, request, limit=16)
    full = lower_bound(scorer, request)
    with_incumbent = lower_bound(scorer, request, incumbent_s=optimum)
    assert with_incumbent.iteration_time_s <= full.iteration_time_s * (1 + 1e-9) <= optimum


@pytest.mark.parametrize("launch", list(LaunchMode))
@pytest.mark.parametrize(("world", "per_node"), [(4, 4), (4, 2), (3, 1)])
def test_one_rank_stands_for_all_where_all_do_the_same(launch, world, per_node):
    problem = dlrm(None, make_cluster(world, per_node), batch=world * 512, launch=launch)
    rng = np.random.default_rng(world)
    for layout in range(1, 16):
        one = build_layout(problem, layout, one_rank=True)
        everyone = build_layout(problem, layout)
        durations_s = rng.uniform(0, 1e-3, len(Slot))
        times = []
        for graph in (one, everyone):
            filled = graph.graph.duration_s.copy()
            filled[graph.slot_task] = durations_s[graph.slot_kind]
            times.append(simulate(graph.graph, filled).end_s.max())
        contracted = slot_graph(one).makespan_s(durations_s)
        assert times == pytest.approx([contracted, contracted], rel=1e-12)


@pytest.mark.parametrize(("world", "per_node"), [(4, 2), (8, 2), (8, 4)])
@pytest.mark.parametrize("two_steps", [False, True])
@pytest.mark.parametrize("indices", [Uniform(), Zipf(1.2, ids=IdOrder.BY_POPULARITY)])
def test_what_is_spread_adds_to_the_input_of_the_largest_shard(
    world, per_node, two_steps, indices
):
    # Popular rows are on one rank of the node.
    tables = (
        make_table("spread", rows=2_000_000, pooling=150),
        replace(make_table("on one node", rows=500_000, pooling=60), indices=indices),
    )
    scorer = PlanScorer(
        dlrm(
            tables,
            make_cluster(world, per_node),
            batch=world * 4096,
            hierarchical_exchange=two_steps,
        )
    )
    demands = (parse_allow("spread=row_wise"), parse_allow("on one node=table_row_wise"))
    request = replace(planning_request(scorer, ALL, 0), constraints=demands)
    optimum = best_time_s(scorer, request, limit=world)
    bound = lower_bound(scorer, request)
    # All that is left to choose is the node, and they are equal.
    assert bound.iteration_time_s <= optimum
    assert bound.gap(optimum) < 0.002


def test_durations_that_programs_take_for_infinite_are_refused():
    cluster = make_cluster(2, 2)
    device = replace(cluster.device, memory_bandwidth_bytes_per_s=1e-18)
    problem = dlrm((make_table("a"),), replace(cluster, device=device), batch=4096)
    scorer = PlanScorer(problem)
    with pytest.raises(ConfigError, match="1e20 s"):
        lower_bound(scorer, planning_request(scorer, TW, 0))
