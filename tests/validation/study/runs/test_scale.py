"""One rule scales rows and batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.model import Optimizer, load_model
from dse.validation import scale_model, scaling_text
from tests.validation.models import TABLES, model

MEBI = 2**20


def made(rows):
    tables = tuple(replace(one, rows=count) for one, count in zip(TABLES, rows, strict=True))
    return model(tables=tables, global_batch_size=1000)


def test_rows_shrink_by_one_factor_and_the_batch_follows_lookups():
    what = made((40_000, 20_000, 10_000, 100))
    # A row has 8 values of 4 bytes; the last table keeps 64 rows, 35,000 rows are left in all.
    scaled = scale_model(what, memory_bytes=(35_000 + 64) * 32, lookup_bytes=1e9, world_size=3)
    assert [one.rows for one in scaled.tables] == [20_000, 10_000, 5_000, 64]
    assert scaled.global_batch_size == 999
    # A sample looks up 2 + 4.5 + 1 + 4 rows of 32 bytes.
    few = scale_model(what, memory_bytes=1e12, lookup_bytes=100 * 11.5 * 32, world_size=8)
    assert few.global_batch_size == 96
    assert few.tables == what.tables
    assert "70,100 → 35,064" in scaling_text(what, scaled)


def test_state_of_the_optimizer_counts():
    what = made((40_000, 20_000, 10_000, 100))
    with_state = replace(what, sparse_optimizer=Optimizer.ADAM)
    limits = {"memory_bytes": MEBI, "lookup_bytes": 1e9, "world_size": 1}
    plain, heavy = (
        sum(one.rows for one in scale_model(one, **limits).tables) for one in (what, with_state)
    )
    assert 2.9 < plain / heavy < 3.1


@pytest.mark.parametrize("mebibytes", [100, 400, 1600])
def test_published_tables_fill_what_is_given(mebibytes):
    what = load_model("dlrm_meta2021")
    what = replace(what, tables=what.tables[:50])
    scaled = scale_model(what, memory_bytes=mebibytes * MEBI, lookup_bytes=64 * MEBI, world_size=2)
    taken = sum(
        one.rows * (one.weight_bytes // one.rows + 4) for one in scaled.tables
    )  # row-wise state
    assert what.sparse_optimizer is Optimizer.ROWWISE_ADAGRAD
    assert 0.99 * mebibytes * MEBI < taken <= mebibytes * MEBI
    assert [one.pooling_factors for one in scaled.tables] == [
        one.pooling_factors for one in what.tables
    ]
    assert 0 < scaled.global_batch_size <= what.global_batch_size


def test_what_cannot_be_made_small_enough_is_refused():
    what = made((40_000, 20_000, 10_000, 100))
    with pytest.raises(ConfigError, match="4 tables of 64 rows take"):
        scale_model(what, memory_bytes=1000, lookup_bytes=1e9, world_size=1)
    with pytest.raises(ConfigError, match="2 samples look up"):
        scale_model(what, memory_bytes=1e9, lookup_bytes=500, world_size=2)
