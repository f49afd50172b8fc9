"""Objects show themselves in notebooks: short text, and tables in which nothing is markup."""

from __future__ import annotations

from dataclasses import replace

import dse
from dse._text.html import fields_html, grid_html
from dse.sharding import ComputeKernel, ShardingPlan, ShardingType, TablePlan
from tests.validation.studies import VALIDATION


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
    assert "fitted models" in platform._repr_html_()
    prediction = dse.predict("dlrm_tiny", platform, world_size=2, global_batch_size=4096)
    html = prediction._repr_html_()
    for word in ("torchrec", "90 % interval", "bound by", "USD/h", "yes"):
        assert word in html, word
    assert " of 64.0 GiB" in replace(prediction, usable_memory_bytes=64 * 2**30)._repr_html_()
    tokens = dse.predict("gpt2_xl", platform, world_size=8, global_batch_size=8, precision="bf16")
    assert "billion tokens" in tokens._repr_html_()


def test_answers_show_themselves(tmp_path):
    job = dse.Job("dlrm_tiny", "h100_sxm", world_size=2, global_batch_size=4096)
    found = job.shard()
    explained = job.explain(found.plan)
    wanted = {"platforms": ["h100_sxm"], "world_sizes": [2], "batch_sizes": [4096]}
    best = dse.recommend("dlrm_tiny", target="1 samples/s", **wanted)
    space = {
        "schema_version": 1,
        "name": "small <b>",
        "workload": {"model": "dlrm_tiny"},
        "objectives": [{"metric": "throughput_samples_per_s", "direction": "maximize"}],
    }
    studies = [
        dse.run(
            space
            | {
                "parameters": {
                    "platform": ["h100_sxm"],
                    "world_size": [1],
                    "global_batch_size": [batch],
                }
            },
            executor="serial",
            out=tmp_path / str(batch),
        )
        for batch in (64, 128)
    ]
    compared = dse.compare(*studies)
    ranked = dse.rank([found], "dlrm_tiny", "h100_sxm", global_batch_size=4096)
    sizes = ("1 MiB", "1 GiB")
    collective = dse.collective("all_reduce", "h100_sxm", size=sizes[0], world_size=8)
    table = dse.collective_table("all_reduce", "h100_sxm", sizes=sizes, world_sizes=(2, 8))
    shown = {
        found: ("lower bound", "gap", "fits"),
        explained: (explained.sentence[:20], explained.path[0].group),
        best: ("best", "h100_sxm", "USD/h"),
        compared: ("space", "small &lt;b&gt;"),
        collective: ("bus bandwidth", "decided"),
        table: ("8 ranks", "1.04858e+06 B"),
    }
    for answer, words in (*shown.items(), (ranked, ("ShardingPlan", "90 % interval"))):
        assert len(repr(answer)) < 400
        html = answer._repr_html_()
        assert html.startswith("<table")
        assert "<b>" not in html
        for word in words:
            assert word in html, word


def test_inputs_are_short_text():
    for given in (dse.load_model("llama3_8b"), dse.load_space("dlrm_sharding")):
        assert len(repr(given)) < 120


def test_a_validation_shows_predicted_and_measured_times():
    assert len(repr(VALIDATION)) < 100
    html = VALIDATION._repr_html_()
    assert "use 1" in html
    assert "predicted 1 ms, measured 1.1 ms (-9.1 %)" in html
