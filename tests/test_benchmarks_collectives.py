"""Tables of measured collectives against the shipped platforms."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from dse.machine.platforms import load_platform, override_platform
from tests.conftest import ROOT

pd = pytest.importorskip("pandas")


@pytest.fixture
def collective_cases(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("collective_cases")
    for name in ("collective_cases", "table_errors"):
        sys.modules.pop(name, None)


def table(tmp_path, rows, name="table.csv"):
    path = tmp_path / name
    frame = pd.DataFrame(rows)
    frame.to_csv(path, index=False) if name.endswith("csv") else frame.to_parquet(path)
    return path


def test_elements_in_milliseconds_and_bytes_in_microseconds_are_the_same(
    tmp_path, collective_cases
):
    elements = {
        "device": "NVIDIA H100 80GB HBM3",
        "op_name": "alltoall",
        "nccl_dtype": "half",
        "num_gpus": 8,
        "message_size": 2**20,
        "latency": 0.05,
    }
    in_bytes = {"system": "h100_sxm", "op": "all_to_all", "gpus": 8, "size_bytes": 2**21}
    paths = (
        table(tmp_path, [elements], "table.parquet"),
        table(tmp_path, [{**in_bytes, "latency_us": 50.0}]),
        # 7/8 of the message pass the link.
        table(tmp_path, [{**in_bytes, "busbw_gb_s": 2**21 * 7 / 8 / 50e-6 / 1e9}], "bus.csv"),
    )
    rows = [collective_cases.collective_cases(path)[0] for path in paths]
    expected = float(load_platform("h100_sxm").collective_time("all_to_all", 2**21, 8))
    for row in rows:
        assert row.platform == "h100_sxm"
        assert row.measured_s == pytest.approx(50e-6)
        assert row.predicted_s == pytest.approx(expected)
        assert row.low_s < row.predicted_s < row.high_s


def test_the_version_of_a_row_counts(tmp_path, collective_cases):
    row = {"system": "h100_sxm", "op": "alltoall", "gpus": 4, "size_bytes": 2**22, "time_us": 9}
    versions = ("2.29.2", "2.27.3", "2.1")
    path = table(tmp_path, [{**row, "nccl": nccl} for nccl in versions])
    newest, older, unknown = collective_cases.collective_cases(path)
    platform, _ = override_platform(load_platform("h100_sxm"), ["link.nccl=2.27.3"])
    assert older.predicted_s == float(platform.collective_time("all_to_all", 2**22, 4))
    assert newest.predicted_s == unknown.predicted_s != older.predicted_s
    assert "newest" in unknown.group


def test_nodes_are_those_of_the_row(tmp_path, collective_cases):
    row = {"system": "h100_sxm", "op": "all_reduce", "size_bytes": 2**28, "time_us": 1e3}
    shapes = ({"gpus": 16, "nodes": 2}, {"gpus": 8, "nodes": 1}, {"gpus": 8, "nodes": 2})
    path = table(tmp_path, [{**row, **shape} for shape in shapes])
    full, inside, spread_out = collective_cases.collective_cases(path)
    platform = load_platform("h100_sxm")
    assert full.predicted_s == float(platform.collective_time("all_reduce", 2**28, 16))
    assert inside.predicted_s == float(platform.collective_time("all_reduce", 2**28, 8))
    assert spread_out.predicted_s > inside.predicted_s


def test_rows_that_cannot_be_predicted_are_counted(tmp_path, collective_cases, capsys):
    row = {"system": "h100_sxm", "op": "all_reduce", "gpus": 8, "size_bytes": 2**20}
    rows = [
        {**row, "time_us": 30.0},
        {**row, "system": "abacus", "time_us": 30.0},
        {**row, "op": "all_guess", "time_us": 30.0},
        {**row, "gpus": 12, "time_us": 30.0},
        {**row, "gpus": 1, "time_us": 30.0},
        {**row, "time_us": None},
    ]
    collective_cases.compare_collectives(table(tmp_path, rows), as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["overall"]["points"] == 1
    assert printed["overall"]["mape"] == printed["overall"]["median_abs_error"] > 0
    assert printed["by"]["h100_sxm"]["points"] == 1
    assert printed["rows"] == 6
    assert [one["row"] for one in printed["rows_with_problems"]] == [2, 3, 4, 5, 6]
    assert sum(printed["problems"].values()) == 5


def test_what_a_table_does_not_name_is_given_or_a_problem(tmp_path, collective_cases):
    path = tmp_path / "table.csv"
    path.write_text("# a comment\nop,ranks,nodes,size_bytes,time_us\nall_reduce,16,2,1048576,90\n")
    (unknown,) = collective_cases.collective_cases(path)
    assert unknown.problem
    (row,) = collective_cases.collective_cases(path, "h100_sxm", "ethernet_100g")
    expected = load_platform("h100_sxm").collective_time(
        "all_reduce", 2**20, 16, network="ethernet_100g"
    )
    assert row.predicted_s == float(expected)
    (tmp_path / "other.csv").write_text("system,ratio\nh100_sxm,0.5\n")
    (nothing,) = collective_cases.collective_cases(tmp_path / "other.csv")
    assert nothing.problem


def test_a_dispatch_is_an_all_to_all(tmp_path, collective_cases):
    row = {
        "device": "NVIDIA GB200",
        "op_name": "alltoall_dispatch",
        "moe_dtype": "bfloat16",
        "num_tokens": 4096,
        "hidden_size": 7168,
        "topk": 8,
        "moe_ep_size": 16,
        "latency": 0.75,
    }
    path = table(tmp_path, [row, {**row, "op_name": "alltoall_combine"}])
    dispatched, combined = collective_cases.collective_cases(path)
    # 8 of 16 ranks get each token.
    expected = load_platform("gb200_nvl72").collective_time("all_to_all", 4096 * 7168 * 2 * 8, 16)
    assert dispatched.predicted_s == float(expected)
    assert combined.problem
