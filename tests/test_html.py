"""Objects show themselves in notebooks: short text, and tables in which nothing is markup."""

from __future__ import annotations

import dse
from dse._html import fields_html, grid_html
from dse.sharding import ComputeKernel, ShardingPlan, ShardingType, TablePlan


def test_fields_are_escaped_and_empty_ones_left_out():
    html = fields_html("<b>", [("name", "<script>"), ("empty", "")])
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "empty" not in html


def test_a_grid_has_a_cell_for_every_column():
    html = grid_html("t", ["0", "1"], [("row", ["1", ""]), ("&", ["", "2"])], note="n")
    assert html.count("<td") == 4
    assert html.count("background") == 2
    assert "&amp;" in html


def test_a_plan_shows_its_shards_by_rank():
    tables = (
        TablePlan("a", ShardingType.ROW_WISE, (0, 1, 2, 3)),
        TablePlan("b", ShardingType.COLUMN_WISE, (2, 2), ComputeKernel.FUSED_UVM),
    )
    plan = ShardingPlan(4, tables)
    assert len(repr(plan)) < 120
    html = plan._repr_html_()
    assert html.count("<td") == 2 * 4
    assert html.count(">1</td>") == 4
    assert html.count(">2</td>") == 1
    assert "fused_uvm" in html


def test_a_large_plan_says_what_it_leaves_out():
    tables = tuple(TablePlan(f"t{n}", ShardingType.TABLE_WISE, (n % 64,)) for n in range(100))
    assert "first" in ShardingPlan(64, tables)._repr_html_()


def test_predictions_jobs_and_platforms_show_themselves():
    platform = dse.load_platform("h100_sxm")
    assert "datasheet" in platform._repr_html_()
    prediction = dse.predict("dlrm_tiny", platform, world_size=2, global_batch_size=4096)
    html = prediction._repr_html_()
    for word in ("torchrec", "90 % interval", "bound by", "USD/h", "yes"):
        assert word in html, word
    tokens = dse.predict("gpt2_xl", platform, world_size=8, global_batch_size=8, precision="bf16")
    assert "billion tokens" in tokens._repr_html_()
