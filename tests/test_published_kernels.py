"""Tables of kernel times: which model predicts a row, and rows that none can."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from tests.conftest import ROOT

pd = pytest.importorskip("pandas")
pytest.importorskip("xgboost")


@pytest.fixture(scope="module")
def kernels():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("published_kernels")
    finally:
        sys.path.pop(0)


def products(**changes):
    row = {
        "system": "h100_sxm",
        "kernel": "torch_flow",
        "dtype": "fp8",
        "m": 8192,
        "n": 8192,
        "k": 8192,
        "latency_us": 900.0,
    }
    return {**row, **changes}


def table(tmp_path, *rows):
    path = tmp_path / "table.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_a_library_is_predicted_by_its_own_calibration(kernels, tmp_path):
    path = table(tmp_path, products(), products(kernel="vllm_default"), products(kernel="mine"))
    rows = {row.what: row for row in kernels.gemm_rows(path)}
    times = {what: float(row.predicted_s[0]) for what, row in rows.items()}
    # A library without measurements is predicted by the platform's first.
    assert times["fp8 mine"] == times["fp8 vllm_default"] != times["fp8 torch_flow"]
    assert all(5e-4 < time < 1.5e-3 for time in times.values())


def test_rows_that_cannot_be_predicted_are_counted(kernels, tmp_path):
    path = table(
        tmp_path,
        products(),
        products(system="dial_up"),
        products(dtype="int8"),
        products(latency_us=0.0),
    )
    document = kernels.kernels_document(kernels.gemm_rows(path))
    overall = document["overall"]
    assert (overall["points"], overall["problems"], document["rows"]) == (1, 3, 4)
    assert len(document["problems"]) == 3
    assert document["by"]["dial_up"]["mape"] is None
    assert overall["mape"] == document["by"]["h100_sxm"]["mape"] > 0


def test_older_tables_name_devices_and_count_in_milliseconds(kernels, tmp_path, capsys):
    row = {"device": "NVIDIA H200", "kernel_source": "sglang", "gemm_dtype": "bfloat16"}
    path = table(tmp_path, {**row, "m": 8192, "n": 8192, "k": 8192, "latency": 1.6})
    rows = kernels.gemm_rows(path)
    assert [row.platform for row in rows] == ["h200_sxm"]
    assert rows[0].measured_s == pytest.approx([1.6e-3])
    kernels.compare_kernels(kernels.gemm_rows, path, as_json=True)
    overall = json.loads(capsys.readouterr().out)["overall"]
    assert overall["points"] == 1
    assert overall["median_abs_error"] == overall["mape"] < 0.3


def test_attention_is_causal_and_forward(kernels, tmp_path):
    row = {"batch": 1, "seq": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128}
    path = table(
        tmp_path,
        {"system": "h100_sxm", "kernel": "fa3", **row, "latency_us": 950.0},
        {"system": "v100", "kernel": "fa3", **row, "latency_us": 950.0},
    )
    rows = {one.platform: one for one in kernels.attention_rows(path)}
    assert rows["h100_sxm"].errors < 0.15
    assert rows["v100"].problem


def blocks(**changes):
    row = {
        "system": "h100_sxm",
        "kernel": "moe_torch_flow_cutlass",
        "dtype": "bfloat16",
        "tokens": 8192,
        "hidden": 2048,
        "inter": 768,
        "topk": 8,
        "experts": 128,
        "moe_tp": 1,
        "moe_ep": 8,
        "distribution": "balanced",
        "latency_us": 227.0,
    }
    return {**row, **changes}


def test_blocks_of_experts_are_predicted_where_their_rows_are_known(kernels, tmp_path):
    path = table(
        tmp_path,
        blocks(),
        blocks(distribution="power_law_1.2"),
        blocks(distribution="power_law_1.2", moe_ep=1, latency_us=1800.0),
        blocks(kernel="moe_torch_flow_nongated"),
    )
    rows = {row.what.partition(" ")[2]: row for row in kernels.expert_rows(path)}
    assert [bool(row.problem) for row in rows.values()] == [False, False, True, True]
    known = [row for row in rows.values() if not row.problem]
    assert all(row.errors[0] < 0.25 for row in known)
