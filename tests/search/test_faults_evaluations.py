"""Candidates that raise or kill, workers that do not start: the study goes on, and says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dse.cli import main
from dse.errors import DseError, WorkerError
from dse.search import RunOptions, TrialStatus, load_study, run
from dse.search._proposals import Proposal
from dse.search.evaluate import ConfigurationEvaluator
from dse.search.execute import ProcessExecutor, SerialExecutor
from dse.search.execute._failures import MAX_FAILED_FIRST
from dse.search.space import SamplerName, load_space
from tests.conftest import ROOT
from tests.search.evaluators import Deadly, Raising, asked, begun
from tests.search.runs import QUICK_SPACE, needs_proc, wait_until_gone


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "quick.yaml"
    path.write_text(QUICK_SPACE)
    return path


# --- what executors do with it ------------------------------------------------------------

RAISES = {
    "division": "ZeroDivisionError: ",
    "array": "ValueError: operands could not be broadcast together",
    "memory": "MemoryError",
    "recursion": "RecursionError: ",
    "unpicklable": "UnpicklableError: <function",
    "reject": "as it should be",
}


def questions():
    return [Proposal(number, (("raises", name),)) for number, name in enumerate(RAISES)]


def test_whatever_an_evaluation_raises_is_a_record_with_its_traceback(space):
    context = Raising(load_space(space), 0)
    with SerialExecutor(context) as executor:
        records = list(executor.run(questions()))
    for record, (name, reason) in zip(records, RAISES.items(), strict=True):
        assert record.reason.startswith(reason)
        assert record.parameters == (("raises", name),)
        assert "\n" not in record.reason
        if name == "reject":
            assert record.status is TrialStatus.INFEASIBLE
            assert not record.traceback
        else:
            assert record.status is TrialStatus.FAILED
            assert record.traceback.startswith("Traceback (most recent call last):\n")
            assert "in _evaluate" in record.traceback
            assert reason in record.traceback.rstrip().splitlines()[-1]
            assert len(record.traceback) < 20_000
    with ProcessExecutor(context, 2) as executor:
        elsewhere = sorted(executor.run(questions()), key=lambda record: record.number)

    def comparable(record):
        # A function's name has its address in it.
        return record if record.number != 4 else record.number

    assert [comparable(r) for r in elsewhere] == [comparable(r) for r in records]


def test_a_limit_that_raises_lets_the_configuration_pass(space):
    evaluator = Raising(load_space(space), 0).make_evaluator()
    with pytest.raises(KeyError):
        evaluator.reject({"raises": "reject"})
    assert evaluator.rejection({"raises": "reject"}) == ""


@pytest.fixture
def deadly(space, tmp_path):
    folder = tmp_path / "begun"
    folder.mkdir()

    def make(**settings):
        return Deadly(load_space(space), 0, folder, **settings)

    return make


def test_a_worker_process_that_dies_loses_nothing_and_repeats_only_what_it_held(deadly):
    context = deadly(lives=2)
    with ProcessExecutor(context, 2) as executor:
        records = list(executor.run(asked(20, deadly={7})))
        again = list(executor.run(asked(3)))
    assert sorted(record.number for record in records) == list(range(20))
    assert all(record.status is TrialStatus.INFEASIBLE for record in records)
    assert sorted(record.number for record in again) == [0, 1, 2]
    assert begun(context.folder)[7] == 3
    # A third worker and a fourth one replaced those that died.
    assert len({record.reason for record in records}) <= 4


@pytest.mark.slow
def test_what_kills_every_worker_process_fails_and_the_others_are_answered(deadly):
    context = deadly(lives=1000)
    with ProcessExecutor(context, 2) as executor:
        records = sorted(executor.run(asked(12, deadly={2})), key=lambda record: record.number)
    assert [record.number for record in records] == list(range(12))
    failed = [record for record in records if record.status is TrialStatus.FAILED]
    assert [record.number for record in failed] == [2]
    assert failed[0].parameters == (("deadly", True),)
    assert "3 workers died, each while evaluating it" in failed[0].reason
    assert begun(context.folder)[2] == 3


@pytest.mark.slow
def test_worker_processes_that_do_not_start_say_why(deadly):
    with (
        pytest.raises(WorkerError, match=r"3 worker processes in a row.*No module.*dse_plugin"),
        ProcessExecutor(deadly(start_fails=True), 2) as executor,
    ):
        list(executor.run(asked(1)))


UNGUARDED = """\
from pathlib import Path
import dse
dse.run("quick.yaml", trials=6, jobs=2, out=Path("study"))
"""


#: Evaluations need a class that only the script has.
UNGUARDED_CONTEXT = """
from dse.search.execute import ProcessExecutor
from dse.search._proposals import Proposal

class Context:
    def make_evaluator(self):
        raise NotImplementedError

with ProcessExecutor(Context(), 2) as executor:
    list(executor.run([Proposal(0, ())]))
