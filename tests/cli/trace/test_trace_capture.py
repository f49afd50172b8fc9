"""`dse trace capture` from the command line, with real commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.running import dse, process
from tests.conftest import ROOT

pytest.importorskip("torch")

from dse.trace import read_execution_trace, read_kineto
from dse.trace.capture import (
    CapturedFile,
    CaptureRecord,
    CaptureSettings,
    CommandRecording,
    read_records,
)

#: Importing torch's compiler takes longer than all else that a short script does.
WITHOUT_COMPILER = """\
import sys
from unittest.mock import MagicMock

compiler = MagicMock()
compiler.disable = lambda function, *_, **__: function
compiler.config.triton.cudagraphs = False
for name in ("_dynamo", "_inductor", "_inductor.codecache"):
    sys.modules["torch." + name] = compiler
sys.modules["torch._inductor.config"] = compiler.config
"""

TRAIN = """\
import os, sys, time
import torch

torch.set_num_threads(1)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
iterations, code = int(sys.argv[1]), int(sys.argv[2])
for iteration in range(iterations):
    model(torch.randn(4, 8)).sum().backward()
    if "RANK" in os.environ:
        torch.distributed.all_reduce(model.weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    if iteration == 12:
        print("trained", flush=True)
        time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0)
if "RANK" in os.environ:
    # Now and then gloo aborts while a process group is taken down; that is not tested here.
    torch.distributed.barrier()
    os._exit(code)
