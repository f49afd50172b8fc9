"""A disk that is full: the run says so, and goes on when there is room again."""

from __future__ import annotations

import errno
import os
from pathlib import Path
import signal
import subprocess

import pytest

from dse._io.writing import write_atomically
from dse.errors import ConfigError, StudyError
from dse.search import RunOptions, run
from dse.search.storage._journal_backend import JournalBackend
from tests.search.files import check_files, journaled, unfinished
from tests.search.runs import QUICK_SPACE, Run


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "quick.yaml"
    path.write_text(QUICK_SPACE)
    return path


@pytest.fixture(scope="module")
def uninterrupted(space, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "study"
    assert Run(space, out=out).join() == 0
    return out


def resize(folder, *options):
    return subprocess.run(["mount", *options, folder], capture_output=True, check=False).returncode


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 16 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if resize(folder, "-t", "tmpfs", "-o", "size=16k", "tmpfs"):
        pytest.skip("a small file system cannot be mounted here; it needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def ended_cleanly(process, out, known):
    """Whether a run came to its end; if not, it has said what is full and how to go on."""
    code = process.join()
    if code:
        message = str(process.error)
        assert code == 2
        assert isinstance(process.error, StudyError)
        assert str(out) in message
        assert "--resume" in message
        assert "\n" not in message
    found = journaled(out)
    assert found[: len(known)] == known
    assert len(found) == len(set(found))
    assert set(process.finished) <= set(found)
    check_files(out)
    assert not unfinished(out)
    return code == 0


@pytest.mark.slow
def test_a_disk_that_grows_step_by_step_ends_with_the_whole_study(
    space, uninterrupted, small_disk
):
    out = small_disk / "study"
    known: list = []
    messages = []
    size_kib = 16
    while True:
        process = Run(space, out=out, resume=(out / "study.yaml").exists())
        if ended_cleanly(process, out, known):
            break
        messages.append(str(process.error))
        known = journaled(out)
        # The page is larger than all other files together.
        size_kib = size_kib * 4 // 3 if size_kib < 200 else size_kib * 4
        assert resize(small_disk, "-o", f"remount,size={size_kib}k") == 0
    assert (out / "pareto.csv").read_bytes() == (uninterrupted / "pareto.csv").read_bytes()
    # It ran full at every kind of file.
    for name in ("study.yaml", "journal.log", "report.html"):
        assert any(name in message and "No space left" in message for message in messages), name


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])  # study.yaml must fit
def test_a_journal_that_may_not_grow_loses_nothing(space, uninterrupted, tmp_path, share):
    out = tmp_path / "study"
    whole_bytes = (uninterrupted / "journal.log").stat().st_size
    process = Run(space, out=out, largest_bytes=int(share * whole_bytes))
    assert not ended_cleanly(process, out, [])
    assert "journal.log: File too large; raise the limit" in str(process.error)
    assert (out / "journal.log").stat().st_size == int(share * whole_bytes)
    process = Run(space, out=out, resume=True)
    assert ended_cleanly(process, out, journaled(out))
    assert (out / "pareto.csv").read_bytes() == (uninterrupted / "pareto.csv").read_bytes()


@pytest.mark.parametrize("appends", [0, 5])
def test_a_full_disk_ends_the_run_and_loses_nothing(space, tmp_path, monkeypatch, appends):
    out = tmp_path / "study"
    original = JournalBackend.append_logs
    done = []

    def full(self, logs):
        if len(done) == appends:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done.append(logs)
        original(self, logs)

    with monkeypatch.context() as patched:
        patched.setattr(JournalBackend, "append_logs", full)
        with pytest.raises(StudyError, match=r"journal\.log: No space left.*--resume"):
            run(space, RunOptions(out=out))
    before = journaled(out) if appends else []
    resumed = run(space, RunOptions(out=out, resume=True))
    assert journaled(out)[: len(before)] == before
    assert len(journaled(out)) == len(resumed.result.records) == len(set(journaled(out)))
    assert not unfinished(out)


@pytest.mark.parametrize("call", ["fsync", "replace", "fdopen"])
def test_a_file_is_replaced_or_left_as_it_was(tmp_path, monkeypatch, call):
    path = tmp_path / "trials.csv"
    write_atomically(path, "old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(
            StudyError, match=r"cannot write .*trials\.csv: No space left.*--resume"
        ):
            write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_never_replaced(tmp_path):
    pipe, folder, link = (tmp_path / name for name in ("pipe", "folder", "link"))
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(pipe)
    before = sorted(tmp_path.iterdir())
    for path, kind in ((pipe, "pipe"), (folder, "folder"), (link, "pipe")):
        with pytest.raises(ConfigError, match=f"this is a {kind}"):
            write_atomically(path, "new")
    assert link.is_symlink()
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("path", ["/", "/dev/null", "/dev/stdout", "."])
def test_devices_and_roots_are_never_replaced(path):
    with pytest.raises(ConfigError, match="a file is expected"):
        write_atomically(Path(path), "new")


def test_an_interrupt_waits_for_the_file(tmp_path, monkeypatch):
    """It comes when the temporary file is there and nobody has noted its name yet."""
    path = tmp_path / "trials.csv"
    original = os.open

    def interrupting(*arguments):
        made = original(*arguments)
        if arguments[1] & os.O_CREAT:
            signal.raise_signal(signal.SIGINT)
        return made

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(os, "open", interrupting)
    try:
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, "new")
    finally:
        signal.signal(signal.SIGINT, former)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_and_its_name_are_flushed_to_the_disk(tmp_path, monkeypatch):
    flushed = []
    original = os.fsync

    def noting(handle):
        original(handle)
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))

    monkeypatch.setattr(os, "fsync", noting)
    write_atomically(tmp_path / "trials.csv", "new")
    assert len(flushed) == 2
    assert flushed[0].startswith(str(tmp_path / ".trials.csv."))
    assert flushed[1] == str(tmp_path)