"""


def run_script(folder, text, *, from_file):
    (folder / "script.py").write_text(text)
    return subprocess.run(
        [sys.executable, "script.py" if from_file else "-"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("from_file", [True, False])
@pytest.mark.usefixtures("space")
def test_a_script_needs_no_guard(tmp_path, from_file):
    done = run_script(tmp_path, UNGUARDED, from_file=from_file)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "study" / "trials.csv").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("from_file", [True, False])
def test_a_script_that_evaluations_need_has_to_have_a_guard(tmp_path, from_file):
    done = run_script(tmp_path, UNGUARDED_CONTEXT, from_file=from_file)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "3 worker processes in a row did not start" in last
    assert 'under `if __name__ == "__main__":`' in last


@pytest.mark.slow
@needs_proc
def test_an_abandoned_round_leaves_no_answers_and_no_workers(deadly):
    with ProcessExecutor(deadly(), 2) as executor:
        begun_round = executor.run(asked(40))
        next(begun_round)
        begun_round.close()
        # Numbers of the new round are others than those of the old one.
        again = executor.run([Proposal(100, (("deadly", False),))])
        assert [record.number for record in again] == [100]
        processes = executor.process_ids
        assert len(processes) == 2
    assert not wait_until_gone(processes)


# --- what a run does with it --------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch):
    """Makes evaluations of some platforms raise; returns what undoes it."""
    original = ConfigurationEvaluator._evaluate

    def break_for(*platforms):
        def evaluate(self, number, parameters):
            if parameters["platform"] in platforms:
                raise RuntimeError(f"cannot model {parameters['platform']}\nsecond line")
            return original(self, number, parameters)

        monkeypatch.setattr(ConfigurationEvaluator, "_evaluate", evaluate)

    return break_for


def test_a_failed_candidate_does_not_stop_the_study(space, tmp_path, broken):
    broken("h100_sxm")
    out = tmp_path / "study"
    study = run(space, RunOptions(out=out))
    of_platform = {
        name: {
            record.status
            for record in study.result.records
            if dict(record.parameters)["platform"] == name
            and record.status is not TrialStatus.REJECTED
        }
        for name in ("h100_sxm", "a100_sxm_80")
    }
    assert of_platform["h100_sxm"] == {TrialStatus.FAILED}
    assert TrialStatus.FAILED not in of_platform["a100_sxm_80"]
    loaded = load_study(out).result
    assert loaded.records == study.result.records
    failed = [record for record in loaded.records if record.status is TrialStatus.FAILED]
    assert failed[0].reason == "RuntimeError: cannot model h100_sxm"
    assert "second line" in failed[0].traceback
    text = study.directory.failures.read_text()
    assert text.count("Traceback (most recent call last)") == len(failed)
    assert "platform=h100_sxm" in text
    assert "RuntimeError: cannot model h100_sxm" in study.directory.trials.read_text()


def test_resuming_gives_failed_candidates_another_chance(space, tmp_path, broken):
    out = tmp_path / "study"
    broken("h100_sxm")
    failed = run(space, RunOptions(out=out, sampler=SamplerName.RANDOM)).result
    broken()
    resumed = run(space, RunOptions(out=out, resume=True)).result
    whole = run(space, RunOptions(out=tmp_path / "whole", sampler=SamplerName.RANDOM)).result
    assert any(record.status is TrialStatus.FAILED for record in failed.records)
    assert resumed.records == whole.records == load_study(out).result.records
    assert not (out / "failures.txt").exists()


def test_a_run_in_which_everything_fails_gives_up_early(space, tmp_path, broken):
    broken("h100_sxm", "a100_sxm_80", "v100_dgx2")
    space.write_text(space.read_text().replace("trials: 16", "trials: 1000"))
    wider = "[1024, 2048, 4096, 8192, 16384, 32768, 65536]"
    space.write_text(space.read_text().replace("[16384, 65536]", wider))
    out = tmp_path / "study"
    words = rf"the first {MAX_FAILED_FIRST} evaluations all failed, trial \d+ \(platform=.*\)"
    with pytest.raises(WorkerError, match=words + " with: RuntimeError: cannot model "):
        run(space, RunOptions(out=out))
    kept = [r for r in load_study(out).result.records if r.status is TrialStatus.FAILED]
    assert len(kept) == MAX_FAILED_FIRST


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["dse", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_the_command_says_how_many_failed_and_where_to_look(
    space, tmp_path, broken, monkeypatch, capfd
):
    broken("h100_sxm")
    out = tmp_path / "study"
    assert not command(monkeypatch, "run", space, "--out", out)
    count = sum(r.status is TrialStatus.FAILED for r in load_study(out).result.records)
    words = " ".join(capfd.readouterr().err.split())
    assert f"{count} evaluations failed" in words
    assert "failures.txt" in words.replace(" ", "")
    assert "Traceback" not in words
    assert not command(monkeypatch, "run", space, "--out", tmp_path / "json", "--json")
    assert json.loads(capfd.readouterr().out)["counts"]["failed"] == count


def test_a_what_if_in_which_the_front_fails_says_why(space, tmp_path, monkeypatch, capfd):
    def fail(self, configuration):
        raise RuntimeError("cannot model it")

    out, changed = tmp_path / "study", tmp_path / "changed"
    best = run(space, RunOptions(out=out)).result.front[0]
    monkeypatch.setattr(ConfigurationEvaluator, "predict", fail)
    arguments = ["--set", "memory_bandwidth=+20%", "--out", changed]
    command(monkeypatch, "whatif", out, *arguments)
    found = {record.number: record for record in load_study(changed).result.records}
    assert found[best.number].status is TrialStatus.FAILED
    assert f"#{best.number} leaves the front: RuntimeError" in capfd.readouterr().out


def test_debug_stops_at_the_first_failure_with_its_traceback(space, tmp_path, broken, monkeypatch):
    broken("h100_sxm")
    arguments = ["--debug", "run", str(space), "--out", str(tmp_path / "study")]
    monkeypatch.setattr(sys, "argv", ["dse", *arguments])
    with pytest.raises(DseError, match=r"(?s)platform=h100_sxm.*Traceback.*in evaluate.*second"):
        main()
