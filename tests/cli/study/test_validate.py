"""`dse validate`: the closed loop from a search to real runs, and what the command promises."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dse.cli._app import app
from dse.errors import DseError
from dse.search import load_study
from tests.cli.running import dse, process
from tests.validation.studies import Oracle, make_study, write_space

pytest.importorskip("torch")


def validated(folder, *arguments):
    """Runs the best of a study for real and checks what must hold whatever the times are."""
    command = ["validate", folder / "study", "--ranks", 2, "--device", "cpu", *arguments, "--json"]
    for budget in ("15s", "60s", "240s"):
        done = process(*command, "--budget", budget)
        if done.returncode != 2:  # else starting the ranks took too long, on a busy machine
            break
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    agreement = found["agreement"]
    figures = {name: agreement[name] for name in ("kendall_tau", "top1_regret", "success")}
    print(found["sentence"], figures)  # noqa: T201
    # A busy machine may leave too few rounds of the budget to decide anything.
    decided = all(one["measured_low_s"] is not None for one in found["candidates"])
    assert done.returncode == (0 if decided and agreement["success"] else 1)
    assert found["schema_version"] == 1
    if decided:
        assert agreement["success"] == (agreement["top1_regret"] <= 0.1)
    else:
        assert set(figures.values()) == {None}
    assert found["setting"]["mode"] == "real"
    for one in found["candidates"]:
        assert not decided or len(one["samples_s"]) >= 6
        if decided:
            assert one["measured_low_s"] <= one["measured_s"] <= one["measured_high_s"]
        assert one["predicted_low_s"] <= one["predicted_s"] <= one["predicted_high_s"]
    measured = {one["number"]: one["measured_s"] / one["run_batch_size"]
                for one in found["candidates"]}  # fmt: skip
    assert agreement["fastest"] == min(measured, key=measured.get)
    assert json.loads((folder / "study" / "validation.json").read_text()) == found
    assert "Run for real" in (folder / "study" / "report.html").read_text()
    return found


@pytest.mark.slow
def test_the_whole_loop_is_closed(tmp_path):
    ran = dse("run", write_space(tmp_path), "--out", tmp_path / "study")
    assert ran.returncode == 0, ran.stderr
    found = validated(tmp_path, "--top", 2, "--random", 2)
    assert len(found["candidates"]) == 4
    assert found["agreement"]["pairs"] == 6


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("validate"))


@pytest.fixture
def invoke(study, monkeypatch):
    """Runs the command in this process, with times by a rule."""

    def call(time_of, *arguments, **how):
        monkeypatch.setattr("dse.validation.study._session.measure", Oracle(time_of, **how))
        command = ["validate", str(study.directory.root), "--ranks", "2", "--device", "cpu"]
        return CliRunner().invoke(app, [*command, *arguments])

    return call


def test_success_and_failure_have_their_exit_codes(study, invoke):
    by_number = {str(record.number): record for record in study.result.records}

    def as_predicted(one):
        return by_number[one.name].prediction.iteration_time_s

    done = invoke(as_predicted)
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert "Kendall τ 1.00" in words
    assert words.rstrip().endswith(".")
    assert "Take candidate" in words
    assert load_study(study.directory.root).result.validation.agreement.success
    # The larger the prediction the shorter the run: the favourite is the slowest.
    reverse = invoke(lambda one: one.problem.global_batch_size**2 / as_predicted(one))
    assert reverse.exit_code == 1
    assert "and not" in " ".join(reverse.output.split())


def test_an_interrupt_keeps_what_there_is(study, invoke):
    done = invoke(lambda one: 1.0, stop_after=1)
    assert done.exit_code == 130
    kept = load_study(study.directory.root).result.validation
    assert kept.setting.interrupted
    assert all(len(one.samples_s) == 1 for one in kept.candidates)


def test_too_few_rounds_are_no_success(study, invoke):
    by_number = {str(record.number): record for record in study.result.records}
    done = invoke(lambda one: by_number[one.name].prediction.iteration_time_s, rounds=5)
    assert done.exit_code == 1
    kept = load_study(study.directory.root).result.validation
    # The medians agree with the predictions, but have no intervals.
    assert not kept.decided
    assert (kept.agreement.success, kept.agreement.kendall_tau) == (None, None)
    words = " ".join(done.output.split())
    for said in (
        "measured fastest: undecided",
        "rounds measured 5 of at least 6",
        "Kendall τ undecided",
        "top-1 regret undecided",
        "within 10 % of the fastest undecided",
    ):
        assert said in words
    assert all(len(one.samples_s) == 5 for one in kept.candidates)


def test_one_candidate_has_no_rank(invoke):
    done = invoke(lambda one: 1.0, "--top", "1")
    assert done.exit_code == 0
    words = " ".join(done.output.split())
    assert "nothing can be said of its rank" in words
    for figure in ("Kendall τ", "regret", "within 10 %", "ties"):
        assert figure not in words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--top", "0"], "--random 0"),
        (["--budget", "soon"], "--budget: expected a time"),
        (["--budget", "0 s"], "--budget: expected more than 0"),
        (["--platform", "no_such"], "no_such"),
    ],
)
def test_bad_input_says_what_was_expected(study, arguments, words):
    done = CliRunner().invoke(app, ["validate", str(study.directory.root), *arguments])
    assert isinstance(done.exception, DseError)
    assert words in str(done.exception)


def test_a_folder_without_a_study_is_bad_input(tmp_path):
    done = dse("validate", tmp_path)
    assert done.returncode == 2
    assert "is not a study directory" in done.stderr
    assert "Traceback" not in done.stderr
