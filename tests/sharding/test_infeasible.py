"""Why tables do not fit: every figure in the message is computed here a second time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.model import Optimizer
from dse.sharding import (
    PlanningRequest,
    ShardingType,
    TableConstraints,
    explain_infeasible,
    format_size,
    parse_pin,
    total_device_bytes,
)
from tests.conftest import make_table

TW, CW, RW = ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE
MIB = 2**20

#: 64 MiB of weights, no state.
TABLE = make_table("big", rows=MIB, dim=16)


def request(*tables, types=frozenset({TW}), world_size=4, memory_mib=20, **changes):
    return PlanningRequest(
        tables, Optimizer.SGD, world_size, 4, frozenset(types), memory_mib * MIB, **changes
    )


def explain(asked, free_mib=24, memory_at=None):
    same = asked.embedding_memory_bytes
    return explain_infeasible(asked, free_mib * MIB, memory_at or (lambda ranks: same))


def test_nothing_is_said_of_what_may_fit():
    assert explain(request(make_table("t", rows=MIB // 4, dim=16))) == ""


def test_a_table_that_fits_nowhere_says_how_much_and_what_helps():
    reason = explain(request(TABLE))
    assert reason == (
        "table `big` fits nowhere: its largest shard takes at least 64.0 MiB (table_wise), a rank "
        "has 24.0 MiB for tables, 40.0 MiB are missing; it would fit with row_wise (16.0 MiB a "
        "rank), or with table_row_wise (16.0 MiB a rank), or with fused_uvm (--allow-uvm; "
        "table_wise, 0 bytes of device memory a rank)"
    )


def test_more_ranks_help_where_rows_are_spread():
    reason = explain(request(make_table("big", rows=4 * MIB, dim=16), types={RW}))
    # 256 MiB over 4 ranks are 64 MiB a rank; 20 MiB take 12.8 ranks: four nodes of four.
    assert "64.0 MiB (row_wise)" in reason
    assert "16 ranks (row_wise, 16.0 MiB a rank)" in reason
    assert "fused_uvm (--allow-uvm; row_wise, 0 bytes of device memory a rank)" in reason


def test_ranks_on_which_the_job_cannot_run_are_passed_over():
    asked = request(make_table("big", rows=4 * MIB, dim=16), types={RW})
    reason = explain(asked, memory_at=lambda ranks: None if ranks < 20 else 20.0 * MIB)
    assert "20 ranks (row_wise, 12.8 MiB a rank)" in reason
    scarce = explain(asked, memory_at=lambda ranks: 5.0 * MIB)
    # 256 MiB in shards of at most 5 MiB: 51.2 ranks, so thirteen nodes.
    assert "52 ranks (row_wise, 4.9 MiB a rank)" in scarce


def test_columns_help_wide_tables():
    wide = make_table("wide", rows=MIB // 4, dim=64)
    assert "column_wise (4 column shards, 16.0 MiB a rank)" in explain(request(wide))


def test_a_pin_that_stands_in_the_way_is_named():
    asked = request(TABLE, types={TW, RW}, constraints=(parse_pin("big=2"),))
    reason = explain(asked)
    assert "row_wise (16.0 MiB a rank) without --pin big=2" in reason
    # With the pin in force no other type reaches more ranks.
    assert "with row_wise (16.0 MiB a rank)," not in reason
    assert explain(replace(asked, constraints=())) == ""


def test_without_any_remedy_that_is_said():
    tiny = explain_infeasible(request(TABLE, memory_mib=1e-6), 1.0, lambda ranks: 1.0)
    # Without state, rows in host memory need nothing of the device.
    assert "with fused_uvm (--allow-uvm; table_wise, 0 bytes of device memory a rank)" in tiny
    pinned = TableConstraints("big", frozenset({TW}))
    asked = PlanningRequest(
        (TABLE,), Optimizer.ROWWISE_ADAGRAD, 4, 4, frozenset({TW}), 1.0, constraints=(pinned,)
    )
    assert "no other sharding type, no UVM and no 4,096 ranks" in explain_infeasible(
        asked, 1.0, lambda ranks: 1.0
    )


def test_only_the_largest_tables_are_named():
    tables = [make_table(f"t{i}", rows=MIB * (i + 1), dim=16) for i in range(5)]
    lines = explain(request(*tables)).splitlines()
    assert [line.split("`")[1] for line in lines[:3]] == ["t4", "t3", "t2"]
    assert lines[3] == "2 more tables fit nowhere either"


def test_all_tables_together_too_large():
    tables = [make_table(f"t{i}", rows=MIB // 4, dim=16) for i in range(8)]
    # Eight tables of 16 MiB: 128 MiB, of which 4 ranks hold 96.
    reason = explain(request(*tables))
    assert reason == (
        "all tables together take at least 128.0 MiB of device memory, 4 ranks have 96.0 MiB for "
        "tables, 32.0 MiB are missing; there would be room with 8 ranks, or with "
        "fused_uvm_caching (--allow-uvm; 40.0 MiB of device memory for all)"
    )
    assert total_device_bytes(request(*tables)) == 128 * MIB


def test_hosts_that_cannot_hold_the_rest_are_named():
    tables = [make_table(f"t{i}", rows=MIB // 4, dim=16) for i in range(16)]
    # Sixteen tables of 16 MiB: 256 MiB. Four ranks hold 96 and their node 100.
    asked = request(*tables, allow_uvm=True)

    def with_hosts_of(node_mib):
        return explain_infeasible(
            asked, 24 * MIB, lambda ranks: 20 * MIB, lambda ranks: ranks // 4 * node_mib * MIB
        )

    assert with_hosts_of(100) == (
        "all tables together take at least 256.0 MiB, 4 ranks have 96.0 MiB of device memory for "
        "tables and 100.0 MiB of host memory, 60.0 MiB are missing; there would be room with 8 "
        "ranks"
    )
    # Two nodes hold 160 and 40, three 240 and 60: with room left for buffers, as other remedies.
    assert with_hosts_of(20).endswith("there would be room with 12 ranks")
    assert with_hosts_of(160) == ""
    assert explain(asked) == ""
    assert explain(request(*tables)).startswith("all tables together take at least 256.0 MiB of")


def test_copies_count_on_every_rank():
    asked = request(make_table("t", rows=MIB // 4, dim=16), types={ShardingType.DATA_PARALLEL})
    assert total_device_bytes(asked) == 4 * 16 * MIB


def test_copies_that_fill_every_rank_ask_for_other_types():
    # 96 MiB of copies on every rank of 24; cut into rows, they take 96 MiB of 80.
    tables = [make_table(f"t{index}", rows=MIB // 4, dim=16) for index in range(6)]
    copies = {ShardingType.DATA_PARALLEL}
    assert "all sharding types" not in explain(request(*tables, types=copies))
    reason = explain(request(*tables[:4], types=copies))
    assert "take at least 256.0 MiB of device memory, 4 ranks have 96.0 MiB" in reason
    assert reason.endswith("there would be room with all sharding types (64.0 MiB for all)")


def test_a_constraint_that_asks_for_copies_is_named():
    tables = [make_table(f"t{index}", rows=MIB // 4, dim=16) for index in range(4)]
    only = TableConstraints("t*", allowed_types=frozenset({ShardingType.DATA_PARALLEL}))
    reason = explain(request(*tables, types=set(ShardingType), constraints=(only,)))
    assert reason.endswith(
        "room with what is allowed without the constraint on `t*` (64.0 MiB for all)"
    )


def test_a_dense_part_that_fills_the_memory_is_named():
    assert "smaller batch or more ranks" in explain_infeasible(
        request(TABLE), 0.0, lambda ranks: None
    )


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (3 * 2**30, "3.0 GiB"),
        (0.5 * 2**30, "512.0 MiB"),
        (40 * MIB, "40.0 MiB"),
        (12.0, "12 bytes"),
    ],
)
def test_sizes_in_words(size, words):
    assert format_size(size) == words
