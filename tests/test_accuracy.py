"""Errors of the fitted models do not get worse by more than a tenth.

`tests/data/accuracy.json` is what `python benchmarks/accuracy.py --json` printed when it was last
accepted; it is replaced on purpose only.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys

import pytest

from benchmarks.folders import DATA
from dse.calibration.measurements import ColumnOptions, read_gemm
from dse.machine.fits import held_out_errors
from dse.machine.platforms import builtin_calibrations, load_platform
from tests.conftest import ROOT

ACCEPTED = json.loads((ROOT / "tests/data/accuracy.json").read_text())

#: What a figure may be worse by.
_SLACK = 1.1


def accepted(device: str, what: str, model: str) -> dict[str, float]:
    (row,) = [
        row
        for row in ACCEPTED
        if (row["device"], row["what"], row["model"]) == (device, what, model)
    ]
    return row


@pytest.mark.parametrize("name", [name for name, _ in builtin_calibrations()])
def test_shipped_models_are_as_good_as_accepted(name):
    content = dict(builtin_calibrations())[name]
    named = [(" ".join([kernel.op, *kernel.precisions]), kernel) for kernel in content.kernels]
    named += [(f"{', '.join(one.ops)} between nodes", one) for one in content.networks]
    for what, model in named:
        row = accepted(name, what, "shipped")
        assert model.held_out.gmae <= _SLACK * row["gmae"], what
        assert model.held_out.mape <= _SLACK * row["mape"], what
    for nccl in {curve.nccl for curve in content.collectives}:
        held_out = [curve.held_out for curve in content.collectives if curve.nccl == nccl]
        row = accepted(name, f"collectives, NCCL {nccl}" if nccl else "collectives", "shipped")
        points = sum(one.points for one in held_out)
        assert points == row["points"]
        assert sum(one.points * one.mape for one in held_out) <= _SLACK * points * row["mape"]


@pytest.fixture
def device_models(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("device_models")
    sys.modules.pop("device_models", None)


@pytest.fixture
def collective_models(device_models, monkeypatch):
    yield importlib.import_module("collective_models")
    sys.modules.pop("collective_models", None)


@pytest.mark.slow
def test_networks_are_fitted_as_well_as_accepted(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    network_models = importlib.import_module("network_models")
    rows = list(network_models.network_rows(ROOT / "benchmarks/measurements", DATA))
    for name in ("network_models", "device_models"):
        sys.modules.pop(name, None)
    assert rows
    for row in rows:
        best = accepted(row.device, row.what, row.model)
        assert row.gmae <= _SLACK * best["gmae"], row
        assert row.mape <= _SLACK * best["mape"], row


@pytest.mark.slow
def test_the_measured_cpu_is_fitted_as_well_as_accepted(device_models):
    """From the session's log to predictions by the platform's front door."""
    rows = list(device_models.machine_rows(ROOT / "benchmarks/measurements/cpu_epyc.points.jsonl"))
    assert {"all CPU kernels", "all gloo collectives"} <= {row.what for row in rows}
    for row in rows:
        if row.model == "dse":
            before = accepted("cpu", row.what, "dse")
            assert row.gmae <= _SLACK * before["gmae"], row
            assert row.mape <= _SLACK * before["mape"], row


@pytest.mark.slow
@pytest.mark.parametrize("device", ["a100_sxm_80", "h100_sxm", "h200_sxm"])
def test_fits_are_as_good_as_accepted(device, device_models, monkeypatch):
    if not (DATA / "gemm").is_dir():
        pytest.skip(f"no measurements in {DATA}; DSE_MEASUREMENTS names their folder")
    monkeypatch.setattr(device_models, "DEVICES", {device: device_models.DEVICES[device]})
    rows = device_models.device_rows(DATA)
    # Each row is a fit of 8 s: one device has the second split as well.
    for row in rows if device == "h100_sxm" else itertools.islice(rows, 1):
        if row.model == "dse":
            before = accepted(device, row.what, "dse")
            assert row.gmae <= _SLACK * before["gmae"], row
            assert row.mape <= _SLACK * before["mape"], row


@pytest.mark.slow
def test_collectives_are_fitted_as_well_as_accepted(collective_models):
    if not (DATA / "nccl/by_bytes.parquet").is_file():
        pytest.skip(f"no measurements in {DATA}; DSE_MEASUREMENTS names their folder")
    for row in collective_models.collective_model_rows(DATA):
        if row.model == "dse":
            before = accepted(row.device, row.what, "dse")
            assert row.gmae <= _SLACK * before["gmae"], row
            assert row.mape <= _SLACK * before["mape"], row


@pytest.mark.slow
def test_systems_that_are_left_out_are_met_by_the_nearest_other(collective_models):
    if not (DATA / "nccl/by_bytes.parquet").is_file():
        pytest.skip(f"no measurements in {DATA}; DSE_MEASUREMENTS names their folder")
    rows = list(collective_models.transfer_rows(DATA))
    assert {row.system for row in rows} == set(collective_models.SYSTEMS)
    for row in rows:
        assert row.mape <= 0.15, row
        assert row.inside_90 >= 0.85, row
    for row in collective_models.transfer_rows(DATA, same_generation=False):
        assert row.mape <= 0.19, row
        assert row.inside_90 >= 0.85, row


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a100_sxm_80", "h100_sxm", "h200_sxm"])
def test_shipped_gemm_models_meet_the_table_they_were_fitted_on(name):
    """The curves themselves, not the figures that their files carry."""
    table = DATA / "gemm" / f"{name.removesuffix('_80')}.parquet"
    if not table.is_file():
        pytest.skip(f"no measurements in {DATA}; DSE_MEASUREMENTS names their folder")
    samples = read_gemm(table, ColumnOptions(filters={"gemm_dtype": "bfloat16"}))
    predicted_s = load_platform(name).kernel_time(
        "gemm", m=samples.m, n=samples.n, k=samples.k, precision="bf16"
    )
    (kernel,) = dict(builtin_calibrations())[f"{name}_gemm_bf16"].kernels
    assert held_out_errors(predicted_s, samples.time_s, "").mape <= kernel.held_out.mape
