"""Where pieces sit and in which order values travel."""

from __future__ import annotations

from dse.sharding import ShardingType
from dse.validation.trainer.reference._layout import PlanLayout, places_of
from dse.workload.dlrm import ExchangeGroup
from tests.validation.models import candidate, model

TYPE = ShardingType


def layout(placements, world_size=4, nodes_of=2):
    return PlanLayout(candidate("x", model(), world_size, placements, nodes_of=nodes_of))


def test_pieces_are_ordered_by_group_then_table():
    made = layout(
        [
            (TYPE.ROW_WISE, (3, 2, 1, 0)),
            (TYPE.COLUMN_WISE, (1, 0, 1, 1)),
            (TYPE.DATA_PARALLEL, (0, 1, 2, 3)),
            (TYPE.TABLE_WISE, (1,)),
        ]
    )
    pooled = made.of(1, ExchangeGroup.POOLED)
    assert [(one.table, one.piece.column_offset) for one in pooled] == [
        (1, 0),
        (1, 4),
        (1, 6),
        (3, 0),
    ]
    # Table b has two features: each column piece comes twice in a sample.
    assert places_of(pooled)[:3] == [((1, 0, 0), 2), ((1, 1, 0), 2), ((1, 0, 4), 2)]
    assert [one.group for one in made.shards[1]] == sorted(one.group for one in made.shards[1])
    assert made.width(1, ExchangeGroup.POOLED) == 2 * (2 + 2 + 2) + 8
    # 50 rows in blocks of 13; the ranks are in reverse.
    (block,) = made.of(2, ExchangeGroup.ROW)
    assert (block.block, block.piece.row_offset, block.piece.rows) == ((1, 13), 13, 13)
    assert made.of(0, ExchangeGroup.ROW)[0].piece.rows == 50 - 3 * 13
    assert made.groups == (ExchangeGroup.POOLED, ExchangeGroup.ROW, ExchangeGroup.REPLICATED)
    assert not any(one.group is ExchangeGroup.REPLICATED for one in made.fed(2))


def test_rows_of_a_grid_are_cut_over_each_node():
    made = layout(
        [(TYPE.GRID_SHARD, (2, 3, 0, 1))] + [(TYPE.TABLE_ROW_WISE, (3, 2))] * 3, nodes_of=2
    )
    grid = [next(one for one in made.shards[rank] if one.table == 0) for rank in range(4)]
    assert [one.block for one in grid] == [(0, 25), (1, 25), (0, 25), (1, 25)]
    assert [one.piece.column_offset for one in grid] == [4, 4, 0, 0]
    assert made.width(0, ExchangeGroup.NODE) == 4
    assert [one.block for one in made.of(2, ExchangeGroup.NODE)[1:]] == [(1, 19), (1, 11), (1, 5)]


def test_ranks_by_their_number_on_the_node():
    made = layout([(TYPE.TABLE_WISE, (0,))] * 4)
    assert made.by_local_rank == (0, 2, 1, 3)
    assert (made.local_size, made.node_count, made.local_batch_size) == (2, 2, 6)
