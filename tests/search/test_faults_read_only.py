"""A study that nobody may write to: it is read as it is, and what would write says so at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dse.cli import main
from dse.search import RunOptions, load_study, run
from dse.search.evaluate import ConfigurationEvaluator
from tests.search.runs import QUICK_SPACE


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "quick.yaml"
    path.write_text(QUICK_SPACE)
    return path


@pytest.fixture
def study(space, tmp_path):
    return run(space, RunOptions(out=tmp_path / "study"))


@pytest.fixture
def seal():
    """Makes a folder read-only; for root, whom permissions do not bind, by a mount."""
    sealed = []

    def mount(*arguments):
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode

    def close(folder):
        if os.geteuid() != 0:
            for path in (folder, *folder.rglob("*")):
                path.chmod(path.stat().st_mode & ~0o222)
        elif mount("--bind", folder, folder):
            pytest.skip("a folder cannot be mounted read-only here")
        else:
            sealed.append(folder)
            assert mount("-o", "remount,ro,bind", folder) == 0

    yield close
    for folder in sealed:
        subprocess.run(["umount", folder], check=True)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def command(monkeypatch, capfd, *arguments):
    """Returns the exit code of a command and what it printed."""
    monkeypatch.setattr(sys, "argv", ["dse", *map(str, arguments)])
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    printed = capfd.readouterr()
    return code, printed.out, printed.err


def is_one_clean_line(messages):
    return messages.startswith("error: cannot write ") and messages.count("\n") == 1


@pytest.mark.parametrize("torn", [b"", b'{"op_code":4,"wor'], ids=["whole", "torn"])
def test_reading_needs_no_writing(study, seal, monkeypatch, capfd, torn):
    root = study.directory.root
    with study.directory.journal.open("ab") as file:
        file.write(torn)
    before = contents(root)
    seal(root)
    assert load_study(root).result.records == study.result.records
    number = study.result.front[0].number
    for form in ("json", "yaml", "torchrec"):
        arguments = ["export", root, "--candidate", number, "--format", form]
        code, out, err = command(monkeypatch, capfd, *arguments)
        assert code == 0, err
        assert out
    assert contents(root) == before


def test_reading_writes_nothing_where_it_could(study):
    root = study.directory.root
    with study.directory.journal.open("ab") as file:
        file.write(b'{"op_code":4,"wor')
    before = contents(root)
    assert load_study(root).result.records == study.result.records
    assert contents(root) == before


def test_writing_the_page_says_what_it_cannot_write(study, seal, monkeypatch, capfd):
    seal(study.directory.root)
    code, out, err = command(monkeypatch, capfd, "report", study.directory.root)
    assert code == 2
    assert not out
    assert is_one_clean_line(err)
    assert "report.html: " in err


@pytest.mark.parametrize("executor", ["serial", pytest.param("process", marks=pytest.mark.slow)])
def test_resuming_says_so_before_it_evaluates(space, study, seal, monkeypatch, capfd, executor):
    def evaluate(self, number, parameters):
        raise AssertionError("evaluated")

    monkeypatch.setattr(ConfigurationEvaluator, "_evaluate", evaluate)
    root = study.directory.root
    before = contents(root)
    seal(root)
    arguments = ["run", space, "--out", root, "--resume", "--trials", 40, "--jobs", 2]
    code, out, err = command(monkeypatch, capfd, *arguments, "--executor", executor)
    assert code == 2
    assert not out
    assert is_one_clean_line(err)
    assert contents(root) == before


def test_a_journal_that_may_not_be_appended_to_is_known_before_it_evaluates(
    space, study, monkeypatch, capfd, seal, tmp_path
):
    evaluated = []
    monkeypatch.setattr(
        ConfigurationEvaluator, "_evaluate", lambda *arguments: evaluated.append(1)
    )
    journal = study.directory.journal
    if os.geteuid() == 0:
        # A file can be mounted like a folder.
        seal(journal)
    else:
        journal.chmod(0o444)
    arguments = ["run", space, "--out", study.directory.root, "--resume", "--trials", 40]
    code, _, err = command(monkeypatch, capfd, *arguments)
    assert code == 2
    assert is_one_clean_line(err)
    assert "journal.log: " in err
    assert not evaluated
