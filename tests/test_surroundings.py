"""What programs do with a library: threads, forks, a running event loop, pickles, `python -O`."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
import copy
import os
import pickle
import subprocess
import sys
import threading
import time

import pytest

import dse
from dse._io.writing import write_atomically
from dse._process.starting import starting
from dse.search import RunOptions, load_study, run
from tests.search.runs import QUICK_SPACE

JOB = {"platform": "h100_sxm", "world_size": 2, "global_batch_size": 65536}


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "quick.yaml"
    path.write_text(QUICK_SPACE)
    return path


@pytest.fixture(scope="module")
def predicted():
    return dse.predict("dlrm_tiny", **JOB)


def test_threads_predict_what_one_does(predicted):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: dse.predict("dlrm_tiny", **JOB), range(8)))
    assert all(each == predicted for each in found)


def test_studies_run_in_threads(space, tmp_path):
    whole = run(space, RunOptions(out=tmp_path / "whole", trials=6))
    with ThreadPoolExecutor(2) as pool:
        each = [RunOptions(out=tmp_path / str(number), trials=6) for number in range(2)]
        found = list(pool.map(lambda options: run(space, options), each))
    fronts = {study.directory.pareto.read_bytes() for study in found}
    assert fronts == {whole.directory.pareto.read_bytes()}


def in_threads(calls, act):
    """Calls `act` in several threads at once."""
    together = threading.Barrier(4)

    def repeat(_):
        together.wait()
        for _ in range(calls):
            act()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(repeat, range(4)))


def test_files_written_in_threads_leave_the_umask(tmp_path, monkeypatch):
    original = os.umask

    def slow(mask):
        former = original(mask)
        time.sleep(0.001)
        return former

    before = os.umask(0o027)
    monkeypatch.setattr(os, "umask", slow)
    try:
        in_threads(5, lambda: write_atomically(tmp_path / str(threading.get_ident()), "new"))
        assert os.umask(0o027) == 0o027
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
    finally:
        os.umask(before)


def test_processes_started_in_threads_leave_the_program_as_it_was():
    def start():
        with starting(b""):
            # Another thread has its turn.
            time.sleep(0.001)

    before = dict(os.environ), list(sys.path), sys.modules["__main__"]
    in_threads(20, start)
    assert (dict(os.environ), sys.path, sys.modules["__main__"]) == before


def test_processes_are_started_where_the_working_directory_was_deleted(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    # As in an interactive session.
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with starting(b""):
        assert "" not in os.environ["PYTHONPATH"].split(os.pathsep)


def test_a_fork_after_the_import_predicts(predicted):
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = dse.predict("dlrm_tiny", **JOB)
            os.write(theirs, repr(found.iteration_time_s).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        assert float(answer.read()) == predicted.iteration_time_s
    assert os.waitpid(child, 0)[1] == 0


def test_a_running_event_loop_is_no_matter(space, tmp_path, predicted):
    async def program():
        study = run(space, RunOptions(out=tmp_path / "study", trials=4))
        return dse.predict("dlrm_tiny", **JOB), study

    found, study = asyncio.run(program())
    assert found == predicted
    assert study.result.records


def test_results_are_pickled(space, tmp_path, predicted):
    study = run(space, RunOptions(out=tmp_path / "study", trials=4))
    assert pickle.loads(pickle.dumps(predicted)) == predicted
    again = pickle.loads(pickle.dumps(study))
    assert again.result == study.result == load_study(tmp_path / "study").result


def test_results_print_short_and_are_copied(space, tmp_path, predicted):
    study = run(space, RunOptions(out=tmp_path / "study", trials=4))
    job = dse.Job("dlrm_tiny", **JOB)
    for one in (
        dse.load_model("dlrm_tiny"),
        dse.load_platform("h100_sxm"),
        job,
        job.explain(),
        predicted,
        study.result,
        study.result.front[0],
        dse.load_study(study.directory.root).decision,
        dse.compare(study.directory.root, study.directory.root),
        dse.recommend("dlrm_tiny", target="1k samples/s", platforms=["h100_sxm"], world_sizes=[2]),
        dse.recommend("dlrm_tiny", target="1T samples/s", platforms=["h100_sxm"], world_sizes=[2]),
    ):
        text = repr(one)
        assert text.startswith(f"{type(one).__name__}(")
        assert len(text) < 350
        assert "\n" not in text
        assert repr(pickle.loads(pickle.dumps(one))) == repr(copy.deepcopy(one)) == text


def test_python_without_assertions_predicts_the_same(predicted):
    done = without("-O")
    assert float(done.stdout) == predicted.iteration_time_s


def test_python_without_docstrings_is_refused_for_what_needs_them():
    done = without("-OO")
    assert "OptionalDependencyError" in done.stderr.splitlines()[-1]
    assert "-OO" in done.stderr.splitlines()[-1]


def without(option):
    """Predicts with an option of Python."""
    code = f"import dse; print(repr(dse.predict('dlrm_tiny', **{JOB}).iteration_time_s))"
    return subprocess.run([sys.executable, option, "-c", code], capture_output=True, text=True)
