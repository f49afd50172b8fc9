from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError, PlanError
from dse.model import Optimizer
from dse.sharding import (
    PLANNERS,
    ComputeKernel,
    PlanningRequest,
    ShardingPlan,
    ShardingType,
    TableConstraints,
    TablePlan,
    check_constraints,
    check_plan,
    parse_allow,
    parse_pin,
    placements_allowed,
    read_constraints,
    shard_storage,
)
from tests.conftest import make_table

TW, CW, RW = ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE
TWRW, TWCW = ShardingType.TABLE_ROW_WISE, ShardingType.TABLE_COLUMN_WISE
GRID, DP = ShardingType.GRID_SHARD, ShardingType.DATA_PARALLEL
FUSED, DENSE = ComputeKernel.FUSED, ComputeKernel.DENSE
UVM, CACHING = ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING
TABLES = (make_table("big", dim=64), make_table("small_0", dim=32), make_table("small_1", dim=8))


def request(
    *constraints,
    tables=TABLES,
    world_size=8,
    per_node=4,
    types=frozenset(ShardingType),
    memory=1e9,
    allow_uvm=False,
):
    return PlanningRequest(
        tables,
        Optimizer.SGD,
        world_size,
        per_node,
        types,
        memory,
        constraints=constraints,
        allow_uvm=allow_uvm,
    )


def kinds(asked, index=0):
    return [(way.sharding_type, way.compute_kernel) for way in placements_allowed(index, asked)]


# --- enumeration --------------------------------------------------------------------------


def test_everything_is_allowed_without_constraints():
    found = {way.sharding_type: way for way in placements_allowed(0, request())}
    assert set(found) == set(ShardingType)
    everyone = tuple(range(8))
    assert found[TW].rank_sets == tuple((rank,) for rank in everyone)
    assert (found[CW].rank_sets, found[CW].column_shards) == ((everyone,), (2, 4))
    assert found[TWCW].rank_sets == found[TWRW].rank_sets == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert (found[GRID].column_shards, found[RW].rank_sets) == ((2,), (everyone,))
    assert found[DP].compute_kernel is DENSE
    assert {one.compute_kernel for kind, one in found.items() if kind is not DP} == {FUSED}


def test_uvm_is_there_when_allowed_but_not_for_copies():
    found = kinds(request(allow_uvm=True))
    assert [kernel for kind, kernel in found if kind is TW] == [FUSED, CACHING, UVM]
    assert [kernel for kind, kernel in found if kind is DP] == [DENSE]


def test_a_constraint_that_names_uvm_allows_it():
    assert kinds(request(parse_allow("big=table_wise,fused_uvm"))) == [(TW, UVM)]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ({3}, {TW: ((3,),), CW: ((3,),), TWCW: ((3,),)}),
        ({3, 5}, {TW: ((3,), (5,)), CW: ((3, 5),), TWCW: ((3,), (5,))}),
        (
            {0, 1, 2, 3},
            {
                TW: ((0,), (1,), (2,), (3,)),
                CW: ((0, 1, 2, 3),),
                TWCW: ((0, 1, 2, 3),),
                TWRW: ((0, 1, 2, 3),),
                GRID: ((0, 1, 2, 3),),
            },
        ),
    ],
)
def test_pinned_ranks_leave_only_what_they_can_hold(ranks, expected):
    found = placements_allowed(0, request(TableConstraints("big", pinned_ranks=frozenset(ranks))))
    assert {way.sharding_type: way.rank_sets for way in found} == expected


def test_widths_and_numbers_of_column_shards():
    def counts(**demands):
        asked = request(TableConstraints("big", frozenset({CW}), **demands))
        return placements_allowed(0, asked)[0].column_shards

    assert counts() == (2, 4)
    assert counts(min_partition=32) == (2,)
    assert counts(min_partition=8) == (2, 4, 8)
    assert counts(max_partitions=3) == (2,)
    assert counts(max_partitions=1) == (1,)
    assert counts(pinned_ranks=frozenset({0, 4})) == (2,)


