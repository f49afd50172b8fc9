"""One run a folder: the second one says who holds it; a dead holder's lock is taken over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import errno
import fcntl
import multiprocessing
import os
import random
import socket
import time

import pytest

from dse.errors import ConfigError, StudyError
from dse.search import RunOptions, load_study, run
from dse.search._lock import LOCK_NAME, lock_folder
from tests.search.files import journaled, unfinished
from tests.search.runs import QUICK_SPACE, Run


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "quick.yaml"
    path.write_text(QUICK_SPACE)
    return path


def test_the_second_is_told_who_holds_the_folder(tmp_path):
    root = tmp_path / "a" / "study"
    with lock_folder(root):
        assert (root / LOCK_NAME).exists()
        for _ in range(2):
            with pytest.raises(StudyError, match=f"{root} is in use .*process {os.getpid()} on "):
                lock_folder(root).__enter__()
        with lock_folder(tmp_path / "other"):
            pass
    assert not root.exists()
    with lock_folder(root):
        (root / "file").touch()
    assert [path.name for path in root.iterdir()] == ["file"]


def hold(root, pipe):
    with lock_folder(root):
        pipe.send(os.getpid())
        time.sleep(60)


def test_the_lock_of_a_dead_holder_is_taken_over(tmp_path):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(tmp_path, theirs))
    process.start()
    assert ours.recv() == process.pid
    with pytest.raises(StudyError, match=f"process {process.pid} on {socket.gethostname()}"):
        lock_folder(tmp_path).__enter__()
    process.kill()
    process.join()
    assert (tmp_path / LOCK_NAME).exists()
    with lock_folder(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK_NAME).read_text()
    assert not (tmp_path / LOCK_NAME).exists()


@pytest.mark.parametrize(
    "name",
    ["node 7", "café-östlich", "\udcff\udcfe", "two\nlines", "n" * 5000],
    ids=["blank", "accents", "no Unicode", "lines", "long"],
)
def test_any_name_of_a_machine_is_told_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    with lock_folder(tmp_path), pytest.raises(StudyError) as refused, lock_folder(tmp_path):
        pass
    assert f"process {os.getpid()} on" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / LOCK_NAME).exists()


def test_a_folder_that_is_reached_by_two_paths_has_one_lock(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with lock_folder(tmp_path / "link"):
        for path in ("real", "link", "link/../real"):
            with pytest.raises(StudyError, match="is in use"):
                lock_folder(tmp_path / path).__enter__()
    with lock_folder(tmp_path / "real"):
        pass


def test_a_child_does_not_keep_the_lock_after_its_parent_has_released_it(tmp_path):
    with lock_folder(tmp_path):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with lock_folder(tmp_path):
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_link_in_place_of_the_lock_leads_nowhere(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("mine")
    (tmp_path / LOCK_NAME).symlink_to(other)
    with pytest.raises(StudyError, match="cannot write"):
        lock_folder(tmp_path).__enter__()
    assert other.read_text() == "mine"


def test_never_two_holders(tmp_path):
    """The file is removed at every release, and made again at every try."""
    inside = []
    entered = refused = 0

    def attempt(number):
        nonlocal entered, refused
        chance = random.Random(number)
        for _ in range(200):
            try:
                with lock_folder(tmp_path):
                    inside.append(number)
                    assert inside == [number]
                    if chance.random() < 0.3:
                        time.sleep(0.0002)
                    inside.remove(number)
                    entered += 1
            except StudyError:
                refused += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(attempt, range(4)))
    assert entered + refused == 800
    assert entered
    assert not (tmp_path / LOCK_NAME).exists()


def test_two_runs_that_resume_at_once_evaluate_nothing_twice(space, tmp_path):
    reference = run(space, RunOptions(out=tmp_path / "whole"))
    out = tmp_path / "study"
    run(space, RunOptions(out=out, trials=4))
    chance = random.Random(5)
    for _ in range(2):
        first = Run(space, out=out, resume=True, trials=16)
        second = Run(space, out=out, resume=True, trials=16)
        first.wait_for(chance.randrange(1, 6))
        first.kill()
        ended = second.join()
        assert ended in (0, 2)
        if ended:
            assert "is in use by another run" in str(second.error)
        found = journaled(out)
        assert len(found) == len(set(found))
    done = run(space, RunOptions(out=out, resume=True, trials=16))
    assert done.directory.pareto.read_bytes() == reference.directory.pareto.read_bytes()
    assert load_study(out).result.records
    assert not unfinished(out)


def test_a_second_run_changes_nothing_of_the_first(space, tmp_path):
    out = tmp_path / "study"
    seen = []

    def meanwhile(records, total):
        if len(records) == 5:
            journal = (out / "journal.log").read_bytes()
            for resume in (False, True):
                with pytest.raises(StudyError, match="is in use"):
                    run(space, RunOptions(out=out, resume=resume))
            assert (out / "journal.log").read_bytes() == journal
            seen.append(records)

    run(space, RunOptions(out=out), progress=meanwhile)
    assert seen


@pytest.mark.parametrize("folder", [".", "new"])
def test_a_full_disk_leaves_no_lock_and_no_folder(tmp_path, monkeypatch, folder):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with (
        pytest.raises(StudyError, match=r"run\.lock: No space left"),
        lock_folder(tmp_path / folder),
    ):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_named_and_left_as_it_was(tmp_path, monkeypatch, number):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StudyError, match="cannot lock"), lock_folder(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()


def test_a_folder_with_a_journal_alone_is_no_new_study(space, tmp_path):
    (tmp_path / "journal.log").write_bytes(b"")
    with pytest.raises(StudyError, match="already holds a study"):
        run(space, RunOptions(out=tmp_path))


def test_nothing_is_made_where_there_is_nothing_to_resume(space, tmp_path):
    with pytest.raises(StudyError, match="not a study directory"):
        run(space, RunOptions(out=tmp_path / "none", resume=True))
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match="--resume"):
        run(space, RunOptions(out=tmp_path / "none", repair=True))


def test_a_study_is_not_resumed_with_fewer_trials_than_it_has(space, tmp_path):
    out = tmp_path / "study"
    run(space, RunOptions(out=out, trials=8))
    files = {path.name: path.read_bytes() for path in out.glob("*.*")}
    with pytest.raises(StudyError, match=r"8 evaluated configurations, more than --trials 7"):
        run(space, RunOptions(out=out, trials=7, resume=True))
    assert {path.name: path.read_bytes() for path in out.glob("*.*")} == files
    run(space, RunOptions(out=out, trials=8, resume=True))
