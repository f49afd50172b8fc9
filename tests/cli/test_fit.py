"""`dse fit` and `dse calibrate` from the command line."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from dse.hardware import Precision
from dse.kernels import gemm_reference_s
from dse.platforms import load_platform, read_calibrations
from tests.cli.test_cli import answer, dse
from tests.conftest import ROOT

H100 = load_platform("h100_sxm")


@pytest.fixture(scope="module")
def nccl_log() -> str:
    """What all_reduce_perf prints on 8 GPUs, with 20 µs of latency and 200 GB/s."""
    lines = [
        "# nThread 1 nGpus 8 minBytes 1024 maxBytes 268435456 step: 2(factor) warmup iters: 5",
        "#",
        "# Using devices",
        *(
            f"#  Rank  {rank} Group  0 Pid   4242 on  host device  {rank} [0x00] NVIDIA H100"
            for rank in range(8)
        ),
        "#",
        "#                                                     out-of-place      in-place",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     "
        "time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
        "(us)  (GB/s)  (GB/s)",
    ]
    for power in range(10, 29):
        size = 2**power
        time_us = 20 + size / 200e3
        rate = size / time_us / 1e3
        figures = f"{time_us:8.2f} {rate:7.2f} {1.75 * rate:7.2f}      0"
        lines.append(f"{size:12d} {size // 2:13d}      half     sum      -1 {figures} {figures}")
    lines.append("# Avg bus bandwidth    : 100.0")
    return "\n".join(lines) + "\n"


def test_an_nccl_tests_log_becomes_a_curve(tmp_path, nccl_log):
    log = tmp_path / "all_reduce.log"
    log.write_text(nccl_log)
    out = tmp_path / "mine.json"
    fitted = answer(
        *("fit", "collective", log, "--platform", "h100_sxm", "--op", "all_reduce"),
        *("--out", out, "--source", "a log", "--as-of", "2026-01-02"),
    )
    (model,) = fitted["models"]
    assert model["model"] == "all_reduce on 8 ranks"
    assert model["held_out_points"] == 9
    assert model["mape"] < 0.01
    (curve,) = read_calibrations(out).collectives
    assert float(curve.curve.at(2**20)) == pytest.approx(20e-6 + 2**20 / 200e9, rel=0.01)
    assert (curve.provenance.source, curve.provenance.as_of) == ("a log", "2026-01-02")


def write_gemm(path, scale: float) -> None:
    sides = np.array([64, 128, 256, 512, 1024, 2048, 4096, 8192])
    m, n, k = (axis.ravel() for axis in np.meshgrid(sides, sides, sides, indexing="ij"))
    time_s = 1.4 * gemm_reference_s(
        H100.device, m.astype(float), n.astype(float), k.astype(float), Precision.BF16
    )
    rows = [f"{a},{b},{c},{scale * t:.6g}" for a, b, c, t in zip(m, n, k, time_s, strict=True)]
    path.write_text("m,n,k,time\n" + "\n".join(rows) + "\n")


def test_a_fitted_gemm_is_used_by_the_platform_that_names_it(tmp_path):
    write_gemm(tmp_path / "mine.csv", 1e6)
    answer(
        *("fit", "gemm", tmp_path / "mine.csv", "--platform", "h100_sxm", "--time-unit", "us"),
        *("--precision", "bf16", "--out", tmp_path / "mine.json"),
    )
    document = yaml.safe_load((ROOT / "platforms/h100_sxm.yaml").read_text())
    document["calibrations"] = [{"file": "mine.json"}]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document))
    mine = load_platform(str(tmp_path / "mine.yaml"))
    sizes = {"m": 1024, "n": 2048, "k": 512}
    reference_s = gemm_reference_s(
        H100.device, *(np.array(float(size)) for size in sizes.values()), Precision.BF16
    )
    seconds = mine.kernel_time("gemm", precision="bf16", **sizes)
    assert float(seconds) == pytest.approx(1.4 * float(reference_s), rel=0.02)
    # Another precision was not measured.
    assert float(mine.kernel_estimate("gemm", precision="fp16", **sizes).spread) > 0.15


def test_a_wrong_unit_is_refused_with_the_right_one(tmp_path):
    write_gemm(tmp_path / "mine.csv", 1e6)
    done = dse(
        *("fit", "gemm", tmp_path / "mine.csv", "--platform", "h100_sxm", "--time-unit", "ms"),
        *("--precision", "bf16", "--out", tmp_path / "mine.json"),
    )
    assert done.returncode == 2
    assert "pass --time-unit us" in done.stderr
    assert not (tmp_path / "mine.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "mine.yaml"), "ends in .json"),
        (("--out", "mine.json", "--column", "m"), "`=` between them"),
        (("--out", "mine.json", "--where", "=x"), "`=` between them"),
    ],
)
def test_wrong_options_are_named(tmp_path, options, message):
    write_gemm(tmp_path / "mine.csv", 1e6)
    done = dse("fit", "gemm", tmp_path / "mine.csv", "--platform", "h100_sxm", *options)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
def test_a_calibrated_machine_is_a_platform(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "here.yaml"
    document = answer("calibrate", "--device", "cpu", "--budget", "20s", "--out", out)
    assert document["measured"] > 20
    platform = load_platform(str(out))
    assert platform.device.kind == "cpu"
    assert "measured" in {fact.origin for fact in platform.facts}
    prediction = answer(
        *("predict", "dlrm_ddp", "--platform", out, "--world-size", 1),
        *("--global-batch-size", 512),
    )
    assert prediction["iteration_time_s"] > 0
    again = answer("calibrate", "--device", "cpu", "--budget", "1s", "--out", out)
    assert again["measured"] >= document["measured"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--budget", "soon"), "--budget"),
        (("--out", "here.json"), "ends in .yaml"),
        (("--device", "cpu", "--collectives", "nccl"), "nccl needs GPUs"),
    ],
)
def test_wrong_calibration_options_are_named(tmp_path, options, message):
    pytest.importorskip("torch")
    done = dse("calibrate", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