def test_patterns_and_several_constraints_together():
    asked = request(
        TableConstraints("small_*", frozenset({TW, RW, CW})),
        TableConstraints("*_1", frozenset({RW, CW, DP})),
    )
    assert kinds(asked, 1) == [(TW, FUSED), (CW, FUSED), (RW, FUSED)]
    assert kinds(asked, 2) == [(CW, FUSED), (RW, FUSED)]
    assert len(kinds(asked, 0)) == 7


def test_the_cache_load_factor_reaches_the_placement():
    asked = request(
        parse_allow("big=table_wise,fused_uvm_caching"),
        TableConstraints("b*", cache_load_factor=0.4),
    )
    (found,) = placements_allowed(0, asked)
    made = found.on("big", (2,))
    assert made == TablePlan("big", TW, (2,), CACHING, 0.4)
    assert (made.cached_share, found.cached_share) == (0.4, 0.4)
    assert TablePlan("big", TW, (2,), CACHING).cached_share == 0.2
    assert TablePlan("big", TW, (2,), UVM).cached_share == 0
    assert TablePlan("big", TW, (2,)).cached_share is None


# --- contradictions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        (
            (parse_pin("big=3"), parse_allow("b*=row_wise")),
            r"pinned to rank 3 \(--pin big=3\) contradicts only row_wise \(--allow b\*=row_wise\)"
            ", which needs all 8 ranks",
        ),
        (
            (parse_pin("big=0,1"), parse_allow("big=table_row_wise,grid_shard")),
            "needs all 4 ranks of a node",
        ),
        ((parse_pin("big=0"), parse_pin("b*=1")), r"rank 0 \(--pin big=0\) contradicts pinned to"),
        (
            (parse_allow("big=table_wise"), parse_allow("*=row_wise")),
            r"only table_wise \(--allow big=table_wise\) contradicts only row_wise",
        ),
        (
            (parse_allow("big=data_parallel,fused_uvm"),),
            "only data_parallel .* contradicts only fused_uvm",
        ),
        (
            (TableConstraints("big", frozenset({CW}), min_partition=100, origin="c.yaml:3:3"),),
            r"column shards of at least 100 columns \(c.yaml:3:3\)",
        ),
    ],
)
def test_contradictions_name_both_sides(constraints, words):
    with pytest.raises(ConfigError, match=words):
        placements_allowed(0, request(*constraints))
    with pytest.raises(ConfigError, match=words):
        check_constraints(request(*constraints))


def test_a_constraint_against_what_is_allowed_for_all():
    asked = request(parse_allow("big=row_wise"), types=frozenset({TW}))
    with pytest.raises(ConfigError, match=r"only row_wise .* cannot be met .*\(table_wise\)"):
        check_constraints(asked)
    with pytest.raises(ConfigError, match="allow more types"):
        placements_allowed(0, request(types=frozenset()))


def test_tables_with_the_same_contradiction_share_a_line():
    asked = request(parse_allow("*=row_wise"), types=frozenset({TW}))
    many = tuple(replace(asked.tables[0], name=f"t{index}") for index in range(50))
    with pytest.raises(ConfigError) as caught:
        check_constraints(replace(asked, tables=many))
    assert str(caught.value) == (
        "tables `t0`, `t1`, `t2` and 47 more: only row_wise (--allow *=row_wise) cannot be met on "
        "8 ranks with the types allowed for all tables (table_wise); allow more types or drop it"
    )


def test_all_wrong_names_and_ranks_are_listed():
    asked = request(parse_pin("bigg=0"), parse_pin("big=9"))
    with pytest.raises(ConfigError) as caught:
        check_constraints(asked)
    first, second = str(caught.value).splitlines()
    assert first == "--pin bigg=0: no table is called `bigg`; did you mean `big`?"
    assert second == "--pin big=9: rank 9 is outside 0–7"


# --- files and short forms ------------------------------------------------------------------


def test_constraints_are_read_with_their_places(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "schema_version: 1\n"
        "tables:\n"
        '  "small_*": {sharding_types: [table_wise], ranks: [0, 1]}\n'
        "  big:\n"
        "    compute_kernels: [fused_uvm_caching]\n"
        "    cache_load_factor: 0.3\n"
        "    min_partition: 32\n"
        "    max_partitions: 2\n"
    )
    first, second = read_constraints(path)
    assert first == TableConstraints(
        "small_*", frozenset({TW}), None, frozenset({0, 1}), origin=f"{path}:3:3"
    )
    assert second == TableConstraints(
        "big", None, frozenset({CACHING}), None, 32, 2, 0.3, origin=f"{path}:4:3"
    )


