from __future__ import annotations

from dataclasses import replace
import json

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
    TablePlan,
    check_plan,
    column_widths,
    plan_to_json,
    plan_to_torchrec,
    read_plan,
    row_blocks,
    stored_bytes,
    table_shards,
)
from tests.conftest import make_table

TW, CW, RW = ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE
TWRW, TWCW = ShardingType.TABLE_ROW_WISE, ShardingType.TABLE_COLUMN_WISE
GRID, DP = ShardingType.GRID_SHARD, ShardingType.DATA_PARALLEL
TABLES = (make_table("a"), make_table("b", rows=1001, dim=32))


def plan(first: TablePlan, world_size: int = 4) -> ShardingPlan:
    return ShardingPlan(world_size, (first, TablePlan("b", TW, (0,))))


@given(st.integers(1, 1024), st.integers(1, 64))
def test_columns_are_split_completely(dim, shards):
    shards = min(shards, dim)
    widths = column_widths(dim, shards)
    assert sum(widths) == dim
    assert min(widths) >= 1
    assert len(widths) == shards
    assert max(widths) - min(widths) <= 7


def test_rows_are_split_as_torchrec_does():
    assert row_blocks(10, 4) == (3, 3, 3, 1)
    assert row_blocks(3, 8) == (1, 1, 1, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("placement", "rectangles"),
    [
        (TablePlan("b", TW, (2,)), [(2, 0, 1001, 0, 32)]),
        (TablePlan("b", CW, (1, 3)), [(1, 0, 1001, 0, 16), (3, 0, 1001, 16, 16)]),
        (
            TablePlan("b", RW, (0, 1, 2, 3)),
            [(0, 0, 251, 0, 32), (1, 251, 251, 0, 32), (2, 502, 251, 0, 32), (3, 753, 248, 0, 32)],
        ),
        (TablePlan("b", TWRW, (2, 3)), [(2, 0, 501, 0, 32), (3, 501, 500, 0, 32)]),
        (
            TablePlan("b", GRID, (2, 3, 0, 1)),
            [(2, 0, 501, 0, 16), (3, 501, 500, 0, 16), (0, 0, 501, 16, 16), (1, 501, 500, 16, 16)],
        ),
    ],
)
def test_shards_by_hand(placement, rectangles):
    found = table_shards(placement, TABLES[1], devices_per_node=2)
    assert [
        (p.rank, p.row_offset, p.rows, p.column_offset, p.columns) for p in found
    ] == rectangles


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (TablePlan("a", TW, (0, 1)), "one rank is expected"),
        (TablePlan("a", TW, (9,)), "rank 9 is outside 0–3"),
        (TablePlan("a", RW, (0, 1)), "all 4 ranks are expected"),
        (TablePlan("a", DP, (0, 1, 2, 2)), "all 4 ranks are expected"),
        (TablePlan("a", TWCW, (0, 2)), "ranks of one node"),
        (TablePlan("a", TWRW, (0,)), "all 2 ranks of one node"),
        (TablePlan("a", GRID, (0, 1, 2)), "groups of all 2 ranks"),
        (TablePlan("c", TW, (0,)), "no placement for table `a`"),
        (TablePlan("b", TW, (0,)), "more than one placement for table `b`"),
    ],
)
def test_impossible_plans_are_named(placement, words):
    with pytest.raises(PlanError, match=words):
        check_plan(plan(placement), TABLES, 4, 2)


@pytest.mark.parametrize(
    ("placement", "possible"),
    [
        (TablePlan("a", RW, (1, 2)), True),
        (TablePlan("a", RW, (1, 1)), False),
        (TablePlan("a", RW, (1,)), False),
        (TablePlan("a", TWRW, (0, 1, 4, 5)), True),
        (TablePlan("a", TWRW, (0, 1, 4)), False),
        (TablePlan("a", TWRW, (0, 2, 4, 5)), False),
        (TablePlan("a", DP, (0, 1)), False),
    ],
)
def test_rows_over_some_ranks_or_nodes(placement, possible):
    made = plan(placement, 6)
    with pytest.raises(PlanError):
        check_plan(made, TABLES, 6, 2)
    if possible:
        assert check_plan(made, TABLES, 6, 2, rows_on_some=True) == made
        return
    with pytest.raises(PlanError):
        check_plan(made, TABLES, 6, 2, rows_on_some=True)


def test_a_plan_for_another_size_is_refused():
    with pytest.raises(PlanError, match="for 4 ranks but the cluster has 8"):
        check_plan(plan(TablePlan("a", TW, (0,))), TABLES, 8, 8)


def test_checked_plans_follow_the_models_order():
    turned = ShardingPlan(4, (TablePlan("b", TW, (0,)), TablePlan("a", TW, (1,))))
    assert [table.table for table in check_plan(turned, TABLES, 4, 4).tables] == ["a", "b"]


# --- files --------------------------------------------------------------------------------

