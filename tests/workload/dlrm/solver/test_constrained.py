"""Search within constraints and with tables in host memory, against brute force."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, product
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import ConfigError, InfeasibleError
from dse.machine import Precision
from dse.sharding import (
    PLANNERS,
    ComputeKernel,
    PlanningRequest,
    ShardingPlan,
    ShardingType,
    TableConstraints,
    check_plan,
    placements_allowed,
)
from dse.workload import PlanEffort
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import find_plan, lower_bound, planning_request, solve
from dse.workload.dlrm.solver._options import ShardingOptions
from dse.workload.dlrm.solver.moves import (
    Evaluator,
    Neighbourhood,
    from_plan,
    movable_shards,
    to_plan,
)
from tests.conftest import make_cluster, make_device, make_model, make_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.sharding import AllowedPlacement, TablePlan

ALL = frozenset(ShardingType)
TW, CW, RW = ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE
UVM, CACHING = ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING


def make_scorer(tables, world: int = 2, **cluster: object) -> PlanScorer:
    machines = make_cluster(world, world, **cluster)
    return PlanScorer(
        DlrmProblem(make_model(tables), machines, 4096, Precision.TF32, DlrmRuntime())
    )


def request_of(
    scorer: PlanScorer,
    constraints: tuple[TableConstraints, ...] = (),
    *,
    allow_uvm: bool = False,
    allowed_types: frozenset[ShardingType] = ALL,
) -> PlanningRequest:
    request = planning_request(scorer, allowed_types, 0)
    return replace(request, constraints=constraints, allow_uvm=allow_uvm)


def rank_choices(placement: AllowedPlacement) -> Iterator[tuple[int, ...]]:
    """All ranks that a placement on one node may take, each set of pieces once."""
    if placement.sharding_type not in (CW, ShardingType.TABLE_COLUMN_WISE):
        yield from placement.rank_sets
        return
    for ranks in placement.rank_sets:
        for pieces in placement.column_shards:
            yield from combinations(ranks, pieces)


def every_plan(request: PlanningRequest) -> list[ShardingPlan]:
    """Every plan of a request on one node."""
    ways: list[list[TablePlan]] = []
    for index, table in enumerate(request.tables):
        found = [
            placement.on(table.name, ranks)
            for placement in placements_allowed(index, request)
            for ranks in rank_choices(placement)
        ]
        ways.append(found)
    return [ShardingPlan(request.world_size, chosen) for chosen in product(*ways)]


def optimum_s(scorer: PlanScorer, request: PlanningRequest) -> float:
    scores = scorer.score(every_plan(request))
    return float(np.where(scores.fits, scores.iteration_time_s, np.inf).min())


@pytest.mark.parametrize("effort", [PlanEffort(), PlanEffort(quick=True)])
@pytest.mark.parametrize(
    ("world", "count", "seed"), [(4, 3, 18), (2, 4, 18), (2, 4, 19), (2, 4, 5)]
)
def test_a_plan_is_found_where_memory_hardly_suffices(world, count, seed, effort):
    rng = np.random.default_rng(seed)
    tables = tuple(
        make_table(
            f"t{index}",
            rows=int(10 ** rng.uniform(5, 7)),
            dim=int(rng.choice([32, 64, 128])),
            pooling=int(rng.integers(1, 60)),
        )
        for index in range(count)
    )
    ample = make_scorer(tables, world)
    least_bytes = ample.score(every_plan(request_of(ample))).peak_memory_bytes.min()
    reserved_bytes = ample.problem.cluster.device.reserved_memory_bytes
    device = make_device(memory_bytes=1.001 * least_bytes + reserved_bytes)
    tight = make_scorer(tables, world, device=device)
    assert tight.score([solve(tight, effort).plan]).fits[0]


def keeps(plan: ShardingPlan, constraints: tuple[TableConstraints, ...]) -> bool:
    """Reads the constraints themselves, not the placements that are allowed."""
    for table in plan.tables:
        for rule in constraints:
            if not rule.matches(table.table):
                continue
            if rule.allowed_types is not None and table.sharding_type not in rule.allowed_types:
                return False
            if rule.allowed_kernels and table.compute_kernel not in rule.allowed_kernels:
                return False
            if rule.pinned_ranks is not None and not rule.pinned_ranks.issuperset(table.ranks):
                return False
            if rule.max_partitions is not None and (
                table.sharding_type is CW and len(table.ranks) > rule.max_partitions
            ):
                return False
    return True


CONSTRAINED = {
    "pinned": (TableConstraints("t0", pinned_ranks=frozenset({1})),),
    "types": (
        TableConstraints("t[01]", allowed_types=frozenset({TW, CW})),
        TableConstraints("t2", allowed_types=frozenset({RW})),
    ),
    "pinned and cut": (
        TableConstraints("t*", allowed_types=frozenset({TW, CW}), max_partitions=2),
        TableConstraints("t1", pinned_ranks=frozenset({0})),
    ),
    "host": (
        TableConstraints("t3", allowed_kernels=frozenset({UVM})),
        TableConstraints("t0", pinned_ranks=frozenset({0})),
    ),
    "cached": (
        TableConstraints("t2", allowed_kernels=frozenset({CACHING}), cache_load_factor=0.5),
    ),
}


@pytest.mark.parametrize("name", CONSTRAINED)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_constrained_problems_are_solved_as_by_brute_force(name, seed):
    rng = np.random.default_rng(seed)
    tables = tuple(
        make_table(f"t{i}", int(rng.integers(1e4, 4e5)), pooling=int(rng.integers(2, 50)))
        for i in range(4)
    )
    scorer = make_scorer(tables)
    constraints = CONSTRAINED[name]
    found = find_plan(scorer, constraints=constraints)
    assert keeps(found.plan, constraints)
    best_s = optimum_s(scorer, request_of(scorer, constraints))
    assert found.iteration_time_s == pytest.approx(best_s, rel=1e-9)
    assert found.lower_bound_s <= best_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("types", "memory_bytes"),
    [
        *((frozenset({TW}), size) for size in (2.3e9, 2.6e9, 3.0e9)),
        (frozenset({TW, CW, RW}), 3.0e9),
        *(
            pytest.param(frozenset({TW, CW, RW}), size, marks=pytest.mark.slow)
            for size in (2.3e9, 2.6e9)
        ),
    ],
)
def test_host_memory_is_used_as_by_brute_force(types, memory_bytes):
    # 0.13 to 0.5 GB each, on two devices with little unreserved memory.
    tables = tuple(make_table(f"t{i}", 500_000 * (i + 1), pooling=20 - 5 * i) for i in range(4))
    scorer = make_scorer(tables, device=make_device(memory_bytes=memory_bytes))
    request = request_of(scorer, allow_uvm=True, allowed_types=types)
    found = find_plan(scorer, allowed_types=types, allow_uvm=True)
    best_s = optimum_s(scorer, request)
    assert found.fits
    assert found.iteration_time_s == pytest.approx(best_s, rel=1e-9)
    assert found.lower_bound_s <= best_s * (1 + 1e-9)


def test_ranks_with_host_links_of_their_own_are_not_bounded_as_if_they_shared_one():
    tables = tuple(make_table(f"t{i}", 400_000, pooling=50) for i in range(2))
    scorer = make_scorer(tables)
    constraints = (
        TableConstraints("t*", allowed_types=frozenset({TW}), allowed_kernels=frozenset({UVM})),
    )
    request = request_of(scorer, constraints)
    best_s = optimum_s(scorer, request)
    # A table each: rows cross both links at once, and decide how long a step takes.
    assert best_s > 4096 * 50 * 64 * 4 / scorer.problem.cluster.host_link.bandwidth_bytes_per_s
    bound_s = lower_bound(scorer, request).iteration_time_s
    assert 0.9 * best_s < bound_s <= best_s * (1 + 1e-9)


TABLES = tuple(make_table(f"t{i}", 30_000 * (i + 1), pooling=3 + 4 * i) for i in range(5))


@cache
def constrained_scorer() -> tuple[PlanScorer, float]:
    """A scorer, and the bound on its plans without constraints."""
    scorer = make_scorer(TABLES, 4)
    return scorer, lower_bound(scorer, request_of(scorer, allow_uvm=True)).iteration_time_s


@st.composite
def some_constraints(draw) -> tuple[TableConstraints, ...]:
    chosen = []
    for name in draw(st.lists(st.sampled_from(["t0", "t1", "t[23]", "t*"]), max_size=3)):
        kind = draw(st.sampled_from(["pin", "types", "shards", "host"]))
        if kind == "pin":
            ranks = draw(st.sets(st.integers(0, 3), min_size=1))
            chosen.append(TableConstraints(name, pinned_ranks=frozenset(ranks)))
        elif kind == "types":
            types = draw(st.sets(st.sampled_from(sorted(ALL)), min_size=1))
            chosen.append(TableConstraints(name, allowed_types=frozenset(types)))
        elif kind == "shards":
            chosen.append(TableConstraints(name, max_partitions=draw(st.sampled_from([2, 4]))))
        else:
            kernels = frozenset({UVM, ComputeKernel.FUSED})
            chosen.append(TableConstraints(name, allowed_kernels=kernels))
    return tuple(chosen)


# An example takes tens of linear programs.
@settings(max_examples=8)
@given(some_constraints())
def test_constraints_hold_and_never_beat_the_bound_without_them(constraints):
    scorer, free_bound_s = constrained_scorer()
    try:
        found = find_plan(scorer, PlanEffort(time_limit_s=0.05), constraints=constraints)
    except (ConfigError, InfeasibleError):
        return
    assert keeps(found.plan, constraints)
    assert check_plan(found.plan, TABLES, 4, 4) == found.plan
    assert found.lower_bound_s <= found.iteration_time_s * (1 + 1e-9)
    assert found.iteration_time_s >= free_bound_s * (1 - 1e-9)


@pytest.mark.parametrize(("world", "per_node"), [(4, 4), (8, 4)])
def test_neighbours_of_constrained_plans_are_allowed_and_score_as_plans(world, per_node):
    constraints = (
        TableConstraints("t0", pinned_ranks=frozenset({1, 2, 3})),
        TableConstraints("t1", allowed_types=frozenset({TW, CW}), max_partitions=2),
        TableConstraints("t4", allowed_kernels=frozenset({UVM, CACHING}), cache_load_factor=0.1),
    )
    cluster = make_cluster(world, per_node)
    scorer = PlanScorer(
        DlrmProblem(make_model(TABLES), cluster, 8192, Precision.TF32, DlrmRuntime())
    )
    options = ShardingOptions(scorer, request_of(scorer, constraints))
    evaluator, neighbourhood = Evaluator(options), Neighbourhood(options, 600)
    weights = np.array([1.0, 1.0, 1e-9, 1e-12])
    for planner in PLANNERS.values():
        plan = planner(options.request)
        base = from_plan(plan, options)
        assert to_plan(base, options) == plan
        shards = movable_shards(base, options)
        changes = neighbourhood.around(base, weights)
        changes += neighbourhood.exchanges(base, shards, weights, 100)
        plans = [to_plan(base.changed(group), options) for group in changes]
        assert all(keeps(plan, constraints) for plan in plans)
        found = evaluator.values(base, changes)
        expected = scorer.score(plans)
        np.testing.assert_allclose(found.time_s, expected.iteration_time_s, rtol=1e-9)


def test_pinned_tables_stay_on_their_node_in_a_search_over_several_nodes():
    constraints = (
        TableConstraints("t[0-2]", pinned_ranks=frozenset({4, 5, 6, 7})),
        TableConstraints("t4", pinned_ranks=frozenset({0, 5})),
    )
    problem = DlrmProblem(
        make_model(TABLES), make_cluster(8, 4), 8192, Precision.TF32, DlrmRuntime()
    )
    scorer = PlanScorer(problem)
    found = find_plan(scorer, constraints=constraints)
    assert keeps(found.plan, constraints)
    greedy = [planner(request_of(scorer, constraints)) for planner in PLANNERS.values()]
    best_s = float(scorer.score(greedy).iteration_time_s.min())
    assert found.iteration_time_s <= best_s * (1 + 1e-12)