def test_json_is_read_as_well(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"schema_version": 1,\n "tables": {"big": {"ranks": [3]}}}')
    (found,) = read_constraints(path)
    assert (found.pinned_ranks, found.origin) == (frozenset({3}), f"{path}:2:13")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("  big: {sharding_types: [row_wize]}", r":3:26: .*did you mean `row_wise`"),
        ("  big: {rank: [0]}", r":3:9: .*did you mean `ranks`"),
        ("  big: {cache_load_factor: 1.5}", r":3:28: .*at most 1"),
        ("  big: {}", "no constraint is given"),
        ("  big: {ranks: [-1]}", r":3:17: .*at least 0"),
    ],
)
def test_wrong_files_are_told_with_line_and_column(tmp_path, body, words):
    path = tmp_path / "c.yaml"
    path.write_text(f"schema_version: 1\ntables:\n{body}\n")
    with pytest.raises(ConfigError, match=words):
        read_constraints(path)


def test_short_forms():
    assert parse_pin("cat_[0-3]=2, 4") == TableConstraints(
        "cat_[0-3]", pinned_ranks=frozenset({2, 4}), origin="--pin cat_[0-3]=2, 4"
    )
    both = parse_allow("t=row_wise,fused_uvm")
    assert (both.allowed_types, both.allowed_kernels) == (frozenset({RW}), frozenset({UVM}))
    assert parse_allow("t=row_wise").allowed_kernels is None


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (parse_pin, "big", "expected TABLE=RANK"),
        (parse_pin, "=3", "expected TABLE=RANK"),
        (parse_pin, "big=", "expected TABLE=RANK"),
        (parse_pin, "big=one", "whole numbers"),
        (parse_allow, "big=row_wize", "did you mean `row_wise`"),
        (parse_allow, "row_wise", "expected TABLE=TYPE"),
    ],
)
def test_wrong_short_forms(read, text, words):
    with pytest.raises(ConfigError, match=words):
        read(text)


# --- plans --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (TablePlan("big", DP, (0, 1), UVM), "dense optimizer in device memory; use the kernel"),
        (TablePlan("big", TW, (0,), FUSED, 0.2), "is for `fused_uvm_caching`, found `fused`"),
        (TablePlan("big", TW, (0,), CACHING, 1.2), "at most 1 is expected, found 1.2"),
        (TablePlan("big", TW, (0,), CACHING, 0.0), "above 0"),
    ],
)
def test_impossible_kernels_are_named(placement, words):
    with pytest.raises(PlanError, match=words):
        check_plan(ShardingPlan(2, (placement,)), TABLES[:1], 2, 2)


@pytest.mark.parametrize("kernel", [UVM, CACHING])
def test_tables_in_host_memory_pass_the_check(kernel):
    made = ShardingPlan(2, (TablePlan("big", RW, (0, 1), kernel),))
    assert check_plan(made, TABLES[:1], 2, 2) == made


# --- planners -----------------------------------------------------------------------------

demands = st.builds(
    TableConstraints,
    tables=st.sampled_from(["t0", "t1", "t*", "*"]),
    allowed_types=st.none() | st.frozensets(st.sampled_from(list(ShardingType)), min_size=1),
    allowed_kernels=st.none()
    | st.frozensets(st.sampled_from([FUSED, DENSE, UVM, CACHING]), min_size=1),
    pinned_ranks=st.none() | st.frozensets(st.integers(0, 7), min_size=1),
    min_partition=st.none() | st.sampled_from([8, 16, 32]),
    max_partitions=st.none() | st.integers(1, 4),
    cache_load_factor=st.none() | st.sampled_from([0.1, 0.5]),
)


def keeps_to(made: TablePlan, constraint: TableConstraints, dim: int) -> bool:
    shards = {CW: len(made.ranks), TWCW: len(made.ranks), GRID: len(made.ranks) // 4}.get(
        made.sharding_type, 1
    )
    return (
        (constraint.allowed_types is None or made.sharding_type in constraint.allowed_types)
        and (
            constraint.allowed_kernels is None or made.compute_kernel in constraint.allowed_kernels
        )
        and (constraint.pinned_ranks is None or set(made.ranks) <= constraint.pinned_ranks)
        and (constraint.max_partitions is None or shards <= constraint.max_partitions)
        and (
            constraint.min_partition is None
            or shards == 1
            or dim // shards >= constraint.min_partition
        )
    )


