from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time

import pytest

from dse.calibration.microbench import (
    OPERATORS,
    KernelMeasurement,
    MachineInfo,
    make_plan,
    run_session,
)
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.workload import predict_job
from tests.calibration.measurers import LawfulMeasurer
from tests.conftest import ROOT

MACHINE = MachineInfo(
    device="cpu",
    device_name="test processor",
    device_count=1,
    compute_units=1,
    driver="",
    cores=1,
    memory_bytes=2**34,
    last_level_cache_bytes=2**25,
    operating_system="Linux",
    libraries=(("torch", "2.13.0"),),
)

KIT = ROOT / "benchmarks" / "gpu_kit.py"


@pytest.fixture
def kit(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module
    for name in [name for name in sys.modules if name.split(".")[0] in ("kit", "gpu_kit")]:
        sys.modules.pop(name)


@pytest.mark.slow
def test_a_rehearsal_measures_and_reads_all_parts(tmp_path, kit):
    command = [sys.executable, str(KIT), "--device", "cpu", "--out", str(tmp_path)]
    # A few seconds do for what measures as long as it may; other parts have to come to their ends.
    for parts, minutes in (("kernels", 0.03), ("steps", 0.03), ("study,traces,tests", 1.5)):
        given = ["--parts", parts, "--minutes", str(minutes)]
        subprocess.run([*command, *given], check=True, timeout=240)
    ended = {row["part"]: row["ended"] for row in kit("kit.log").read_log(tmp_path / "kit.jsonl")}
    assert ended == dict.fromkeys(("kernels", "steps", "study", "traces", "tests"), "done")
    text = kit("kit.reading").read(tmp_path)
    for heading in ("Kernels", "Training steps", "Plans of a study", "Captured steps"):
        assert f"## {heading}" in text
    assert len(list(tmp_path.iterdir())) <= 10


def test_every_measured_operator_has_a_prediction(kit):
    reading, platform = kit("kit.reading"), load_platform("h100_sxm")
    # Those of fbgemm are measured where it is installed.
    plan = make_plan("cuda", local_ranks=1, threads=1, points=1, operators=tuple(OPERATORS))
    for point in plan.kernels:
        measured = KernelMeasurement(
            point.op, point.sizes, point.precision, point.purpose, 1e-3, 1e-5, 10
        )
        assert reading._predicted_s(platform, measured) > 0, point


class WithoutEightBits(LawfulMeasurer):
    """A device whose products have two bytes at least."""

    def kernel(self, point):
        if point.precision == "fp8":
            raise ValueError("products in fp8 need another device")
        return super().kernel(point)


def test_what_a_device_cannot_measure_is_told_and_the_rest_is_fitted(tmp_path, kit):
    plan = make_plan(
        collectives=False,
        local_ranks=1,
        threads=1,
        points=4,
        operators=("gemm", "elementwise", "memcpy_h2d", "memcpy_d2d"),
        precisions=(Precision.FP32, Precision.FP8),
    )
    log = tmp_path / kit("kit.kernels").FILE
    run_session(plan, log, 1e9, measurer=WithoutEightBits(), machine=MACHINE)
    text = kit("kit.reading").read(tmp_path)
    assert (
        "* not measured: 16 of gemm fp8 (ValueError: products in fp8 need another device)" in text
    )
    assert "gemm fp32" in text


def test_what_was_measured_is_not_measured_again(tmp_path, kit):
    pytest.importorskip("torch")
    steps, log = kit("kit.steps"), kit("kit.log")
    for case in steps.cases("cpu"):
        log.append(tmp_path / steps.FILE, {"case": case.name, "launch": case.launch.value})
    steps.run(tmp_path, "cpu", 60.0)
    assert len(log.read_log(tmp_path / steps.FILE)) == len(steps.cases("cpu"))


def test_a_row_that_was_cut_off_is_measured_again(tmp_path, kit):
    log, file = kit("kit.log"), tmp_path / "rows.jsonl"
    log.append(file, {"a": 1})
    with file.open("a") as stream:
        stream.write('{"a": ')
    assert log.read_log(file) == [{"a": 1}]
    log.append(file, {"a": 2})
    assert [json.loads(line)["a"] for line in file.read_text().splitlines()] == [1, 2]


def test_a_part_that_hangs_is_ended_and_told(tmp_path, kit, monkeypatch):
    driver = kit("gpu_kit")
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(driver, "__file__", str(sleeper))
    monkeypatch.setattr(driver, "GRACE_S", 0.1)
    began_s = time.monotonic()
    assert driver.measure(tmp_path, "cpu", 2 / 60, ["traces"]) == 1
    assert time.monotonic() - began_s < 10
    (row,) = kit("kit.log").read_log(tmp_path / "kit.jsonl")
    assert row["part"] == "traces"
    assert row["ended"].startswith("ended")


def test_every_case_has_a_prediction_on_a_gpu(kit):
    platform = load_platform("h100_sxm")
    times_s = {
        (case.name, case.launch.value): predict_job(case.job(platform, False)).iteration_time_s
        for case in kit("kit.steps").cases("cuda")
    }
    assert len(times_s) == 8
    for name in ("mpt_1b", "llama3_8b", "dlrm_criteo", "dlrm_dcnv2"):
        assert times_s[name, "cuda_graphs"] <= times_s[name, "eager"]
    # Weights alone are 6 ms of arithmetic at the peak rate.
    assert 0.1 < times_s["mpt_1b", "cuda_graphs"] < 1.0


def test_the_transformer_has_the_parameters_of_its_model(kit):
    torch = pytest.importorskip("torch")
    model = kit("kit.steps")._transformer_model("llama3_8b", True)
    network = kit("kit.transformer")._network(torch, model)
    assert sum(one.numel() for one in network.parameters()) == model.parameter_count
