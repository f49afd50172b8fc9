"""Plans on fewer ranks than they were made for."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.sharding import ShardingPlan, ShardingType, TablePlan, check_plan
from dse.validation.study.runs._scale import fold_plan
from tests.conftest import make_table

# Two nodes of four ranks.
PLAN = ShardingPlan(
    8,
    (
        TablePlan("whole", ShardingType.TABLE_WISE, (5,)),
        TablePlan("columns", ShardingType.COLUMN_WISE, (0, 3, 7, 7)),
        TablePlan("rows", ShardingType.ROW_WISE, tuple(range(8))),
        TablePlan("copies", ShardingType.DATA_PARALLEL, tuple(range(8))),
        TablePlan("node rows", ShardingType.TABLE_ROW_WISE, (4, 5, 6, 7)),
        TablePlan("node columns", ShardingType.TABLE_COLUMN_WISE, (1, 2)),
        TablePlan("grid", ShardingType.GRID_SHARD, (4, 5, 6, 7, 0, 1, 2, 3)),
    ),
)
TABLES = [make_table(one.table, rows=64) for one in PLAN.tables]


def folded(ranks, per_node=4, plan=PLAN):
    found = fold_plan(plan, ranks, per_node)
    # What comes out is a plan for one node of these ranks.
    check_plan(found, TABLES, ranks, ranks)
    return {one.table: (one.sharding_type.value, one.ranks) for one in found.tables}


def test_two_nodes_become_two_ranks():
    assert folded(2) == {
        "whole": ("table_wise", (1,)),
        "columns": ("column_wise", (0, 0, 1, 1)),
        "rows": ("row_wise", (0, 1)),
        "copies": ("data_parallel", (0, 1)),
        "node rows": ("table_wise", (1,)),
        "node columns": ("table_column_wise", (0, 0)),
        "grid": ("column_wise", (1, 0)),
    }


def test_everything_becomes_one_rank():
    assert {ranks for _, ranks in folded(1).values()} == {(0,), (0,) * 2, (0,) * 4}


def test_one_node_keeps_its_types():
    tables = (
        *PLAN.tables[:4],
        TablePlan("node rows", ShardingType.TABLE_ROW_WISE, tuple(range(8))),
        PLAN.tables[5],
        TablePlan("grid", ShardingType.GRID_SHARD, tuple(range(8)) * 2),
    )
    found = folded(4, per_node=8, plan=ShardingPlan(8, tables))
    assert found["whole"] == ("table_wise", (2,))
    assert found["node rows"] == ("table_row_wise", (0, 1, 2, 3))
    assert found["grid"] == ("grid_shard", (0, 1, 2, 3, 0, 1, 2, 3))
    assert folded(8, per_node=8, plan=ShardingPlan(8, tables))["columns"] == (
        "column_wise",
        (0, 3, 7, 7),
    )


def test_what_cannot_be_folded_is_refused():
    with pytest.raises(ConfigError, match="8 ranks cannot be folded onto 3"):
        fold_plan(PLAN, 3, 4)
    with pytest.raises(ConfigError, match=r"one of 2 nodes.*run it on 2 ranks"):
        fold_plan(PLAN, 4, 4)
