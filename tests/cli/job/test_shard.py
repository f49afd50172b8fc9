from __future__ import annotations

import json

import pytest

from dse.api import Job
from dse.model import load_model
from tests.cli.running import answer, dse

SMALL = (
    *("shard", "dlrm_tiny", "--platform", "h100_sxm"),
    *("--world-size", 2, "--global-batch-size", 4096),
)
#: Five tables of 38 GiB on devices with 32.
LARGE = ("shard", "dlrm_dcnv2", "--platform", "v100_dgx1", "--global-batch-size", 55296)


def test_the_contract_and_a_plan_that_can_be_predicted(tmp_path):
    path = tmp_path / "plan.json"
    fields = answer(*SMALL, "--out", path)
    contract = {
        "plan",
        "iteration_time_s",
        "lower_bound_s",
        "gap",
        "planning_time_s",
        "plans_scored",
        "memory_bytes_per_rank",
        "program",
        "bound_by",
    }
    assert contract <= set(fields)
    assert json.loads(path.read_text()) == fields["plan"]
    assert len(fields["memory_bytes_per_rank"]) == 2
    assert fields["peak_memory_bytes"] == max(fields["memory_bytes_per_rank"])
    predicted = Job("dlrm_tiny", "h100_sxm", world_size=2, global_batch_size=4096).predict(path)
    assert fields["iteration_time_s"] == predicted.iteration_time_s
    assert fields["lower_bound_s"] <= fields["iteration_time_s"] * (1 + 1e-9)
    assert fields["gap"] == pytest.approx(
        max(0.0, fields["iteration_time_s"] / fields["lower_bound_s"] - 1)
    )


def test_kernels_say_where_tables_may_be():
    tables = answer(*SMALL, "--compute-kernels", "fused_uvm")["plan"]["tables"]
    assert {table["compute_kernel"] for table in tables.values()} == {"fused_uvm"}


def test_for_people():
    done = dse(*SMALL, "--types", "table_wise,row_wise", "--program", "hugectr")
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("best ")
    assert " ms, lower bound " in first
    assert "gap ≤" in first
    for word in ("table_wise", "busiest rank", "least busy rank", "plans scored", "GiB"):
        assert word in done.stdout
    assert "column_wise" not in done.stdout


def test_the_training_program_is_part_of_the_problem():
    plain = answer(*SMALL)
    assert plain["bound_time_s"] > 0
    profile = answer(*SMALL, "--software-profile", "hugectr")
    # Its launches are one captured graph.
    assert profile["iteration_time_s"] < plain["iteration_time_s"]
    eager = answer(*SMALL, "--software-profile", "hugectr", "--launch", "eager")
    assert eager["iteration_time_s"] > profile["iteration_time_s"]
    done = dse(*SMALL, "--software-profile", "hugctr")
    assert done.returncode == 2
    assert "did you mean `hugectr`?" in done.stderr


def test_constraints_from_file_and_command_line(tmp_path):
    model = load_model("dlrm_tiny")
    names = [table.name for table in model.tables[:3]]
    file = tmp_path / "c.yaml"
    file.write_text(f"schema_version: 1\ntables:\n  {names[0]}: {{sharding_types: [row_wise]}}\n")
    fields = answer(
        *(*SMALL, "--constraints", file, "--pin", f"{names[1]}=1"),
        *("--allow", f"{names[2]}=table_wise,fused_uvm"),
    )
    tables = fields["plan"]["tables"]
    assert tables[names[0]]["sharding_type"] == "row_wise"
    assert set(tables[names[1]]["ranks"]) == {1}
    assert tables[names[2]]["compute_kernel"] == "fused_uvm"
    assert 0 < fields["lower_bound_s"] <= fields["iteration_time_s"] * (1 + 1e-9)
    size = model.tables[2].weight_bytes
    assert max(fields["host_memory_bytes_per_rank"]) >= size


def test_nothing_fits():
    done = dse(*LARGE, "--world-size", 4, "--types", "table_wise")
    assert done.returncode == 1
    assert not done.stdout
    assert "fits nowhere" in done.stderr
    assert "row_wise (9.5 GiB a rank)" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_does_not_fit_is_json_too():
    found = json.loads(dse(*LARGE, "--world-size", 2, "--json").stdout)
    assert found["feasible"] is False
    assert "missing" in found["infeasible_reason"]


def test_host_memory_lets_it_fit():
    done = dse(*LARGE, "--world-size", 2, "--allow-uvm", "--time-limit", 2)
    assert done.returncode == 0, done.stderr
    assert "fused_uvm" in done.stdout
    assert "in host memory: " in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--types", "row_wize"), "did you mean `row_wise`"),
        (("--pin", "nobody=0"), "no table is called `nobody`"),
        (("--pin", "nobody"), "expected TABLE=RANK"),
        (("--allow", "*=fused_uvmm"), "did you mean `fused_uvm`"),
        (("--pin", "*=0", "--allow", "*=row_wise"), "contradicts only row_wise"),
        (("--constraints", "none.yaml"), "none.yaml: no such file"),
        (("--time-limit", "-1"), "time limit"),
        (("--out", "/dev/null"), "/dev/null: this is a device"),
    ],
)
def test_bad_input(options, words):
    done = dse(*SMALL, *options)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_hot_rows_are_chosen_and_said(tmp_path):
    name = load_model("dlrm_tiny").tables[-1].name
    file = tmp_path / "c.yaml"
    file.write_text(f"schema_version: 1\ntables:\n  {name}: {{hot_rows: [100]}}\n")
    fields = answer(*SMALL, "--hot-rows", "--constraints", file)
    assert fields["iteration_time_without_hot_rows_s"] >= fields["iteration_time_s"]
    assert fields["plan"]["tables"][name]["hot_rows"] == 100
    assert "hot rows: " in dse(*SMALL, "--hot-rows").stdout
