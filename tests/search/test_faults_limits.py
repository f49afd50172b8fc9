"""Limits of the system: one line that says which, and nothing left behind."""

from __future__ import annotations

import os
import resource
import sys

import pytest

from dse.launch import _group
from dse.search.execute import _process
from tests.search.runs import QUICK_SPACE, Command
from tests.validation.studies import make_study


def no_forks():
    _process.PRELOADED = _group.PRELOADED = ["tests.search.no_forks"]


def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))


def little_memory():
    # As a process that has not imported it yet; the server of these forks has.
    for name in [one for one in sys.modules if one.partition(".")[0] == "torch"]:
        del sys.modules[name]
    resource.setrlimit(resource.RLIMIT_AS, (7 * 10**8, 7 * 10**8))


def one_line(command, words):
    code, messages = command.join()
    assert code == 2
    assert messages.count("\n") == 1
    assert messages.startswith("error: ")
    assert words in messages


@pytest.mark.parametrize(
    ("before", "words"),
    [(no_forks, "ulimit -u"), (few_files, "ulimit -n")],
    ids=["forks", "files"],
)
def test_a_run_that_gets_no_workers_says_which_limit(tmp_path, before, words):
    (tmp_path / "quick.yaml").write_text(QUICK_SPACE)
    arguments = ["run", "quick.yaml", "--jobs", 2, "--out", "study"]
    one_line(Command(tmp_path / "messages", *arguments, cwd=tmp_path, before=before), words)
    assert not (tmp_path / "study" / "run.lock").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "words"),
    [(no_forks, "ulimit -u"), (little_memory, "ulimit -v")],
    ids=["forks", "memory"],
)
def test_a_validation_that_gets_no_ranks_says_which_limit(tmp_path, before, words):
    pytest.importorskip("torch")
    study = make_study(tmp_path).directory.root
    files = {name: (study / name).read_bytes() for name in os.listdir(study) if "." in name}
    arguments = ["validate", study, "--top", 1, "--budget", "1s", "--device", "cpu"]
    one_line(Command(tmp_path / "messages", *arguments, before=before), words)
    assert {name: (study / name).read_bytes() for name in files} == files
    assert sorted(files) == sorted(name for name in os.listdir(study) if "." in name)
