from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

import dse
from dse.errors import ConfigError, OptionalDependencyError, StudyError
from dse.search import (
    RunOptions,
    TrialStatus,
    load_study,
    read_inputs,
    run,
    stored_platform,
    stored_workload,
)
from dse.search.evaluate import ConfigurationEvaluator
from dse.search.propose._genetic_study import GeneticStudy
from dse.search.propose._proposer import Proposer
from dse.search.space import SamplerName, load_space
from dse.search.storage._journal import Journal
from tests.conftest import SMALL_SPACE
from tests.search.files import without_checksums


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study, to read only."""
    folder = tmp_path_factory.mktemp("finished")
    space = folder / "small.yaml"
    space.write_text(SMALL_SPACE)
    return run(space, RunOptions(out=folder / "study"))


@pytest.fixture
def study(finished, tmp_path):
    """A copy of a finished study."""
    shutil.copytree(finished.directory.root, tmp_path / "study")
    return load_study(tmp_path / "study")


def test_a_run_writes_a_study(study):
    files = {path.name for path in study.directory.root.iterdir()}
    expected = {"study.yaml", "journal.log", "trials.csv", "trials.parquet", "pareto.csv", "plans"}
    assert expected <= files
    result = study.result
    assert sum(record.evaluated for record in result.records) == 12
    assert result.front
    numbers = [record.number for record in result.records]
    assert numbers == list(range(len(numbers)))
    csv = pd.read_csv(study.directory.trials)
    parquet = pd.read_parquet(study.directory.root / "trials.parquet")
    assert list(csv.columns) == list(parquet.columns)
    assert len(csv) == len(parquet) == len(result.records)
    assert csv["on_front"].sum() == len(result.front) == len(pd.read_csv(study.directory.pareto))
    plans = {path.stem for path in (study.directory.root / "plans").iterdir()}
    assert plans == {str(record.number) for record in result.front}


def test_rejections_say_why_and_are_not_evaluated(small_space, tmp_path):
    study = run(small_space, RunOptions(trials=100, out=tmp_path / "all"))
    rejected = [r for r in study.result.records if r.status is TrialStatus.REJECTED]
    reasons = " ".join(record.reason for record in rejected)
    assert "world size 12 does not fill nodes of 8 devices" in reasons
    assert "v100_dgx2 has no on_demand price" in reasons
    assert all(not record.evaluated and not record.values for record in rejected)
    assert study.exhausted
    assert len(study.result.records) == 36
    seen = {record.parameters for record in study.result.records}
    assert len(seen) == 36


@pytest.mark.parametrize("sampler", ["nsga2", "tpe", "random", "grid"])
def test_one_seed_gives_one_front_in_whatever_order_the_answers_come(
    small_space, tmp_path, sampler, out_of_order
):
    fronts = []
    for folder in ("in order", "out of order"):
        out = tmp_path / folder
        run(small_space, RunOptions(out=out, sampler=SamplerName(sampler), seed=5))
        fronts.append((out / "pareto.csv").read_bytes())
        out_of_order()
    assert fronts[0] == fronts[1]


def test_the_grid_goes_through_the_whole_space(small_space, tmp_path):
    options = RunOptions(trials=100, out=tmp_path / "grid", sampler=SamplerName.GRID)
    study = run(small_space, options)
    assert study.exhausted
    assert len({record.parameters for record in study.result.records}) == 36


def test_seeds_differ(small_space, tmp_path):
    first, second = (
        run(small_space, RunOptions(out=tmp_path / str(seed), seed=seed, trials=4)).result
        for seed in (1, 2)
    )
    assert [r.parameters for r in first.records] != [r.parameters for r in second.records]


def test_resume_evaluates_nothing_twice_and_ends_at_the_same_front(
    small_space, finished, tmp_path, monkeypatch
):
    out = tmp_path / "cut"
    run(small_space, RunOptions(out=out, trials=7))
    evaluated = counted(monkeypatch)
    before = {record.parameters for record in load_study(out).result.records}
    resumed = run(small_space, RunOptions(out=out, trials=12, resume=True))
    assert not before & set(evaluated)
    assert sum(record.evaluated for record in resumed.result.records) == 12
    assert resumed.result.records == finished.result.records
    evaluated.clear()
    again = run(small_space, RunOptions(out=out, resume=True))
    assert again.result.records == finished.result.records
    assert not evaluated


def counted(monkeypatch):
    """Returns a list that gains every configuration that is evaluated from now on."""
    evaluated = []
    original = ConfigurationEvaluator.evaluate

    def counting(self, number, parameters):
        evaluated.append(tuple(parameters.items()))
        return original(self, number, parameters)

    monkeypatch.setattr(ConfigurationEvaluator, "evaluate", counting)
    return evaluated


def test_a_run_that_ends_in_the_middle_of_a_batch_ends_at_the_same_front(
    small_space, finished, tmp_path, monkeypatch
):
    """As a kill leaves it: the journal, and nothing that is written when a run ends."""
    out = tmp_path / "cut"
    lines = finished.directory.journal.read_bytes().splitlines(keepends=True)
    out.mkdir()
    shutil.copy(finished.directory.header, out)
    (out / "journal.log").write_bytes(b"".join(lines[:7]) + lines[7][:100])
    evaluated = counted(monkeypatch)
    left = {record.parameters for record in load_study(out).result.records}
    run(small_space, RunOptions(out=out, resume=True))
    assert not left & set(evaluated)
    assert (out / "pareto.csv").read_bytes() == finished.directory.pareto.read_bytes()


@pytest.mark.slow
def test_kill_and_resume(small_space, tmp_path):
    whole = run(small_space, RunOptions(out=tmp_path / "whole", trials=16))
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "dse", "run", str(small_space), "--trials", "16"]
    process = subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    journal = out / "journal.log"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and journal.read_bytes().count(b'"status":"') >= 3:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = load_study(out).result.records
    assert finished
    resumed = run(small_space, RunOptions(out=out, trials=16, resume=True))
    assert (out / "pareto.csv").read_bytes() == whole.directory.pareto.read_bytes()
    stored = Journal(journal, resumed.result.objectives, ()).records()
    assert len(stored) == len({record.parameters for record in stored})


def test_numbers_that_a_journal_gives_twice_are_told_apart(study, tmp_path):
    result = study.result
    path = tmp_path / "journal.log"
    journal = Journal(path, result.objectives, result.parameters, create=True)
    first, second, third = result.records[:3]
    for record in (first, second, replace(third, number=first.number)):
        journal.add(record)
    assert journal.records() == (first, second, replace(third, number=second.number + 1))


def test_a_study_loads_without_its_inputs(study, small_space):
    small_space.unlink()
    loaded = load_study(study.directory.root)
    assert loaded.result.front == study.result.front
    assert loaded.result.facts == study.result.facts
    assert stored_workload(loaded.result).name == "dlrm_tiny"
    assert stored_platform(loaded.result, "h100_sxm").devices_per_node == 8
    with pytest.raises(StudyError, match="no platform `b200_sxm`"):
        stored_platform(loaded.result, "b200_sxm")


# --- refusals -----------------------------------------------------------------------------


def test_an_old_study_is_not_overwritten(study, small_space):
    with pytest.raises(StudyError, match="already holds a study"):
        run(small_space, RunOptions(out=study.directory.root))


def test_resuming_another_study_is_refused(study, small_space):
    root = study.directory.root
    with pytest.raises(StudyError, match="seed 0, not 9"):
        run(small_space, RunOptions(out=root, resume=True, seed=9))
    small_space.write_text(small_space.read_text().replace("16384", "8192"))
    with pytest.raises(StudyError, match="the space `small` has changed"):
        run(small_space, RunOptions(out=root, resume=True))
    with pytest.raises(StudyError, match="not a study directory"):
        run(small_space, RunOptions(out=root.parent / "none", resume=True))
    other = small_space.with_name("other.yaml")
    other.write_text(small_space.read_text().replace("name: small", "name: other"))
    with pytest.raises(StudyError, match="with the search space `small`, not `other`"):
        run(other, RunOptions(out=root, resume=True))


def test_wrong_settings_are_refused(small_space, tmp_path):
    with pytest.raises(ConfigError, match="--jobs must be at least 1"):
        run(small_space, RunOptions(jobs=0, out=tmp_path / "a"))
    with pytest.raises(ConfigError, match="unknown executor `threads`"):
        run(small_space, RunOptions(executor="threads", out=tmp_path / "b"))
    with pytest.raises(ConfigError, match="only --executor ray takes an address"):
        run(small_space, RunOptions(address="localhost:6379", out=tmp_path / "c"))
    assert list(tmp_path.iterdir()) == [small_space]
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(StudyError):
        run(small_space, RunOptions(out=occupied))


def test_the_gp_sampler_needs_torch(small_space, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OptionalDependencyError, match=r"'\.\[validate\]'"):
        run(small_space, RunOptions(out=tmp_path / "gp", sampler=SamplerName.GP))


@pytest.mark.slow
def test_the_gp_sampler_finds_a_front(small_space, tmp_path):
    pytest.importorskip("torch")
    # The first ten are drawn by chance.
    options = RunOptions(out=tmp_path / "gp", sampler=SamplerName.GP, trials=11)
    assert run(small_space, options).result.front


def test_a_record_of_another_form_is_refused(study):
    journal = study.directory.journal
    content = without_checksums(journal.read_bytes())
    journal.write_bytes(content.replace(b'"prediction":', b'"predicted":'))
    with pytest.raises(StudyError, match="not a record of this version"):
        load_study(study.directory.root)


@pytest.fixture
def context(small_space):
    return read_inputs(small_space).context


# --- proposer -----------------------------------------------------------------------------


def test_no_configuration_is_proposed_twice(context):
    proposer = Proposer(context.space, SamplerName.NSGA2, 0, context.make_evaluator())
    evaluator = context.make_evaluator()
    seen = []
    while not proposer.exhausted:
        batch = proposer.ask(5)
        seen += [p.parameters for p in (*batch.proposals, *batch.rejections)]
        proposer.tell([evaluator.evaluate(p.number, dict(p.parameters)) for p in batch.proposals])
    assert len(seen) == len(set(seen)) == context.space.size
    assert proposer.ask(3).proposals == ()


@pytest.mark.parametrize("sampler", [SamplerName.NSGA2, SamplerName.TPE, SamplerName.GRID])
def test_what_others_found_is_not_proposed_and_is_told_to_the_sampler(
    context, sampler, monkeypatch
):
    evaluator = context.make_evaluator()
    teacher = Proposer(context.space, SamplerName.RANDOM, 3, evaluator)
    batch = teacher.ask(8)
    known = [evaluator.evaluate(p.number, dict(p.parameters)) for p in batch.proposals]
    proposer = Proposer(context.space, sampler, 0, evaluator)
    told = []
    monkeypatch.setattr(proposer._study, "add_trial", told.append)
    proposer.tell(known[:5])
    assert [tuple(trial.values) for trial in told] == [record.values for record in known[:5]]
    assert all(trial.constraints["memory"] <= 0 for trial in told)
    proposer.mark_in_flight([record.parameters for record in known])
    monkeypatch.undo()
    seen = []
    while not proposer.exhausted:
        batch = proposer.ask(4)
        seen += [p.parameters for p in (*batch.proposals, *batch.rejections)]
        proposer.tell([evaluator.evaluate(p.number, dict(p.parameters)) for p in batch.proposals])
    assert not set(seen) & {record.parameters for record in known}
    assert len(seen) == context.space.size - len(known)


def test_the_genetic_search_breeds_from_what_others_found():
    import optuna

    names = "abcd"
    distributions = {name: optuna.distributions.IntDistribution(0, 1000) for name in names}
    study = GeneticStudy(["maximize"], 0)
    for index in range(60):
        params = dict.fromkeys(names, 7 if index % 2 else 11)
        study.add_trial(
            optuna.create_trial(values=[index], params=params, distributions=distributions)
        )
    bred = [study.ask(distributions).params for _ in range(20)]
    inherited = [value in (7, 11) for params in bred for value in params.values()]
    # One of four is changed at random; without parents, one of five hundred would be right.
    assert sum(inherited) > len(inherited) / 2


def test_the_listener_counts_what_is_evaluated(study):
    from dse.cli.study._run import _Listener

    shown = []
    listener = _Listener(lambda done, total, stage, remark: shown.append(done))
    records = study.result.records
    for count in range(1, len(records) + 1):
        listener(records[:count], 12)
    assert shown == [
        sum(record.evaluated for record in records[:count]) for count in range(1, len(records) + 1)
    ]


def test_public_run_takes_a_space_object(tmp_path, small_space):
    space = load_space(small_space)
    study = dse.run(space, trials=3, out=Path(tmp_path / "object"))
    assert sum(record.evaluated for record in study.result.records) == 3
    assert load_study(tmp_path / "object").result.front == study.result.front
