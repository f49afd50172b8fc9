"""Several runs at one study in a database: who evaluates what, and who takes over."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from dse.errors import ConfigError, StudyError
from dse.search import ModelEvaluator, RunOptions, load_study, read_inputs, run
from dse.search._loop import stream_seed
from dse.search._records import TrialStatus
from dse.search._run import _header
from dse.search.evaluate._evaluator import without_answer
from dse.search.propose._proposer import Proposal
from dse.search.space import SamplerName
from dse.search.storage import _runs as storage_runs
from dse.search.storage._claims import RUN_KEY
from dse.search.storage._database import Database
from dse.search.storage._join import join_study
from dse.search.storage._journal import Journal
from dse.search.storage._url import parse_storage_url
from tests.conftest import ROOT
from tests.search.databases import PASSWORD, database_of
from tests.search.test_storage import choices, rejected


@pytest.fixture
def url(tmp_path):
    """A database in a file: what one process does there, another one sees."""
    return f"sqlite:///{tmp_path}/shared.db"


@pytest.fixture
def context(small_space):
    return read_inputs(small_space).context


@pytest.fixture
def join(small_space, url, tmp_path):
    """Lets one more run join; returns it and its storage."""
    joined = []

    def join_one(trials=12, former=None):
        header = _header(read_inputs(small_space), RunOptions(trials=trials))
        study = join_study(header, former, RunOptions(storage=url))
        joined.append(study)
        journal = Journal(
            tmp_path / f"{len(joined)}.log", header.objectives, header.parameters, create=True
        )
        return study, study.storage(journal)

    yield join_one
    for study in joined:
        study.__exit__(None, None, None)


def entered(storage, *wanted):
    """Enters configurations; returns those that are left to evaluate here."""
    proposals = [Proposal(index, choice) for index, choice in enumerate(wanted)]
    return [one.parameters for one in storage.enter(proposals, []).proposals]


def answer(storage, context, choice):
    (taken,) = storage.enter([Proposal(0, choice)], []).proposals
    record = context.make_evaluator().evaluate(taken.number, dict(choice))
    assert storage.add(record)
    return record


# --- claims -------------------------------------------------------------------------------


def test_a_configuration_is_evaluated_by_one_run_only(join, context):
    (_, one), (_, two) = join(), join()
    first, second, third = choices(context, 3)
    assert entered(one, first, second) == [first, second]
    assert entered(two, second, third) == [third]
    news = two.news()
    assert news.busy == {first, second, third}
    assert news.runs == 2


def test_what_one_run_has_finished_is_told_to_the_other_once(join, context):
    (_, one), (_, two) = join(), join()
    first, second = choices(context, 2)
    record = answer(one, context, first)
    one.enter([], [rejected(1, second)])
    news = two.news()
    assert news.records[0] == record
    assert [found.status for found in news.records[1:]] == [TrialStatus.REJECTED]
    assert two.news().records == one.news().records == ()
    assert entered(two, first) == []
    assert two.enter([], [rejected(0, second)]).rejections[0].number == 1


def test_no_more_is_claimed_than_the_study_wants(join, context):
    (_, one), (_, two) = join(trials=3), join(trials=3)
    first, second, third, fourth = choices(context, 4)
    assert entered(one, first, second) == [first, second]
    assert entered(two, third, fourth) == [third]
    assert entered(one, fourth) == []
    # A place that becomes free goes to whoever comes first.
    (number,) = [trial for trial in one._own if one._claims.choice_of(trial) == first]
    assert one.add(without_answer(number, TrialStatus.REJECTED, "not so", dict(first)))
    assert entered(one, fourth) == [fourth]
    assert not one.news().complete


def test_numbers_are_unique_and_rise_with_the_order_of_asking(join, context):
    (_, one), (_, two) = join(), join()
    first, second, third, fourth = choices(context, 4)
    taken = one.enter([Proposal(5, first), Proposal(7, third)], [rejected(6, second)])
    assert [proposal.number for proposal in taken.proposals] == [0, 2]
    assert [record.number for record in taken.rejections] == [1]
    assert [proposal.number for proposal in two.enter([Proposal(0, fourth)], []).proposals] == [3]


# --- runs that end or die -----------------------------------------------------------------


def test_what_a_run_gives_up_is_taken_over(join, context):
    (leaving, one), (_, two) = join(), join()
    first, second = choices(context, 2)
    entered(one, first, second)
    leaving.__exit__(None, None, None)
    two._runs.look(now=True)
    news = two.news()
    assert news.busy == frozenset()
    assert news.orphans == (first, second)
    assert news.runs == 1
    assert entered(two, first) == [first]
    assert two.news().orphans == (second,)


def test_claims_of_a_run_without_a_sign_of_life_are_taken_over(join, context, monkeypatch):
    clock_s = [1000.0]
    monkeypatch.setattr(storage_runs.time, "monotonic", lambda: clock_s[0])
    monkeypatch.setattr(storage_runs, "BEAT_S", 1e6)
    (_, one), (_, two) = join(), join()
    (choice,) = choices(context, 1)
    entered(one, choice)
    for waited_s, busy in ((0, True), (storage_runs.LEASE_S - 1, True), (2, False)):
        clock_s[0] += waited_s
        two._runs.look(now=True)
        assert (choice in two.news().busy) == busy
    assert entered(two, *two.news().orphans) == [choice]
    # It was only slow. Its answer comes too late, and it sees that of the other run.
    late = context.make_evaluator().evaluate(0, dict(choice))
    assert not one.add(late)
    (number,) = two._own
    record = context.make_evaluator().evaluate(number, dict(choice))
    assert two.add(record)
    assert one.news().records == two.records(()) == (record,)


def test_a_sign_of_life_keeps_claims(join, context, monkeypatch):
    clock_s = [1000.0]
    monkeypatch.setattr(storage_runs.time, "monotonic", lambda: clock_s[0])
    monkeypatch.setattr(storage_runs, "BEAT_S", 1e6)
    (_, one), (_, two) = join(), join()
    (choice,) = choices(context, 1)
    entered(one, choice)
    for beats in range(1, 5):
        clock_s[0] += storage_runs.LEASE_S / 2
        one._runs._tables.set_trial_attribute(one._runs._id, "beats", beats)
        two._runs.look(now=True)
        assert choice in two.news().busy


def test_a_dead_process_of_this_machine_is_seen_at_once(join, context, monkeypatch):
    (_, one), (_, two) = join(), join()
    (choice,) = choices(context, 1)
    entered(one, choice)
    monkeypatch.setattr(storage_runs, "_lives", lambda process: False)
    two._runs.look(now=True)
    assert two.news().orphans == (choice,)


def test_a_killed_run_loses_nothing_and_nothing_is_evaluated_twice(small_space, url, tmp_path):
    # The child claims a batch of four, finishes two and hangs in the third.
    child = subprocess.Popen(
        [sys.executable, "-c", HANGING, small_space, url, tmp_path / "killed"], cwd=ROOT
    )
    wait_for(tmp_path / "hangs", child)
    child.send_signal(signal.SIGKILL)
    child.wait()
    left = load_study(tmp_path / "killed").result
    study = run(small_space, RunOptions(out=tmp_path / "next", storage=url))
    records = study.result.records
    assert sum(record.evaluated for record in records) == 12
    assert len({record.parameters for record in records}) == len(records)
    assert {record.number for record in left.records} <= {record.number for record in records}
    trials = open_trials(url)
    finished = [trial for trial in trials if "record" in trial.user_attrs]
    withdrawn = [trial for trial in trials if "record" not in trial.user_attrs]
    assert all(trial.state.is_finished() for trial in trials)
    # Two had an answer; the two others were taken over.
    assert sum(trial.user_attrs[RUN_KEY] == 0 for trial in withdrawn) == 2
    taken = {str(trial.user_attrs["parameters"]) for trial in withdrawn}
    assert taken <= {str(trial.user_attrs["parameters"]) for trial in finished}
    # And the killed one can go on in its folder, where there is nothing left to do.
    again = run(small_space, RunOptions(out=tmp_path / "killed", resume=True, storage=url))
    assert again.result.records == records


def test_ctrl_c_gives_up_claims_and_leaves_a_study(small_space, url, tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", HANGING, small_space, url, tmp_path / "interrupted"], cwd=ROOT
    )
    wait_for(tmp_path / "hangs", child)
    child.send_signal(signal.SIGINT)
    assert child.wait() == 0
    study = load_study(tmp_path / "interrupted")
    assert study.interrupted
    assert sum(record.evaluated for record in study.result.records) == 2
    assert (tmp_path / "interrupted" / "pareto.csv").exists()
    assert all(trial.state.is_finished() for trial in open_trials(url))


def test_connections_that_are_cut_are_made_again(
    small_space, tmp_path, monkeypatch, postgres_server
):
    url = postgres_server.create("cut")
    cut_at(monkeypatch, postgres_server, {3: False, 7: False})
    study = run(small_space, RunOptions(out=tmp_path / "a", storage=url))
    assert sum(record.evaluated for record in study.result.records) == 12
    assert study.storage.url == url.replace(PASSWORD, "***")
    files = [path for path in study.directory.root.rglob("*") if path.is_file()]
    assert "***" in study.directory.header.read_text()
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


def test_a_database_that_is_gone_ends_the_run_and_may_come_back(
    small_space, tmp_path, monkeypatch, postgres_server
):
    url = postgres_server.create("cut_for_good")
    whole = run(small_space, RunOptions(out=tmp_path / "whole"))
    cut_at(monkeypatch, postgres_server, {6: True})
    with pytest.raises(StudyError, match=r"cannot write to postgresql.*give the same command"):
        run(small_space, RunOptions(out=tmp_path / "a", storage=url))
    # The folder can be read: it lacks at most the last batch.
    left = load_study(tmp_path / "a")
    assert left.interrupted
    assert sum(record.evaluated for record in left.result.records) == 4
    postgres_server.cut("cut_for_good", for_good=False)
    again = run(small_space, RunOptions(out=tmp_path / "a", storage=url, resume=True))
    assert {record.parameters for record in again.result.front} == {
        record.parameters for record in whole.result.front
    }


# --- several processes --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_processes_share_a_study(small_space, tmp_path, kind, request):
    url = database_of(kind, request, tmp_path)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, small_space, url, tmp_path, str(index)], cwd=ROOT
        )
        for index in range(3)
    ]
    assert [child.wait() for child in children] == [0, 0, 0]
    studies = [load_study(tmp_path / f"run {index}") for index in range(3)]
    records = studies[0].result.records
    assert sum(record.evaluated for record in records) == 14
    assert len({record.number for record in records}) == len(records)
    assert len({record.parameters for record in records}) == len(records)
    for study in studies:
        assert study.result.records == records
        assert not study.interrupted
        csv = pd.read_csv(study.directory.trials)
        assert list(csv["number"]) == [record.number for record in records]
    trials = open_trials(url)
    assert all(trial.state.is_finished() for trial in trials)
    evaluated = {record.number for record in records if record.evaluated}
    shares = [trial.user_attrs[RUN_KEY] for trial in trials if trial.number in evaluated]
    assert set(shares) == {0, 1, 2}
    # Evaluated once: a trial with values for each, and no other.
    assert sum(trial.values is not None for trial in trials) == len(
        [record for record in records if record.values]
    )


# --- joining ------------------------------------------------------------------------------


def test_joining_takes_seed_and_sampler_of_the_study(small_space, url, tmp_path):
    options = RunOptions(
        out=tmp_path / "a", seed=7, sampler=SamplerName.TPE, trials=3, storage=url
    )
    run(small_space, options)
    joined = run(small_space, RunOptions(out=tmp_path / "b", storage=url))
    assert (joined.result.seed, joined.result.sampler) == (7, "tpe")
    assert sum(record.evaluated for record in joined.result.records) == 3
    with pytest.raises(StudyError, match="was started with seed 7, not 8"):
        run(small_space, RunOptions(out=tmp_path / "c", seed=8, storage=url))
    with pytest.raises(StudyError, match="was started with sampler tpe, not random"):
        run(small_space, RunOptions(out=tmp_path / "c", sampler=SamplerName.RANDOM, storage=url))


def test_another_space_of_the_same_name_is_refused(small_space, url, tmp_path):
    run(small_space, RunOptions(out=tmp_path / "a", trials=2, storage=url))
    small_space.write_text(small_space.read_text().replace("16384", "8192"))
    with pytest.raises(StudyError, match="the space `small` has changed"):
        run(small_space, RunOptions(out=tmp_path / "b", storage=url))
    assert not (tmp_path / "b").exists()
    other = run(
        small_space, RunOptions(out=tmp_path / "b", trials=2, storage=url, study_name="other")
    )
    assert sum(record.evaluated for record in other.result.records) == 2
    text = small_space.read_text()
    small_space.write_text(
        text.replace(
            "cost_usd_per_million_samples, direction: minimize",
            "memory_headroom_fraction, direction: maximize",
        )
    )
    with pytest.raises(StudyError, match="other objectives"):
        run(small_space, RunOptions(out=tmp_path / "c", storage=url))


def test_more_trials_are_more_for_all(join, small_space, url, tmp_path):
    _, one = join(trials=3)
    assert one.news().total == 3
    study = run(small_space, RunOptions(out=tmp_path / "more", trials=5, storage=url))
    assert sum(record.evaluated for record in study.result.records) == 5
    news = one.news()
    assert news.total == 5
    assert news.complete


def test_streams_of_the_sampler_differ_but_not_the_first(small_space, url, tmp_path):
    assert stream_seed(5, 0) == 5
    seeds = {stream_seed(5, stream) for stream in range(50)}
    assert len(seeds) == 50
    assert stream_seed(5, 1) != stream_seed(6, 1)
    run(small_space, RunOptions(out=tmp_path / "a", trials=1, storage=url))
    run(small_space, RunOptions(out=tmp_path / "b", trials=2, storage=url))
    again = run(small_space, RunOptions(out=tmp_path / "b", trials=3, storage=url, resume=True))
    assert again.storage.stream == 1


def test_studies_of_others_are_left_alone(small_space, url, tmp_path):
    import optuna

    study = optuna.create_study(
        study_name="small", storage=url, directions=["maximize", "minimize"]
    )
    study.add_trial(optuna.create_trial(values=[1.0, 2.0]))
    with pytest.raises(StudyError, match="trials that dse has not made"):
        run(small_space, RunOptions(out=tmp_path / "a", storage=url))
    assert len(study.get_trials()) == 1


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("parameters", [["platform", "h100_sxm"]], "was not made by dse for this space"),
        ("parameters", "rubbish", "was not made by dse for this space"),
        ("record", {"number": 0}, "is not a record of this version"),
    ],
)
def test_what_others_wrote_is_checked(small_space, url, tmp_path, key, value, words):
    import json
    import sqlite3

    run(small_space, RunOptions(out=tmp_path / "a", trials=1, storage=url))
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "UPDATE trial_user_attributes SET value_json = ? WHERE key = ?",
            (json.dumps(value), key),
        )
    connection.close()
    with pytest.raises(StudyError, match=words):
        run(small_space, RunOptions(out=tmp_path / "b", trials=2, storage=url))


def test_names_of_studies(small_space, url, tmp_path):
    with pytest.raises(ConfigError, match="add --storage"):
        run(small_space, RunOptions(out=tmp_path / "a", study_name="mine"))
    with pytest.raises(ConfigError, match="1 to 480 characters"):
        run(small_space, RunOptions(out=tmp_path / "a", storage=url, study_name="x" * 481))
    assert not (tmp_path / "a").exists()


def open_trials(url):
    """All trials of the study as Optuna sees them."""
    import optuna

    database = Database(parse_storage_url(url))
    try:
        return optuna.load_study(study_name="small", storage=database.storage).get_trials()
    finally:
        database.close()


def cut_at(monkeypatch, server, cuts):
    """Cuts the connections during the evaluations of these positions; true: for good."""
    original = ModelEvaluator.evaluate
    seen = []

    def evaluate(self, number, parameters):
        seen.append(number)
        if len(seen) in cuts:
            for_good = cuts[len(seen)]
            server.cut("cut_for_good" if for_good else "cut", for_good=for_good)
        return original(self, number, parameters)

    monkeypatch.setattr(ModelEvaluator, "evaluate", evaluate)


def wait_for(path, child):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert child.poll() is None, "the child ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


#: Evaluates two configurations, then says so and hangs until it is killed.
HANGING = """
import sys, time
from pathlib import Path
from dse.search import ModelEvaluator, RunOptions, run

space, url, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
original = ModelEvaluator.evaluate
seen = []

def evaluate(self, number, parameters):
    if len(seen) == 2:
        (out.parent / "hangs").touch()
        time.sleep(600)
    seen.append(number)
    return original(self, number, parameters)

ModelEvaluator.evaluate = evaluate
study = run(space, RunOptions(out=out, storage=url))
sys.exit(0 if study.interrupted else 3)
"""

#: Waits until all three are ready, and for a moment at every evaluation.
TOGETHER = """
import sys, time
from pathlib import Path
from dse.search import ModelEvaluator, RunOptions, run

space, url, folder, index = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
original = ModelEvaluator.evaluate

def evaluate(self, number, parameters):
    time.sleep(0.3)
    return original(self, number, parameters)

ModelEvaluator.evaluate = evaluate
(folder / f"ready {index}").touch()
while len(list(folder.glob("ready *"))) < 3:
    time.sleep(0.01)
run(space, RunOptions(out=folder / f"run {index}", storage=url, trials=14))
"""
