"""`dse fit` and `dse calibrate` from the command line."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
import json
import os
import re
import signal
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml

from dse.calibration.microbench import Purpose, run_session
from dse.calibration.microbench.plan import CollectivePoint
from dse.cli import main
from dse.cli.machine._calibrate import _next_step, _Pace
from dse.machine import Precision
from dse.machine.kernels import gemm_reference_s
from dse.machine.platforms import load_platform, read_calibrations
from tests.calibration.measurers import LawfulMeasurer
from tests.cli.running import answer, dse
from tests.conftest import ROOT
from tests.search.runs import PATIENCE_S, Command, nothing_left

if TYPE_CHECKING:
    from pathlib import Path

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


def test_a_table_of_attention_becomes_a_kernel(tmp_path):
    shapes = [
        (batch, heads, 2**power, dim)
        for batch in (1, 4)
        for heads in (4, 8, 16, 32)
        for power in (10, 12, 14)
        for dim in (64, 128)
    ]
    lines = ["batch,heads,seq,head_dim,latency_us"]
    for batch, heads, length, dim in shapes:
        # 10 µs, and the causal half at 400 TFLOP/s with a tile of 64 positions.
        time_us = 10 + 2 * batch * heads * length * (length + 64) * dim / 400e6
        lines.append(f"{batch},{heads},{length},{dim},{time_us:.6f}")
    table = tmp_path / "attention.csv"
    table.write_text("\n".join(lines) + "\n")
    fitted = answer(
        *("fit", "attention", table, "--platform", "h100_sxm", "--out", tmp_path / "mine.json"),
        *("--implementation", "my kernels"),
    )
    (model,) = fitted["models"]
    assert model["model"] == "attention bf16"
    (kernel,) = read_calibrations(tmp_path / "mine.json").kernels
    assert kernel.implementation == "my kernels"
    assert kernel.held_out.mape < 0.1
    options = ("--platform", "h100_sxm", "--out", tmp_path / "a.json", "--implementation", "x")
    done = dse("fit", "collective", table, *options)
    assert done.returncode == 2
    assert "--implementation" in done.stderr


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
    assert model["mape"] < 0.02
    (curve,) = read_calibrations(out).collectives
    assert float(curve.curve.at(2**20)) == pytest.approx(20e-6 + 2**20 / 200e9, rel=0.01)
    assert (curve.provenance.source, curve.provenance.as_of) == ("a log", "2026-01-02")


def test_a_log_of_another_device_is_refused(tmp_path, nccl_log):
    (tmp_path / "all_reduce.log").write_text(nccl_log)
    out = tmp_path / "mine.json"
    done = dse(
        *("fit", "collective", tmp_path / "all_reduce.log", "--platform", "a100_sxm_80"),
        *("--op", "all_reduce", "--out", out),
    )
    assert done.returncode == 2
    assert "--platform h100" in done.stderr
    assert not out.exists()


def test_the_version_of_a_log_is_named(tmp_path, nccl_log):
    (tmp_path / "all_reduce.log").write_text(nccl_log)
    out = tmp_path / "mine.json"
    fitted = answer(
        *("fit", "collective", tmp_path / "all_reduce.log", "--platform", "h100_sxm"),
        *("--op", "all_reduce", "--nccl", "2.21.5", "--tolerance", "1", "--out", out),
    )
    content = read_calibrations(out)
    assert [one.nccl for one in content.collectives] == ["2.21.5"]
    assert "2.21.5" in fitted["models"][0]["model"]
    assert content.link.bandwidth_bytes_per_s == H100.links[0].bandwidth_bytes_per_s


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
        (("--out", "mine.json", "--as-of", "yesterday"), "--as-of: expected YYYY, YYYY-MM"),
        (("--out", "mine.json", "--as-of", "2026-13"), "found `2026-13`"),
        (("--out", "mine.json", "--source", "x" * 201), "at most 200"),
        (("--out", "missing/mine.json"), "create it"),
        (("--out", f"{'x' * 201}.json"), "at most 200"),
    ],
)
def test_wrong_options_are_named_before_anything_is_read(tmp_path, options, message):
    done = dse("fit", "gemm", "no-such.csv", "--platform", "h100_sxm", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_options_of_other_kinds_are_refused():
    done = dse(
        *("fit", "gemm", "no-such.csv", "--platform", "h100_sxm", "--out", "mine.json"),
        *("--ranks", 4, "--op", "all_reduce", "--size-unit", "bytes", "--in-place"),
    )
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line.split()[1] for line in lines] == ["--op", "--ranks", "--size-unit", "--in-place"]
    assert "`fit collective`, `fit embedding`" in lines[0]


def test_fit_replaces_its_own_files_only(tmp_path, nccl_log):
    log, out = tmp_path / "all_reduce.log", tmp_path / "mine.json"
    log.write_text(nccl_log)
    out.write_text('{"precious": true}')
    command = (
        *("fit", "collective", log, "--platform", "h100_sxm", "--op", "all_reduce"),
        *("--out", out),
    )
    done = dse(*command)
    assert done.returncode == 2
    assert f"{out} exists and was not written by `dse fit`" in done.stderr
    assert "--force" in done.stderr
    assert out.read_text() == '{"precious": true}'
    answer(*command, "--force")
    # Now it is one of its own.
    answer(*command)
    # A calibration of another name has been moved here by somebody.
    other = tmp_path / "other.json"
    other.write_text(out.read_text())
    assert dse(*command[:-1], other).returncode == 2


def test_a_folder_that_cannot_be_written_is_said_first(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("this user may write everywhere")
    done = dse(
        *("fit", "gemm", "no-such.csv", "--platform", "h100_sxm", "--out", closed / "mine.json")
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_an_interrupt_is_one_line(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dse.config.json_schema", interrupt)
    monkeypatch.setattr(sys, "argv", ["dse", "schema", "space"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def calibrating(out: Path, *options: str, least_lines: int) -> tuple[int, str]:
    """Starts `dse calibrate`, presses Ctrl-C once the log has so many lines, and waits."""
    log = out.with_name(f"{out.stem}.points.jsonl")
    messages = out.with_name("messages.txt")
    command = Command(messages, "calibrate", "--out", out, "--json", *options)
    with nothing_left(command.process.pid):
        until = time.monotonic() + PATIENCE_S
        while command.process.is_alive() and time.monotonic() < until:
            if log.exists() and log.read_text().count("\n") >= least_lines:
                command.interrupt(signal.SIGINT)
                break
            time.sleep(0.05)
        return command.join()


def says_what_is_kept(errors: str, out: Path) -> bool:
    log = out.with_name(f"{out.stem}.points.jsonl")
    points = log.read_text().count("\n") - 1
    return errors.count("\n") == 1 and f"{points} points" in errors and str(log) in errors


def test_an_interrupt_before_the_first_point(tmp_path, monkeypatch):
    pytest.importorskip("torch")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dse.calibration.microbench.run_session", interrupt)
    done = dse("calibrate", "--out", tmp_path / "here.yaml", "--json")
    assert done.returncode == 130
    assert "before the first point" in done.stderr
    assert not (tmp_path / "here.yaml").exists()


@pytest.mark.slow
def test_an_interrupted_calibration_says_what_is_kept(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "here.yaml"
    code, errors = calibrating(out, "--budget", "60s", least_lines=5)
    assert code == 130
    assert says_what_is_kept(errors, out)
    assert not out.exists()


class WithoutCollectives(LawfulMeasurer):
    """Is interrupted before the first of them."""

    def collectives(self, ranks):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_interrupted_ranks_are_silent(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    out = tmp_path / "here.yaml"
    measured = ("--collectives", "gloo", "--ranks", "2", "--budget", "60s")
    without = partial(run_session, measurer=WithoutCollectives())
    monkeypatch.setattr("dse.calibration.microbench.run_session", without)
    assert dse("calibrate", *measured, "--out", out).returncode == 130
    lines = out.with_name("here.points.jsonl").read_text().splitlines()
    assert {json.loads(line)["kind"] for line in lines[1:]} == {"host", "kernel"}
    # What is left are collectives.
    code, errors = calibrating(out, *measured, least_lines=len(lines) + 3)
    assert code == 130
    assert says_what_is_kept(errors, out)


def test_a_calibrated_machine_is_a_platform(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    lawful = partial(run_session, measurer=LawfulMeasurer())
    monkeypatch.setattr("dse.calibration.microbench.run_session", lawful)
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
        (("--budget", "0s"), "--budget"),
        (("--out", "here.json"), "ends in .yaml"),
        (("--out", "my machine.yaml"), "letters, digits"),
        (("--device", "cpu", "--collectives", "nccl"), "nccl needs GPUs"),
        (("--ranks", "2", "--busy-devices", "3"), "3 busy devices: expected 1 to 2"),
    ],
)
def test_wrong_calibration_options_are_named(tmp_path, options, message):
    pytest.importorskip("torch")
    done = dse("calibrate", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


def test_calibrate_replaces_its_own_files_only(tmp_path):
    out = tmp_path / "h100_sxm.yaml"
    out.write_text("by: hand\n")
    done = dse("calibrate", "--out", out, "--budget", "1s")
    assert done.returncode == 2
    assert f"{out} exists and was not written by `dse calibrate`" in done.stderr
    assert "--force" in done.stderr
    assert out.read_text() == "by: hand\n"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    fits = tmp_path / "mine.calibration.json"
    fits.write_text("{}")
    done = dse("calibrate", "--out", tmp_path / "mine.yaml", "--budget", "1s")
    assert f"{fits} exists" in done.stderr


def points(op: str, count: int) -> tuple[SimpleNamespace, ...]:
    return tuple(SimpleNamespace(op=op, point=(op, at)) for at in range(count))


def test_a_prediction_is_suggested_when_it_can_be_trusted(tmp_path):
    out = tmp_path / "here.yaml"
    whole = SimpleNamespace(
        ranks=2,
        kernels=(SimpleNamespace(op="gemm"), SimpleNamespace(op="memcpy_h2d")),
        collectives=(SimpleNamespace(op="all_reduce"),),
    )
    result = SimpleNamespace(kernels=(), collectives=(), skipped=())
    plan = SimpleNamespace(
        operators=("gemm", "memcpy_h2d"),
        kernels_in_order=tuple,
        collectives=(CollectivePoint("all_reduce", 2, 1024, Purpose.FIT),),
    )

    def step(asked: bool = True, measured=result, **changes) -> str:
        calibration = SimpleNamespace(**(vars(whole) | changes))
        asked_for = SimpleNamespace(**vars(plan) | {"collectives": plan.collectives[:asked]})
        return _next_step(calibration, measured, out, asked_for, _Pace())

    assert f"dse predict dlrm_ddp --platform {out} --world-size 2 " in step()
    for changes, name in (
        ({"kernels": whole.kernels[:1]}, "copies from the host"),
        ({"kernels": whole.kernels[1:]}, "GEMM"),
        ({"collectives": ()}, "collectives"),
    ):
        assert f"{name} could not be fitted; raise --budget" in step(**changes)
    nothing = step(kernels=(), collectives=())
    assert "GEMM, copies from the host, collectives could not be fitted" in nothing
    # Nobody asked for collectives: one rank can be predicted.
    assert "--world-size 1 " in step(asked=False, collectives=())
    # One exchange is left, and a third of the time is for these. One that was measured tells what
    # it takes, else a kernel does.
    short = SimpleNamespace(**vars(whole) | {"collectives": ()})
    for spent_s, budget in (({"kernels": 5.0}, 15), ({"kernels": 5.0, "collectives": 8.0}, 24)):
        pace = _Pace(defaultdict(float, spent_s), Counter(dict.fromkeys(spent_s, 1)))
        assert f"to about {budget}s" in _next_step(short, result, out, plan, pace)
    # Enough points, but the formula is better: nothing is missing.
    enough = SimpleNamespace(kernels=points("memcpy_h2d", 40), collectives=(), skipped=())
    assert "dse predict" in step(measured=enough, kernels=whole.kernels[:1])


def test_too_short_a_calibration_says_all_that_is_missing_and_what_would_do(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    seconds = iter(range(10**6))
    lawful = partial(run_session, measurer=LawfulMeasurer(), clock=lambda: next(seconds))
    monkeypatch.setattr("dse.calibration.microbench.run_session", lawful)
    command = ("calibrate", "--device", "cpu", "--ranks", 1, "--out", tmp_path / "here.yaml")
    done = dse(*command, "--budget", "4s")
    assert done.returncode == 2
    assert "elementwise, copies from the host" in done.stderr
    (minutes,) = re.findall(r"--budget to about (\d+)min", done.stderr)
    done = dse(*command, "--budget", "60s")
    assert done.returncode == 0
    assert "GEMM, elementwise, copies from the host, memcpy_d2h" in done.stdout
    assert "--budget to about" in done.stdout
    done = dse(*command, "--budget", f"{minutes}min")
    assert "try: dse predict" in done.stdout


def test_collectives_in_a_wrong_unit_are_refused(tmp_path):
    rows = [f"all_reduce,8,{2**power},{20 + 2**power / 200e3:.4f}" for power in range(10, 29)]
    table = tmp_path / "nccl.csv"
    table.write_text("op,ranks,size_bytes,time\n" + "\n".join(rows) + "\n")
    command = ("fit", "collective", table, "--platform", "h100_sxm", "--out", tmp_path / "x.json")
    for wrong in ("ms", "ns"):
        done = dse(*command, "--time-unit", wrong)
        assert done.returncode == 2
        assert "pass --time-unit us" in done.stderr
    assert dse(*command, "--time-unit", "us").returncode == 0
    unknown = dse(*command, "--time-unit", "us", "--link", "nvswich", "--force")
    assert unknown.returncode == 2
    assert "nvswitch" in unknown.stderr
