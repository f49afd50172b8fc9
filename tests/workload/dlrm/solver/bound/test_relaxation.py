"""Relaxations split by the largest shard of an exchange, or at a bend."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dse.sharding import ShardingType
from dse.workload.dlrm import (
    ExchangeGroup,
    PlanScorer,
    Slot,
    first_steps_s,
    slot_durations_s,
)
from dse.workload.dlrm.scoring._features import GroupFeature, group_column
from dse.workload.dlrm.solver import lower_bound, planning_request
from dse.workload.dlrm.solver.bound import relaxed_problem
from tests.conftest import make_cluster, make_table
from tests.workload.dlrm.solver.bound.oracle import best_time_s, dlrm, placements, random_tables

TYPES = frozenset({ShardingType.TABLE_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD})

EXCHANGES = (Slot.INPUT_EXCHANGE, Slot.POOLED_EXCHANGE, Slot.NODE_EXCHANGE_BETWEEN)


def scored_plans(scorer, request, limit=1500):
    """Options and times of plans that fit, with the layout of each."""
    options = [
        np.array([scorer.placements.option(index, plan) for plan in placements(index, request)])
        for index in range(len(request.tables))
    ]
    total = int(np.prod([len(choices) for choices in options]))
    if total <= limit:
        plans = np.array(list(product(*options)))
    else:
        rng = np.random.default_rng(0)
        plans = np.stack([rng.choice(choices, limit) for choices in options], axis=1)
    scores = scorer.score_options(plans)
    return plans[scores.fits], scores.iteration_time_s[scores.fits]


def alone_s(scorer, plans, slot):
    """Longest time that a shard alone keeps an exchange busy."""
    longest = np.zeros(len(plans))
    for column in plans.T:
        each, inverse = np.unique(column, return_inverse=True)
        features = scorer.placements.features(each[:, None])
        layouts = scorer.placements.layouts(each[:, None])
        found = np.array(
            [
                slot_durations_s(scorer.problem, int(layout), features[:, :, [index]])[slot].max()
                for index, layout in enumerate(layouts)
            ]
        )
        longest = np.maximum(longest, found[inverse.reshape(-1)])
    return longest


@pytest.mark.parametrize("seed", range(4))
def test_layouts_that_are_not_refined_do_not_have_the_least_bound(seed):
    rng = np.random.default_rng(seed)
    problem = dlrm(random_tables(rng, 4), make_cluster(4, 2), batch=4096)
    relaxed = relaxed_problem(problem, planning_request(PlanScorer(problem), TYPES, 0))
    every = [node.relaxed.value_s for node in relaxed.every_node()]
    least = [node.relaxed.value_s for node in relaxed.nodes(np.inf)]
    assert len(least) == len(every)
    assert min(least) == min(every)


def test_what_one_caller_refines_changes_nothing_for_the_next():
    rng = np.random.default_rng(3)
    problem = dlrm(random_tables(rng, 6), make_cluster(8, 2), batch=8 * 2048)
    request = planning_request(PlanScorer(problem), TYPES, 0)

    def solved():
        relaxed = relaxed_problem(problem, request)
        values_s = []
        for node in relaxed.every_node():
            # Programs of fewer plans, which look at other values of the exchanges.
            for part in node.relaxation.split_by_choice(0, node.relaxed):
                found = part.solve()
                values_s.append((node.relaxed.value_s, found and found.value_s))
        return values_s

    first = solved()
    assert first
    assert solved() == first


def test_time_that_is_over_leaves_later_layouts_out_but_only_this_time():
    problem = dlrm(random_tables(np.random.default_rng(4), 4), make_cluster(4, 2), batch=4 * 1024)
    relaxed = relaxed_problem(problem, planning_request(PlanScorer(problem), TYPES, 0))
    asked = iter([False, False, True])
    few = relaxed.every_node(stop=lambda: next(asked))
    every = relaxed.every_node()
    assert len(few) == 2 < len(every)
    values_s = [node.relaxed.value_s for node in every]
    assert [node.relaxed.value_s for node in few] == values_s[:2]


@pytest.mark.parametrize(
    ("seed", "world", "per_node"),
    [
        (0, 4, 2),
        *(
            pytest.param(seed, world, 2, marks=pytest.mark.slow)
            for world in (4, 6)
            for seed in range(3)
        ),
    ],
)
def test_plans_with_small_and_with_large_shards_are_bounded_separately(seed, world, per_node):
    rng = np.random.default_rng(seed)
    problem = dlrm(random_tables(rng, 3), make_cluster(world, per_node), batch=world * 1024)
    scorer = PlanScorer(problem)
    request = planning_request(scorer, TYPES, 0)
    relaxed = relaxed_problem(problem, request)
    choices = relaxed.choices
    plans, times_s = scored_plans(scorer, request)
    layouts = scorer.placements.layouts(plans)
    checked = 0
    for node in relaxed.every_node():
        layout = np.bitwise_or.reduce(choices.groups[node.relaxation.open_choices])
        inside = layouts == layout
        for slot in EXCHANGES:
            longest_s = alone_s(scorer, plans[inside], slot)
            for limit_s in np.unique(longest_s)[:-1]:
                small, large = node.relaxation.split_by_largest(int(slot), float(limit_s))
                few = small.solve() if small.possible else None
                many = large.solve()
                below = longest_s <= limit_s * (1 + 1e-12)
                for found, members in ((few, below), (many, ~below)):
                    if members.any():
                        assert found is not None
                        assert found.value_s <= times_s[inside][members].min() * (1 + 1e-9)
                        checked += 1
                if many is not None:
                    assert many.value_s >= node.relaxed.value_s * (1 - 1e-5)
    assert checked > 5


@pytest.mark.parametrize("two_steps", [False, True])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_no_plan_on_several_nodes_is_below_the_refined_bound(seed, two_steps):
    rng = np.random.default_rng(100 + seed)
    world, per_node = [(4, 2), (6, 2), (8, 2), (8, 4), (3, 1), (6, 3)][seed]
    cluster = make_cluster(world, per_node)
    tables = random_tables(rng, 4)
    problem = dlrm(tables, cluster, batch=world * 2048, hierarchical_exchange=two_steps)
    scorer = PlanScorer(problem)
    request = planning_request(scorer, frozenset(ShardingType), 0)
    optimum_s = best_time_s(scorer, request, limit=6000, seed=seed)
    bound = lower_bound(scorer, request, max_programs=60)
    coarse = lower_bound(scorer, request, max_programs=0)
    assert coarse.iteration_time_s <= bound.iteration_time_s * (1 + 1e-9) <= optimum_s * (1 + 1e-9)


def test_an_exchange_in_two_steps_has_the_widest_shard_in_one_and_the_mean_in_the_other():
    # One table fills a rank, and the others can fill the nodes evenly.
    tables = (
        make_table("wide", rows=2000, dim=512, pooling=1),
        *(make_table(f"t{number}", rows=2000, dim=64, pooling=1) for number in range(56)),
    )
    cluster = make_cluster(16, 4)
    problem = dlrm(tables, cluster, batch=16 * 4096, hierarchical_exchange=True)
    scorer = PlanScorer(problem)
    request = planning_request(scorer, frozenset({ShardingType.TABLE_WISE}), 0)
    relaxed = relaxed_problem(problem, request)
    choices = relaxed.choices
    (node,) = relaxed.every_node()
    exchanged = group_column(ExchangeGroup.POOLED, GroupFeature.EXCHANGED)
    features = np.zeros((len(choices.total), 16, 2))
    features[exchanged, 0, 0] = 512.0
    features[exchanged, :, 1] = (512 + 56 * 64) / 16
    first_s = first_steps_s(problem, 1 << ExchangeGroup.POOLED, features)
    whole_s = slot_durations_s(problem, 1 << ExchangeGroup.POOLED, features)
    second_s = whole_s - first_s
    least_s = first_s[Slot.POOLED_EXCHANGE, 0, 0] + second_s[Slot.POOLED_EXCHANGE, 0, 1]
    # Between two samples of a curve a bound is that of the lower one.
    assert node.relaxed.durations_s[Slot.POOLED_EXCHANGE] >= 0.99 * least_s
    assert least_s > 1.02 * whole_s[Slot.POOLED_EXCHANGE].max()


def test_a_wide_shard_of_a_solution_is_split_off():
    tables = random_tables(np.random.default_rng(5), 12, dims=(16, 128))
    problem = dlrm(tables, make_cluster(8, 2), batch=8 * 4096)
    relaxed = relaxed_problem(problem, planning_request(PlanScorer(problem), TYPES, 0))
    choices = relaxed.choices
    split = 0
    for node in relaxed.every_node():
        shard_s, slot, limit_s = node.relaxation.largest_shard(node.relaxed)
        if slot < 0:
            continue
        split += 1
        assert shard_s > 0
        small, large = node.relaxation.split_by_largest(slot, limit_s)
        # The first has no such shard, the second lasts as long as the shortest of them.
        assert choices.alone_s[slot][small.open_choices].max() <= limit_s
        found = large.solve()
        assert found is not None
        least_s = choices.alone_s[slot][node.relaxation.open_choices & ~small.open_choices].min()
        assert found.durations_s[slot] >= least_s * (1 - 1e-6)
        assert found.value_s >= node.relaxed.value_s * (1 - 1e-5)
    assert split > 0
