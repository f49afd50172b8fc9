"""What only Ray can do: workers that die one by one, a cluster elsewhere, a Ray of its own."""

from __future__ import annotations

import os
from pathlib import Path
import signal
import socket
import sys

import pytest

from dse.errors import ConfigError, OptionalDependencyError, WorkerError
from dse.search import RunOptions, TrialStatus, run
from dse.search.execute import RayExecutor
from dse.search.execute._ray_cluster import RayCluster
from dse.search.space import load_space
from tests.search.evaluators import Deadly, asked, begun
from tests.search.runs import needs_ray


def test_without_ray_the_error_names_the_extra(small_space, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionalDependencyError, match=r"\.\[ray\]"):
        run(small_space, RunOptions(executor="ray", out=tmp_path / "study"))
    assert not (tmp_path / "study").exists()


@needs_ray
def test_an_address_where_nobody_is_leaves_no_study(small_space, tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            options = RunOptions(executor="ray", address=address, out=tmp_path / "study")
            with pytest.raises(WorkerError, match="nobody answers at the address"):
                run(small_space, options)
    with pytest.raises(ConfigError, match="expected host:port"):
        run(small_space, RunOptions(executor="ray", address="nowhere", out=tmp_path / "study"))
    assert not (tmp_path / "study").exists()


# --- workers that die ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def local_ray():
    # Workers have to find this module by its name.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
    with RayCluster("", 2):
        yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def deadly(small_space, tmp_path):
    folder = tmp_path / "begun"
    folder.mkdir()

    def make(**settings):
        return Deadly(load_space(small_space), 0, folder, **settings)

    return make


@needs_ray
@pytest.mark.slow
def test_a_worker_that_dies_loses_nothing_and_repeats_only_what_it_held(local_ray, deadly):
    context = deadly(lives=2)
    with RayExecutor(context, 2) as executor:
        records = list(executor.run(asked(40, deadly={7})))
        again = list(executor.run(asked(3)))
    assert sorted(record.number for record in records) == list(range(40))
    assert sorted(record.number for record in again) == [0, 1, 2]
    counts = begun(context.folder)
    assert counts[7] == 3
    # A third worker and a fourth one replaced those that died.
    assert len({record.reason for record in records}) <= 4


@needs_ray
@pytest.mark.slow
def test_a_worker_killed_between_answers_is_replaced(local_ray, deadly):
    with RayExecutor(deadly(), 2) as executor:
        answers = executor.run(asked(60))
        first = next(answers)
        os.kill(int(first.reason), signal.SIGKILL)
        rest = list(answers)
    assert sorted(record.number for record in [first, *rest]) == list(range(60))


@needs_ray
@pytest.mark.slow
def test_what_kills_every_worker_fails_and_the_others_are_answered(local_ray, deadly):
    context = deadly(lives=1000)
    with RayExecutor(context, 2) as executor:
        records = sorted(executor.run(asked(12, deadly={2})), key=lambda record: record.number)
    assert [record.number for record in records] == list(range(12))
    failed = [record for record in records if record.status is TrialStatus.FAILED]
    assert [record.number for record in failed] == [2]
    assert failed[0].parameters == (("deadly", True),)
    assert "3 workers died, each while evaluating it" in failed[0].reason
    # A death that Ray tells of late may have let one more worker begin it.
    assert begun(context.folder)[2] in (3, 4)


@needs_ray
@pytest.mark.slow
def test_workers_that_do_not_start_say_why(local_ray, deadly):
    with (
        pytest.raises(WorkerError, match=r"3 workers in a row.*No module named 'dse_plugin'"),
        RayExecutor(deadly(start_fails=True), 2) as executor,
    ):
        list(executor.run(asked(1)))


@needs_ray
@pytest.mark.slow
def test_more_workers_than_processors_go_on_with_those_there_are(local_ray, deadly):
    with RayExecutor(deadly(), 5) as executor:
        records = list(executor.run(asked(10)))
    assert len(records) == 10
    # The reason is the process that evaluated it.
    assert len({record.reason for record in records}) <= 2


@needs_ray
@pytest.mark.slow
def test_no_free_processor_is_reported(local_ray, deadly):
    import ray

    @ray.remote(num_cpus=2)
    class Occupant:
        def is_here(self):
            return True

    occupant = Occupant.remote()
    assert ray.get(occupant.is_here.remote())
    try:
        with (
            RayExecutor(deadly(), 1, start_timeout_s=1.0) as executor,
            pytest.raises(WorkerError, match="started no worker in 1 s"),
        ):
            list(executor.run(asked(1)))
    finally:
        ray.kill(occupant)


@needs_ray
@pytest.mark.slow
def test_a_connection_that_is_there_is_kept_and_takes_no_address(local_ray, deadly):
    import ray

    with RayExecutor(deadly(), 1) as executor:
        assert len(list(executor.run(asked(1)))) == 1
    assert ray.is_initialized()
    with pytest.raises(ConfigError, match="connected to Ray already"):
        RayCluster("127.0.0.1:6379", 1).__enter__()