@pytest.mark.parametrize("name", PLANNERS)
@given(st.lists(demands, max_size=3), st.booleans(), st.sampled_from([1e9, 2e7, 1e6]))
def test_every_planner_keeps_to_the_constraints(name, constraints, allow_uvm, memory):
    tables = tuple(make_table(f"t{i}", 50_000 * (i + 1), 64) for i in range(3))
    asked = request(*constraints, tables=tables, memory=memory, allow_uvm=allow_uvm)
    try:
        for index in range(len(tables)):
            placements_allowed(index, asked)
    except ConfigError:
        with pytest.raises(ConfigError):
            PLANNERS[name](asked)
        return
    made = PLANNERS[name](asked)
    assert check_plan(made, tables, 8, 4) == made
    for table in made.tables:
        applying = [rule for rule in constraints if rule.matches(table.table)]
        assert all(keeps_to(table, rule, 64) for rule in applying)
        named = any(rule.allowed_kernels for rule in applying)
        assert allow_uvm or named or not table.compute_kernel.on_host


def test_planners_turn_to_host_memory_when_the_devices_are_full():
    tables = tuple(make_table(f"t{i}", rows=100_000, dim=64) for i in range(6))
    # Two tables of 25.6 MB fit a device; the other four of six go to host memory on two ranks.
    asked = request(tables=tables, world_size=2, per_node=2, types=frozenset({TW}), memory=55e6)
    full = PLANNERS["size_greedy"](asked)
    assert all(table.compute_kernel is FUSED for table in full.tables)
    spilled = PLANNERS["size_greedy"](
        request(
            tables=tables,
            world_size=2,
            per_node=2,
            types=frozenset({TW}),
            memory=55e6,
            allow_uvm=True,
        )
    )
    held = [0.0, 0.0]
    for made, table in zip(spilled.tables, tables, strict=True):
        storage = shard_storage(table, Optimizer.SGD, table.rows, table.dim, made.cached_share)
        held[made.ranks[0]] += storage.device_bytes
    assert max(held) <= 55e6
    assert sum(made.compute_kernel is FUSED for made in spilled.tables) == 4


# --- hot rows -------------------------------------------------------------------------------


def counts(asked) -> set[tuple[int, ...]]:
    return {way.hot_rows for way in placements_allowed(0, asked)}


def test_hot_rows_are_those_of_the_request_unless_a_constraint_names_others():
    asked = replace(request(), hot_rows=((10, 20), (), ()))
    assert counts(asked) == {(0,), (0, 10, 20)}
    assert all(
        way.hot_rows == (0,) for way in placements_allowed(0, asked) if way.sharding_type is DP
    )
    assert counts(request()) == {(0,)}
    named = replace(asked, constraints=(TableConstraints("big", hot_rows=frozenset({0, 7})),))
    assert counts(named) == {(0,), (0, 7)}
    demanded = replace(asked, constraints=(TableConstraints("big", hot_rows=frozenset({7})),))
    assert counts(demanded) == {(7,)}
    assert placements_allowed(0, demanded)[0].on("big", (0,)).hot_rows == 7
    # A table has fewer hot rows than rows.
    none = replace(asked, constraints=(TableConstraints("big", hot_rows=frozenset({10**9})),))
    assert counts(none) == {(0,)}


def test_contradicting_numbers_of_hot_rows_are_named():
    rules = (
        TableConstraints("big", hot_rows=frozenset({0}), origin="a:1"),
        TableConstraints("big", hot_rows=frozenset({7}), origin="b:2"),
    )
    with pytest.raises(ConfigError, match=r"0 hot rows \(a:1\) contradicts 7 hot rows \(b:2\)"):
        placements_allowed(0, request(*rules))


def test_numbers_of_hot_rows_are_read(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("schema_version: 1\ntables:\n  big: {hot_rows: [0, 500]}\n")
    (rule,) = read_constraints(path)
    assert rule.hot_rows == frozenset({0, 500})
