"""What all executors have in common, and what becomes of the work of those that die."""

from __future__ import annotations

from dataclasses import asdict, replace
import importlib.util
import os
import signal

import pytest

from dse.search import RunOptions, TrialStatus, read_inputs, run
from dse.search._proposals import Proposal
from dse.search.execute import ProcessExecutor, SerialExecutor
from dse.search.execute._executor import make_executor
from tests.conftest import SMALL_SPACE
from tests.search.traces import write_job

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install '.[ray]'"
)
EXECUTORS = ["serial", "process", pytest.param("ray", marks=[needs_ray, pytest.mark.slow])]


@pytest.fixture(scope="module")
def local_ray():
    """One local Ray for the tests of this file: starting one takes seconds."""
    from dse.search.execute._ray_cluster import RayCluster

    with RayCluster("", 2):
        yield


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "small.yaml"
    path.write_text(SMALL_SPACE)
    return read_inputs(path).context


@pytest.fixture(scope="module", params=EXECUTORS)
def name(request):
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    return request.param


@pytest.fixture
def executor(name, context):
    with make_executor(name, context, 2) as chosen:
        yield chosen


def proposals(context, worlds):
    first = {p.name: p.choices[0] for p in context.space.parameters}
    return [
        Proposal(number, tuple({**first, "world_size": world}.items()))
        for number, world in enumerate(worlds)
    ]


def test_executors_answer_every_proposal_alike(executor, context):
    asked = proposals(context, [2, 8, 2])
    records = sorted(executor.run(asked), key=lambda record: record.number)
    expected = [context.make_evaluator().evaluate(p.number, dict(p.parameters)) for p in asked]
    assert records == expected
    assert replace(records[0], number=2) == records[2]
    assert list(executor.run([])) == []
    # What is impossible is rejected, and an evaluation that raises is a failed record.
    (record,) = executor.run(proposals(context, [12]))
    assert record.status is TrialStatus.REJECTED
    assert "world size 12" in record.reason
    unknown = tuple({**dict(asked[0].parameters), "platform": "none_such"}.items())
    (record,) = executor.run([Proposal(0, unknown)])
    assert record.status is TrialStatus.FAILED
    assert "none_such" in record.reason


def test_what_is_not_wanted_any_more_is_not_evaluated(executor, context):
    asked = proposals(context, [2, 8] * 5)
    taken = []
    for record in executor.run(asked, lambda proposal: not taken):
        taken.append(record.number)
    # Two workers hold at most two each when the first answer comes.
    assert taken
    assert set(taken) <= {0, 1, 2, 3}
    assert list(executor.run(asked, lambda _: False)) == []
    odd = executor.run(asked, lambda proposal: proposal.number % 2 == 1)
    assert sorted(record.number for record in odd) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("name", EXECUTORS[1:], indirect=True)
def test_one_seed_gives_one_front_with_any_executor(name, small_space, tmp_path):
    text = small_space.read_text()
    small_space.write_text(text.replace("improvement_rounds: 0", "improvement_rounds: 2"))
    study = run(small_space, RunOptions(executor=name, jobs=2, out=tmp_path / "study", seed=3))
    alone = run(small_space, RunOptions(executor="serial", out=tmp_path / "alone", seed=3))
    assert study.directory.pareto.read_bytes() == alone.directory.pareto.read_bytes()
    assert study.result.records == alone.result.records


@pytest.mark.slow
def test_a_trace_is_read_alike_where_its_arrays_are_read_only(name, tmp_path):
    space = write_job(tmp_path)
    study = run(space, RunOptions(executor=name, jobs=2, out=tmp_path / "study"))
    alone = run(space, RunOptions(executor="serial", out=tmp_path / "alone"))
    # Unknown figures are NaN, which equals nothing.
    assert repr(asdict(study.result)["records"]) == repr(asdict(alone.result)["records"])
    assert all(record.status is not TrialStatus.FAILED for record in study.result.records)


def test_one_job_needs_no_process(context):
    assert isinstance(make_executor("process", context, 1), SerialExecutor)
    assert isinstance(make_executor("process", context, 2), ProcessExecutor)
    assert isinstance(make_executor("serial", context, 2), SerialExecutor)


@pytest.mark.slow
def test_a_killed_worker_process_loses_nothing(context):
    with ProcessExecutor(context, 2) as executor:
        records = executor.run(proposals(context, [2, 8, 2, 8]))
        first = next(records)
        for pid in executor.process_ids:
            os.kill(pid, signal.SIGKILL)
        rest = list(records)
    assert sorted(r.number for r in [first, *rest]) == [0, 1, 2, 3]
    assert all(record.status is TrialStatus.FEASIBLE for record in rest)
