"""What programs do with a library: threads, forks, a running event loop, pickles, `python -O`."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
import os
import pickle
import subprocess
import sys

import pytest

import dse
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


def test_python_without_assertions_predicts_the_same(predicted):
    code = f"import dse; print(repr(dse.predict('dlrm_tiny', **{JOB}).iteration_time_s))"
    done = subprocess.run(
        [sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == predicted.iteration_time_s
