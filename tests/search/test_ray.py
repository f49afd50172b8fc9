"""What only Ray can do: workers that die one by one, a cluster elsewhere, a Ray of its own."""

from __future__ import annotations

from dataclasses import dataclass
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from dse.errors import ConfigError, OptionalDependencyError, WorkerError
from dse.search import RayExecutor, RunOptions, TrialStatus, run
from dse.search._evaluate import EvaluationContext, Evaluator, without_answer
from dse.search._proposer import Proposal
from dse.search._ray_cluster import RayCluster
from dse.space import load_space

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.space import ParameterValue


def test_without_ray_the_error_names_the_extra(small_space, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionalDependencyError, match=r"dse\[ray\]"):
        run(small_space, RunOptions(executor="ray", out=tmp_path / "study"))
    assert not (tmp_path / "study").exists()


def test_an_address_where_nobody_is_leaves_no_study(small_space, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'dse[ray]'")
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


@dataclass(frozen=True)
class Deadly(EvaluationContext):
    """Evaluations that say where they ran, and may kill their worker as memory running out does.

    Attributes:
        folder: Gains a file for each evaluation that was begun.
        lives: Evaluations that each deadly configuration survives not.
        start_fails: Whether workers cannot even start.
    """

    folder: Path
    lives: int = 0
    start_fails: bool = False

    def make_evaluator(self) -> DeadlyEvaluator:
        if self.start_fails:
            raise ModuleNotFoundError("No module named 'dse_plugin'")
        return DeadlyEvaluator(self)


class DeadlyEvaluator(Evaluator):
    def __init__(self, context: Deadly) -> None:
        super().__init__(context.space)
        self._context = context

    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        return ""

    def _evaluate(self, number, parameters):
        begun = len(list(self._context.folder.glob(f"{number}-*")))
        (self._context.folder / f"{number}-{begun}").touch()
        if parameters["deadly"] and begun < self._context.lives:
            os.kill(os.getpid(), signal.SIGKILL)
        return without_answer(number, TrialStatus.INFEASIBLE, str(os.getpid()), parameters)


@pytest.fixture(scope="module")
def local_ray():
    pytest.importorskip("ray", reason="ray is not installed: pip install 'dse[ray]'")
    # Workers have to find this module by its name.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    with RayCluster("", 2):
        yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def asked(count, deadly=()):
    return [Proposal(number, (("deadly", number in deadly),)) for number in range(count)]


def begun(folder):
    """How often each number was begun."""
    counts = {}
    for path in folder.iterdir():
        number = int(path.name.split("-")[0])
        counts[number] = counts.get(number, 0) + 1
    return counts


def note_numbers(records, numbers):
    for record in records:
        numbers.add(record.number)


@pytest.fixture
def deadly(small_space, tmp_path):
    folder = tmp_path / "begun"
    folder.mkdir()

    def make(**settings):
        return Deadly(load_space(small_space), 0, folder, **settings)

    return make


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


def test_a_worker_killed_between_answers_is_replaced(local_ray, deadly):
    with RayExecutor(deadly(), 2) as executor:
        answers = executor.run(asked(60))
        first = next(answers)
        os.kill(int(first.reason), signal.SIGKILL)
        rest = list(answers)
    assert sorted(record.number for record in [first, *rest]) == list(range(60))


def test_what_kills_every_worker_is_named_after_all_others_are_answered(local_ray, deadly):
    numbers = set()
    context = deadly(lives=1000)
    with (
        pytest.raises(WorkerError, match=r"3 workers died.*trial 2 \(deadly=True\)"),
        RayExecutor(context, 2) as executor,
    ):
        note_numbers(executor.run(asked(12, deadly={2})), numbers)
    assert numbers == set(range(12)) - {2}
    assert begun(context.folder)[2] == 3


def test_workers_that_do_not_start_say_why(local_ray, deadly):
    with (
        pytest.raises(WorkerError, match=r"3 workers in a row.*No module named 'dse_plugin'"),
        RayExecutor(deadly(start_fails=True), 2) as executor,
    ):
        list(executor.run(asked(1)))


def test_more_workers_than_processors_go_on_with_those_there_are(local_ray, deadly):
    with RayExecutor(deadly(), 5) as executor:
        records = list(executor.run(asked(10)))
        assert len(executor._workers) <= 2
    assert len(records) == 10


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


def test_a_connection_that_is_there_is_kept_and_takes_no_address(local_ray, deadly):
    import ray

    with RayExecutor(deadly(), 1) as executor:
        assert len(list(executor.run(asked(1)))) == 1
    assert ray.is_initialized()
    with pytest.raises(ConfigError, match="connected to Ray already"):
        RayCluster("127.0.0.1:6379", 1).__enter__()


# --- a Ray of its own ---------------------------------------------------------------------


def processes():
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def session_of(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see all processes")
def test_an_interrupt_leaves_a_study_and_no_process(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'dse[ray]'")
    out = tmp_path / "study"
    command = [sys.executable, "-m", "dse", "run", "dlrm_sharding", "--trials", "100000"]
    command += ["--executor", "ray", "--jobs", "2", "--out", str(out)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    journal = out / "journal.log"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and journal.read_bytes().count(b'"status":"') >= 5:
            break
        time.sleep(0.05)
    # As a terminal does it: everyone in the process group.
    os.killpg(process.pid, signal.SIGINT)
    _, messages = process.communicate(timeout=120)
    assert process.returncode == 130, messages
    assert "interrupted; continue with" in messages
    assert "Traceback" not in messages
    assert not [pid for pid in processes() if session_of(pid) == process.pid]
    assert (out / "pareto.csv").exists()
