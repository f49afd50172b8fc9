"""Ranks reply together; when one fails, the error names it and no process is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from dse.errors import ConfigError, WorkerError
from dse.launch import TorchrunEnvironment, start_ranks, torchrun_environment
from tests.conftest import ROOT
from tests.launch.workers import FAILURES, adder, failing

pytest.importorskip("torch")

#: Time for a start on a busy machine, in seconds.
PATIENCE_S = 90.0


def run_failing(kind, victim):
    """Makes a rank fail; returns the error and the process ids."""
    ids = []

    def run():
        with start_ranks(
            failing(kind, victim), backend="gloo", world_size=2, threads=1, timeout_s=PATIENCE_S
        ) as group:
            ids.extend(group.process_ids)
            group.ask("go", 2.0 if kind == "time-out" else None)

    with pytest.raises(WorkerError) as caught:
        run()
    return caught.value, ids


def alive(process):
    """Returns whether a process is running."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_failure(kind, victim):
    import re

    error, ids = run_failing(kind, victim)
    assert error.rank == (0 if kind == "time-out" else victim)
    assert re.search(FAILURES[kind].format(rank=victim), str(error)), error
    assert "\n" not in str(error)
    if kind == "exception":
        (note,) = error.__notes__
        assert note.startswith("Traceback")
        assert note.endswith("ValueError: the cause\nwith its details")
    assert len(ids) == 2
    assert not any(alive(one) for one in ids)
    assert multiprocessing.active_children() == []


def test_ranks_answer_in_order_and_end():
    with start_ranks(
        adder, backend="gloo", world_size=2, threads=1, timeout_s=PATIENCE_S
    ) as group:
        assert group.world_size == 2
        ids = group.process_ids
        assert [group.ask(number) for number in (1, 5)] == [[3, 3], [11, 11]]
    assert not any(alive(one) for one in ids)


UNGUARDED = """\
from functools import partial
from dse.launch import start_ranks
from tests.launch.workers import adder

options = {"backend": "gloo", "world_size": 2, "threads": 1}
with start_ranks(adder, **options) as group:
    print(group.ask(1))

def ours(content, context):
    pass

# More than a pipe takes before anybody reads.
with start_ranks(partial(ours, bytes(2**22)), **options):
    pass
"""


@pytest.mark.slow
def test_scripts_need_a_guard_only_for_workers_of_their_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "[3, 3]\n"
    # Ranks that end before they listen.
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "WorkerError: rank 0 ended with exit code 1" in last
    assert "if __name__ == '__main__':" in done.stderr


def test_a_failing_rank_is_named_and_nobody_stays():
    check_failure("exception", 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("victim", range(2))
def test_a_failure_leaves_no_process(kind, victim):
    check_failure(kind, victim)


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(WorkerError, match=f"port {port} "),
            start_ranks(adder, backend="gloo", world_size=2, threads=1, port=port),
        ):
            pass
    assert multiprocessing.active_children() == []


def end_starter(number):
    """Starts ranks in another process and ends that one with a signal."""
    command = [sys.executable, "-m", "tests.launch.workers"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as starter:
        ids = [int(word) for word in starter.stdout.readline().split()]
        assert len(ids) == 2, starter.stderr.read()
        assert all(alive(one) for one in ids)
        starter.send_signal(number)
        starter.wait(PATIENCE_S)
        errors = starter.stderr.read()
    until = time.monotonic() + 10
    while any(alive(one) for one in ids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(alive(one) for one in ids)
    return starter.returncode, errors


def test_interrupted_ranks_end_silently():
    code, errors = end_starter(signal.SIGINT)
    assert code == -signal.SIGINT
    # The parent's own traceback and none of the ranks.
    assert errors.count("Traceback") == 1
    assert "KeyboardInterrupt" in errors


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_their_starter(number):
    assert end_starter(number)[0] == -number


def test_torchrun_is_recognised_by_its_variables():
    variables = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "here",
        "MASTER_PORT": "1",
    }
    assert torchrun_environment(variables) == TorchrunEnvironment(3, 4, 1)
    assert torchrun_environment({"RANK": "0", "WORLD_SIZE": "1"}) is None
    with pytest.raises(ConfigError, match="LOCAL_RANK=one"):
        torchrun_environment({**variables, "LOCAL_RANK": "one"})
    assert "RANK" not in os.environ
