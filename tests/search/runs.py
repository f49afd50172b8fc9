"""Runs in processes of their own that a test can kill: started in milliseconds, told step by step.

The processes are forks of a server that has imported everything once.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
import importlib.util
import multiprocessing
import os
from pathlib import Path
import resource
import signal
import sys
import time

# For those that are forked, so that none imports them again.
import jinja2  # noqa: F401
import optuna  # noqa: F401
import plotly  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest

from dse._process.starting import start_method
from dse.cli import main
from dse.errors import DseError
import dse.report
from dse.search import RunOptions, run
from dse.search._directory import StudyDirectory
from dse.search.execute import _process

needs_proc = pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs /proc to see all processes"
)

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install '.[ray]'"
)

#: How long anything that should happen may take.
PATIENCE_S = 60.0

QUICK_SPACE = """\
schema_version: 1
name: quick
workload: {model: dlrm_tiny}
parameters:
  platform: [a100_sxm_80, h100_sxm, v100_dgx2]
  world_size: [2, 4, 8, 12]
  global_batch_size: [16384, 65536]
  sharding_types:
    - [table_wise]
    - [table_wise, row_wise]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
  - {metric: cost_usd_per_million_samples, direction: minimize}
search: {sampler: nsga2, trials: 16, batch: 4, improvement_rounds: 0, planners: [size_greedy]}
"""


def forked(target, *arguments):
    """Starts a process that finds everything imported, and read what is read once."""
    # `tests/conftest.py` says what is imported before.
    context = start_method(_process.PRELOADED)
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def _pipe():
    return multiprocessing.get_context("forkserver").Pipe(duplex=False)


def study_run(space, options, largest_bytes, pipe):
    """What the process does: a run as `dse run` does it, every step told through the pipe."""
    os.setsid()
    if largest_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_bytes, largest_bytes))
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    original = StudyDirectory.write_tables

    def write_tables(self, *arguments):
        pipe.send("tables")
        original(self, *arguments)

    StudyDirectory.write_tables = write_tables
    pipe.send("start")

    def note(records, total):
        pipe.send(("trial", records[-1].parameters))

    try:
        study = run(space, options, progress=note)
        pipe.send("report")
        dse.report.write_report(study.result, study.directory.report)
    except DseError as error:
        pipe.send(error)
        sys.exit(2)


#: How long a command waits before it writes its tables: there is time for another signal.
PAUSE_S = 0.3


def command_run(arguments, messages, cwd, before, pipe):
    """What the process does: `dse` with arguments, as from a shell; says when it writes tables."""
    os.setsid()
    os.chdir(cwd)
    with open(messages, "w") as file, open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), sys.__stdout__.fileno())
        os.dup2(file.fileno(), sys.__stderr__.fileno())
    original = StudyDirectory.write_tables

    def write_tables(self, *arguments):
        pipe.send("tables")
        time.sleep(PAUSE_S)
        original(self, *arguments)

    StudyDirectory.write_tables = write_tables
    sys.argv = ["dse", *arguments]
    if before is not None:
        before()
    main()


class Command:
    """`dse` in another process, which leads a session of its own.

    Args:
        messages: File for what it says on standard error.
        arguments: Of the command.
        cwd: Its working directory.
        before: Called in the other process before the command, to change its surroundings.
    """

    def __init__(self, messages, *arguments, cwd=".", before=None):
        self._pipe, theirs = _pipe()
        self._messages = messages
        Path(messages).touch()
        words = [*map(str, arguments)]
        self.process = forked(command_run, words, str(messages), str(cwd), before, theirs)
        theirs.close()

    def wait_for_tables(self):
        """Waits until it is about to write its tables."""
        assert self._pipe.poll(PATIENCE_S)
        assert self._pipe.recv() == "tables"

    def interrupt(self, number):
        """Sends a signal as a terminal does it: to everyone in the process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def join(self):
        """Waits for its end; returns its exit code and what it said on standard error."""
        self.process.join(PATIENCE_S)
        return self.process.exitcode, Path(self._messages).read_text()


class Run:
    """A study run in another process, which leads a session of its own.

    Args:
        space: Path of the search space.
        largest_bytes: Limit on every file that it writes, as a full disk would set it.
        settings: Fields of `RunOptions`.
    """

    def __init__(self, space, *, largest_bytes=None, **settings):
        self._pipe, theirs = _pipe()
        self.process = forked(study_run, str(space), RunOptions(**settings), largest_bytes, theirs)
        theirs.close()
        self.finished = []
        """Parameters of the trials that it said were finished."""
        self.error = None
        """What it ended with."""

    def wait_for(self, step):
        """Waits for a step, or for as many finished trials; returns whether it came to that."""
        until = time.monotonic() + PATIENCE_S
        while not (isinstance(step, int) and len(self.finished) >= step):
            assert self._pipe.poll(until - time.monotonic()), f"the run did not come to {step}"
            try:
                said = self._pipe.recv()
            except EOFError:
                return False
            if said == step:
                return True
            if isinstance(said, DseError):
                self.error = said
            if isinstance(said, tuple):
                self.finished.append(said[1])
        return True

    def kill(self, *, group=False):
        """Kills it; returns whether it was still there."""
        with suppress(ProcessLookupError):
            if group:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.join(PATIENCE_S)
        self.wait_for("the end")
        return self.process.exitcode == -signal.SIGKILL

    def join(self):
        """Waits for its end; returns its exit code."""
        self.wait_for("the end")
        self.process.join(PATIENCE_S)
        return self.process.exitcode


def session_members(session):
    """Processes of a session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            # After the name, which may hold anything: state, parent, group, session.
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(path.name))
    return found


def wait_until_alone(session):
    """Returns the processes of a session that do not end."""
    until = time.monotonic() + PATIENCE_S
    while left := session_members(session):
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    return left


def name_of(pid):
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text()
    except OSError:
        return ""


def wait_until_gone(processes):
    """Returns those of some processes that do not end."""
    until = time.monotonic() + PATIENCE_S
    while (left := [pid for pid in processes if is_there(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def is_there(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def nothing_left(session):
    """Kills what a failing test would leave behind."""
    try:
        yield
    finally:
        for pid in session_members(session):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