EVERY_TYPE = ShardingPlan(
    4,
    tuple(
        TablePlan(f"t{index}", kind, ranks, kernel)
        for index, (kind, ranks, kernel) in enumerate(
            [
                (TW, (3,), ComputeKernel.FUSED),
                (CW, (0, 3, 0), ComputeKernel.FUSED),
                (RW, (0, 1, 2, 3), ComputeKernel.FUSED),
                (TWRW, (2, 3), ComputeKernel.FUSED),
                (TWCW, (2, 3), ComputeKernel.FUSED),
                (GRID, (0, 1, 2, 3), ComputeKernel.FUSED),
                (DP, (0, 1, 2, 3), ComputeKernel.DENSE),
            ]
        )
    ),
)
EVERY_TABLE = tuple(make_table(table.table, rows=103, dim=24) for table in EVERY_TYPE.tables)


def test_both_forms_read_back(tmp_path):
    own, torchrec = tmp_path / "own.json", tmp_path / "torchrec.json"
    own.write_text(plan_to_json(EVERY_TYPE, "m"))
    torchrec.write_text(plan_to_torchrec(EVERY_TYPE, EVERY_TABLE, 2))
    assert read_plan(own) == EVERY_TYPE
    # Whole tables and tables cut by columns share exchanges, if all are written as one type.
    assert read_plan(torchrec) == replace(
        EVERY_TYPE,
        tables=tuple(
            replace(table, sharding_type=CW) if table.sharding_type is TWCW else table
            for table in EVERY_TYPE.tables
        ),
    )


def test_torchrec_shards_tile_each_table():
    module = json.loads(plan_to_torchrec(EVERY_TYPE, EVERY_TABLE, 2))["plan"]
    (tables,) = module.values()
    for name, sharding in tables.items():
        if sharding["sharding_type"] == "data_parallel":
            assert sharding["sharding_spec"] is None
            continue
        shards = sharding["sharding_spec"]["shards"]
        covered = sum(shard["shard_sizes"][0] * shard["shard_sizes"][1] for shard in shards)
        assert covered == 103 * 24, name
    assert tables["t0"]["sharding_spec"]["shards"][0]["placement"] == "rank:3/cuda:1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a block"),
        ('{"schema_version": 1, "world_size": 4, "tables": {"a": {"ranks": [0]}}}', "missing"),
        (
            '{"schema_version": 1, "world_size": 4, "tables": {"a": {"ranks": [0], '
            '"sharding_type": "row_wize"}}}',
            "did you mean `row_wise`",
        ),
    ],
)
def test_wrong_plan_files(tmp_path, text, words):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_plan(path)


def test_a_missing_plan_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json: no such file"):
        read_plan(tmp_path / "none.json")


# --- planners -----------------------------------------------------------------------------


def request(tables, world_size=4, per_node=4, types=frozenset(ShardingType), memory=1e9):
    return PlanningRequest(tables, Optimizer.SGD, world_size, per_node, types, memory)


@pytest.mark.parametrize("name", PLANNERS)
@given(data=st.data())
def test_every_planner_makes_possible_plans(name, data):
    per_node, nodes = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.integers(1, 3))
    world_size = per_node * nodes
    types = data.draw(st.sets(st.sampled_from(list(ShardingType)), min_size=1))
    sizes = data.draw(
        st.lists(st.tuples(st.integers(1, 10**6), st.sampled_from([4, 16, 64])), min_size=1)
    )
    tables = tuple(make_table(f"t{i}", rows, dim) for i, (rows, dim) in enumerate(sizes))
    made = PLANNERS[name](request(tables, world_size, per_node, frozenset(types), 1e8))
    assert check_plan(made, tables, world_size, per_node) == made
    assert {table.sharding_type for table in made.tables} <= types


def test_greedy_gives_the_next_largest_table_to_the_least_loaded_rank():
    tables = tuple(make_table(f"t{i}", rows=rows) for i, rows in enumerate([50, 40, 30, 20, 10]))
    made = PLANNERS["size_greedy"](request(tables, world_size=2, per_node=2))
    # 50 → 0; 40 → 1; 30 → 1 (70); 20 → 0 (70); 10 → 0.
    assert [table.ranks for table in made.tables] == [(0,), (1,), (1,), (0,), (0,)]


def test_a_table_that_fits_no_rank_whole_is_cut():
    table = make_table("big", rows=1_000_000, dim=64)
    made = PLANNERS["size_greedy"](request((table,), memory=200e6))
    assert made.tables[0].sharding_type is CW
    assert len(made.tables[0].ranks) == 4
    only_rows = PLANNERS["size_greedy"](request((table,), types=frozenset({TW, RW}), memory=200e6))
    assert only_rows.tables[0].sharding_type is RW


def test_random_planner_follows_its_seed():
    tables = tuple(make_table(f"t{i}") for i in range(12))
    plans = [
        PLANNERS["random"](PlanningRequest(tables, Optimizer.SGD, 8, 8, frozenset({TW}), 1e9, s))
        for s in (1, 1, 2)
    ]
    assert plans[0] == plans[1] != plans[2]


def test_stored_bytes_count_optimizer_state():
    table = make_table("t", rows=10, dim=8)
    assert stored_bytes(table, Optimizer.SGD, 10, 8) == 320
    assert stored_bytes(table, Optimizer.ROWWISE_ADAGRAD, 10, 8) == 360
    assert stored_bytes(table, Optimizer.ADAM, 10, 8) == 960