sys.exit(code)
"""


@pytest.fixture(autouse=True)
def single_rank(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    places = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(WITHOUT_COMPILER + TRAIN)
    return path


def capture(out, *arguments):
    """Captures a command, which is a process, from this one."""
    return dse("trace", "capture", "--out", out, *arguments)


# Recordings by hand ---------------------------------------------------------------------------


def record(rank=0):
    return CaptureRecord(
        rank=rank,
        world_size=2,
        backend="gloo",
        host="here",
        device="cpu",
        dse="1",
        python="3",
        torch="2",
        cuda="",
        settings=CaptureSettings(),
        counted_by="optimizer",
        steps=(5, 6),
        complete=True,
        step_s_profiled=0.03,
        step_s_unprofiled=0.02,
        files=(CapturedFile(f"rank{rank}.pt.trace.json.gz", 1000, ""),),
    )


@pytest.mark.parametrize(
    ("recording", "code", "shown", "warned"),
    [
        (
            CommandRecording(0, False, False, (record(0), record(1)), (), ""),
            0,
            "5–6",
            "20 ms",
        ),
        (CommandRecording(3, False, False, (record(),), (), ""), 3, "rank 0", "not rank 1"),
        (CommandRecording(143, True, False, (record(),), (), ""), 0, "rank 0", "9s"),
        (CommandRecording(130, False, True, (record(),), (), ""), 130, "rank 0", "interrupted"),
        (CommandRecording(4, False, False, (), (), "too short"), 4, "", "too short"),
        (CommandRecording(0, False, False, (), (), "no optimizer"), 2, "", "no optimizer"),
    ],
    ids=["captured", "failed", "timed out", "interrupted", "nothing", "nothing at all"],
)
def test_recordings_and_exit_codes(monkeypatch, tmp_path, recording, code, shown, warned):
    monkeypatch.setattr("dse.trace.capture.record_command", lambda *_, **__: recording)
    done = dse("trace", "capture", "--out", tmp_path, "--timeout", "9s", "--", "true")
    assert done.returncode == code
    assert shown in done.stdout
    assert warned in done.stderr


# Real commands ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_script_is_captured_and_its_exit_code_passed_on(tmp_path, script):
    script.write_text(TRAIN)
    out = tmp_path / "out"
    recorded = ("trace", "capture", "--out", out, "--steps", 2)
    done = process(*recorded, "--", sys.executable, script, 20, 3)
    assert done.returncode == 3
    assert "trained" in done.stdout
    assert f"rank 0: {out}/rank0.pt.trace.json.gz, 2 steps (5–6)" in done.stdout
    assert f"dse trace info {out}" in done.stdout
    (trace,) = read_kineto(out)
    assert [step.number for step in trace.steps] == [5, 6]
    assert len(read_execution_trace(out)) == 1
    (record,) = read_records(out)
    assert record.counted_by == "optimizer"
    assert record.step_s_unprofiled > 0
    assert dse("trace", "info", out).returncode == 0
    # The folder is full now.
    again = capture(out, "--", sys.executable, script, 20, 0)
    assert again.returncode == 2
    assert "--force" in again.stderr


@pytest.mark.slow
def test_ranks_of_torchrun(tmp_path, script):
    out = tmp_path / "out"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    recorded = ("trace", "capture", "--out", out, "--json")
    done = process(*recorded, *torchrun, "--nproc-per-node", 2, script, 20, 0)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert document["notes"] == []
    traces = read_kineto(out)
    assert [(trace.rank, trace.world_size) for trace in traces] == [(0, 2), (1, 2)]
    assert [[step.number for step in trace.steps] for trace in traces] == [[5, 6, 7]] * 2
    assert [record.backend for record in read_records(out)] == ["gloo", "gloo"]


@pytest.mark.slow
def test_spawned_processes_are_captured(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        "import multiprocessing, os, runpy, sys\n"
        "def work(rank):\n"
        "    os.environ.update(RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1')\n"
        "    os.environ['MASTER_PORT'] = '29613'\n"
        f"    sys.argv = ['train.py', '20', '0']\n"
        f"    runpy.run_path({str(tmp_path / 'train.py')!r})\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    children = [context.Process(target=work, args=(rank,)) for rank in (0, 1)]\n"
        "    [child.start() for child in children]\n"
        "    [child.join() for child in children]\n"
    )
    (tmp_path / "train.py").write_text(WITHOUT_COMPILER + TRAIN)
    done = capture(tmp_path / "out", "--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert [trace.rank for trace in read_kineto(tmp_path / "out")] == [0, 1]


@pytest.mark.slow
def test_no_optimizer_is_an_error(tmp_path):
    done = capture(tmp_path / "out", "--", sys.executable, "-c", "import torch")
    assert done.returncode == 2
    assert "no optimizer of torch.optim stepped" in done.stderr
    assert "dse.capture" in done.stderr


@pytest.mark.slow
def test_too_few_iterations_are_an_error(tmp_path, script):
    done = capture(tmp_path / "out", "--", sys.executable, script, 5, 0)
    assert done.returncode == 2
    assert "after 5 of the 9 iterations needed (the first 1, skip 3, warm-up 2" in done.stderr


@pytest.mark.slow
def test_a_command_that_fails_at_once_is_given_no_advice(tmp_path):
    code = "import sys, torch; sys.exit(3)"
    failed = capture(tmp_path / "out", "--", sys.executable, "-c", code)
    assert failed.returncode == 3
    assert "nothing was captured: the command ended with exit code 3" in failed.stderr
    assert "dse.capture" not in failed.stderr


@pytest.mark.slow
def test_iterations_of_a_short_run_are_kept(tmp_path, script):
    done = capture(tmp_path / "out", "--", sys.executable, script, 8, 0)
    assert done.returncode == 0, done.stderr
    assert "2 of 3 steps were recorded" in done.stderr
    (trace,) = read_kineto(tmp_path / "out")
    assert [step.number for step in trace.steps] == [5, 6]


@pytest.mark.slow
def test_a_script_that_captures_itself(tmp_path):
    script = tmp_path / "train.py"
    body = "".join(f"    {line}\n" for line in TRAIN.splitlines() if "sys.exit" not in line)
    own = f"import dse\nwith dse.capture({str(tmp_path / 'own')!r}):\n{body}"
    script.write_text(WITHOUT_COMPILER + own)
    done = capture(tmp_path / "out", "--", sys.executable, script, 20, 0)
    assert done.returncode == 2
    assert "captured already" in done.stderr
    # It is not disturbed.
    assert len(read_kineto(tmp_path / "own")) == 1


@pytest.mark.slow
def test_the_time_ends_a_command_that_was_captured(tmp_path, script):
    # A busy machine needs longer until something is captured.
    for timeout in ("15s", "60s"):
        out = tmp_path / timeout
        done = capture(out, "--timeout", timeout, "--", sys.executable, script, 20, 0, 600)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    assert f"ended after {timeout}" in done.stderr
    assert read_records(out)[0].complete


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_recorded(tmp_path, script):
    out = tmp_path / "out"
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "dse", "trace", "capture", "--out", str(out)),
            *("--", sys.executable, str(script), "20", "0", "600"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 60
    while time.monotonic() < end and not list(out.glob("*.capture.json")):
        time.sleep(0.1)
    # As a terminal does: to all processes of the command.
    os.killpg(running.pid, signal.SIGINT)
    shown, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "rank 0:" in shown
    assert "dse/cli" not in errors
    assert read_records(out)[0].complete


def test_arguments_of_the_command_are_its_own(tmp_path, capfd):
    code = "import sys; print(sys.argv[1:])"
    capture(tmp_path / "out", sys.executable, "-c", code, "--steps", "9", "--out", "x")
    assert "['--steps', '9', '--out', 'x']" in capfd.readouterr().out
    assert not (ROOT / "x").exists()


def test_a_wrong_time_is_refused(tmp_path):
    arguments = ("--timeout", "3 parsecs", "--", "true")
    done = dse("trace", "capture", "--out", tmp_path / "out", *arguments)
    assert done.returncode == 2
    assert "--timeout" in done.stderr
