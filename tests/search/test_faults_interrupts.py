"""Ctrl-C and SIGTERM, once and twice: a study that can be used, and nobody left behind."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from dse.search import load_study
from tests.search import runs
from tests.search.files import check_files, journaled
from tests.search.runs import (
    PATIENCE_S,
    QUICK_SPACE,
    Command,
    Run,
    needs_proc,
    needs_ray,
    nothing_left,
    session_members,
    wait_until_alone,
)

pytestmark = pytest.mark.slow

EXECUTORS = ["serial", "process", pytest.param("ray", marks=needs_ray)]
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
CODES = pytest.mark.parametrize(("number", "code"), SIGNALS, ids=["SIGINT", "SIGTERM"])

#: More configurations than are evaluated in any test.
LARGE_SPACE = QUICK_SPACE.replace(
    "[16384, 65536]", str([1536 * batch for batch in range(1, 101)])
).replace("trials: 16", "trials: 1000")


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text(LARGE_SPACE)
    return path


def wait_with_the_tables():
    """Lets the command write its tables only when a signal has come, however late."""
    runs.PAUSE_S = PATIENCE_S


def started(space, folder, executor, trials=3, before=None):
    """A command in the middle of a study; some trials are finished."""
    out = folder / "study"
    arguments = ["run", space, "--executor", executor, "--jobs", 2, "--out", out]
    command = Command(folder / "messages", *arguments, before=before)
    until = time.monotonic() + PATIENCE_S
    while evaluated(out) < trials and time.monotonic() < until and command.process.is_alive():
        time.sleep(0.01)
    return command, out


def evaluated(out):
    path = out / "journal.log"
    return path.read_bytes().count(b'"feasible"') if path.exists() else 0


def is_usable(out):
    """Whether all files are there and belong together."""
    check_files(out)
    study = load_study(out)
    assert study.interrupted
    assert len(study.result.records) == len(journaled(out))
    assert len((out / "trials.csv").read_text().splitlines()) == len(study.result.records) + 1
    return bool(study.result.front) and (out / "report.html").exists()


@needs_proc
@CODES
@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_interrupt_leaves_a_study_and_no_process(space, tmp_path, executor, number, code):
    command, out = started(space, tmp_path, executor)
    session = command.process.pid
    with nothing_left(session):
        command.interrupt(number)
        found, messages = command.join()
        assert found == code, messages
        assert f"interrupted; continue with: dse run {space} --out {out} --resume" in (
            " ".join(messages.split())
        )
        assert "Traceback" not in messages
        assert "Exception" not in messages
        assert not wait_until_alone(session)
    assert is_usable(out)


@needs_proc
@needs_ray
def test_ray_outlives_a_signal_that_is_sent_to_every_process(space, tmp_path):
    # As batch systems do it. The study is stopped meanwhile: Ray always has the signal first.
    command, out = started(space, tmp_path, "ray")
    session = command.process.pid
    with nothing_left(session):
        os.kill(session, signal.SIGSTOP)
        for pid in session_members(session):
            os.kill(pid, signal.SIGTERM)
        time.sleep(1.0)
        os.kill(session, signal.SIGCONT)
        found, messages = command.join()
        assert found == 143, messages
        assert not wait_until_alone(session)
    assert is_usable(out)


@needs_proc
@CODES
def test_a_second_one_while_the_files_are_written_ends_at_once(space, tmp_path, number, code):
    command, out = started(space, tmp_path, "process", before=wait_with_the_tables)
    session = command.process.pid
    with nothing_left(session):
        command.interrupt(signal.SIGINT)
        command.wait_for_tables()
        command.interrupt(number)
        found, messages = command.join()
        assert found == code, messages
        assert messages.strip().startswith("interrupted before all files were written")
        assert "Traceback" not in messages
        assert not wait_until_alone(session)
    check_files(out)
    before = journaled(out)
    again = Run(space, out=out, trials=len(before), resume=True)
    assert again.join() == 0
    assert journaled(out)[: len(before)] == before


@needs_proc
def test_two_in_quick_succession_at_any_moment(space, tmp_path):
    chance = random.Random(3)
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        command, out = started(space, folder, "serial", trials=chance.randrange(1, 4))
        session = command.process.pid
        with nothing_left(session):
            time.sleep(chance.uniform(0.0, 0.1))
            command.interrupt(signal.SIGINT)
            time.sleep(chance.uniform(0.0, 0.4))
            command.interrupt(signal.SIGINT)
            found, messages = command.join()
            assert found == 130, messages
            assert "interrupted" in messages
            assert "Traceback" not in messages
            assert not wait_until_alone(session)
        check_files(out)
