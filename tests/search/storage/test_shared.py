"""Several runs of one study in a database: who evaluates what, and who takes over."""

from __future__ import annotations

from contextlib import ExitStack
import sqlite3
import time

import pandas as pd
import pytest

from dse.errors import ConfigError, StudyError
from dse.search import RunOptions, load_study, read_inputs, run
from dse.search._loop import stream_seed
from dse.search._proposals import Proposal
from dse.search._records import TrialStatus
from dse.search._run import _header
from dse.search.evaluate import ConfigurationEvaluator
from dse.search.evaluate._judge import without_answer
from dse.search.space import SamplerName
from dse.search.storage import _database as database
from dse.search.storage import _shared as shared
from dse.search.storage._join import join_study
from dse.search.storage._journal import Journal
from dse.search.storage._shared import RUN_KEY, SharedStorage
from tests.search.databases import PASSWORD, database_of
from tests.search.runs import forked
from tests.search.storage.sharing import run_and_hang, run_together
from tests.search.storage.test_storage import choices, interrupt_after, rejected


@pytest.fixture
def url(tmp_path):
    """A database in a file: what one process writes there, another one sees."""
    return f"sqlite:///{tmp_path}/shared.db"


@pytest.fixture
def context(small_space):
    return read_inputs(small_space).context


@pytest.fixture
def join(small_space, url, tmp_path):
    """Joins the study as one more run; returns its storage."""
    with ExitStack() as joined:
        journals = (tmp_path / f"{index}.log" for index in range(10))

        def join_one(trials=12, **settings):
            header = _header(read_inputs(small_space), RunOptions(trials=trials))
            tables, header = join_study(header, None, RunOptions(storage=url))
            joined.callback(tables.close)
            journal = Journal(next(journals), header.objectives, header.parameters, create=True)
            storage = SharedStorage(tables, header, journal, **settings)
            return joined.enter_context(storage)

        yield join_one


def claimed(storage, *wanted):
    """Claims configurations; returns those that are left to evaluate here."""
    proposals = [Proposal(index, params) for index, params in enumerate(wanted)]
    return [proposal.parameters for proposal in storage.claim(proposals, []).proposals]


def answer(storage, context, params):
    (taken,) = storage.claim([Proposal(0, params)], []).proposals
    record = context.make_evaluator().evaluate(taken.number, dict(params))
    assert storage.add(record)
    return record


# --- claims -------------------------------------------------------------------------------


def test_a_configuration_is_evaluated_by_one_run_only(join, context):
    one, two = join(), join()
    first, second, third = choices(context, 3)
    assert claimed(one, first, second) == [first, second]
    assert claimed(two, second, third) == [third]
    update = two.update()
    assert update.in_flight == {first, second, third}
    assert update.abandoned == ()
    assert update.runs == 2


def test_what_one_run_has_finished_reaches_the_other_once(join, context):
    one, two = join(), join()
    first, second = choices(context, 2)
    record = answer(one, context, first)
    one.claim([], [rejected(1, second)])
    found = two.update().records
    assert found[0] == record
    assert [other.status for other in found[1:]] == [TrialStatus.REJECTED]
    assert two.update().records == one.update().records == ()
    assert claimed(two, first) == []
    assert two.claim([], [rejected(0, second)]).rejections[0].number == 1
    # A run that joins later gets everything.
    assert join().update().records == found


def test_no_more_is_claimed_than_the_study_wants(join, context):
    one, two = join(trials=3), join(trials=3)
    first, second, third, fourth = choices(context, 4)
    numbers = {
        proposal.parameters: proposal.number
        for proposal in one.claim([Proposal(0, first), Proposal(1, second)], []).proposals
    }
    assert claimed(two, third, fourth) == [third]
    assert claimed(one, fourth) == []
    # A place that becomes free goes to the first run that claims it.
    assert one.add(
        without_answer(numbers[first], TrialStatus.REJECTED, "not allowed", dict(first))
    )
    assert claimed(one, fourth) == [fourth]
    assert not one.update().complete


def test_numbers_are_unique_and_rise_with_the_order_of_proposing(join, context):
    one, two = join(), join()
    first, second, third, fourth = choices(context, 4)
    batch = one.claim([Proposal(5, first), Proposal(7, third)], [rejected(6, second)])
    assert [proposal.number for proposal in batch.proposals] == [0, 2]
    assert [record.number for record in batch.rejections] == [1]
    assert [proposal.number for proposal in two.claim([Proposal(0, fourth)], []).proposals] == [3]


# --- runs that end or die -----------------------------------------------------------------


def test_what_a_run_leaves_unfinished_is_taken_over(join, context):
    one, two = join(), join()
    first, second = choices(context, 2)
    claimed(one, first, second)
    one.__exit__(None, None, None)
    update = two.update()
    assert update.in_flight == frozenset()
    assert update.abandoned == (first, second)
    assert update.runs == 1
    assert claimed(two, first) == [first]
    update = two.update()
    assert (update.abandoned, update.runs) == ((second,), 1)


def age_heartbeats(url, seconds):
    """Has the last heartbeat of every trial be so much older."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, ?)",
            (f"-{seconds} seconds",),
        )
    connection.close()


def test_trials_without_a_heartbeat_are_taken_over(join, context, url, monkeypatch):
    monkeypatch.setattr(shared, "HEARTBEAT_S", 0)
    monkeypatch.setattr(SharedStorage, "_beat", lambda self: None)
    one, two = join(), join()
    (params,) = choices(context, 1)
    claimed(one, params)
    age_heartbeats(url, database.GRACE_PERIOD_S - 20)
    assert two.update().in_flight == {params}
    age_heartbeats(url, 30)
    assert two.update().abandoned == (params,)
    (taken,) = two.claim([Proposal(0, params)], []).proposals
    # The first run was only slow. Its answer comes too late, and it gets that of the other run.
    assert not one.add(context.make_evaluator().evaluate(0, dict(params)))
    record = context.make_evaluator().evaluate(taken.number, dict(params))
    assert two.add(record)
    assert one.update().records == two.records(()) == (record,)


def test_a_heartbeat_keeps_claims(join, context, url, monkeypatch):
    monkeypatch.setattr(shared, "HEARTBEAT_S", 0.01)
    one, two = join(), join()
    (params,) = choices(context, 1)
    claimed(one, params)
    age_heartbeats(url, 1000)
    wait_until(lambda: heartbeat_age_s(url) < 100)
    assert two.update().in_flight == {params}


def test_a_configuration_that_kills_its_runs_is_not_queued_for_ever(
    join, context, url, monkeypatch
):
    monkeypatch.setattr(shared, "HEARTBEAT_S", 0)
    monkeypatch.setattr(SharedStorage, "_beat", lambda self: None)
    storage = join()
    (params,) = choices(context, 1)
    for _ in range(1 + database.MAX_RETRIES):
        assert claimed(storage, params) == [params]
        age_heartbeats(url, 1000)
        update = storage.update()
    assert update.abandoned == ()
    assert update.in_flight == frozenset()


def test_failed_configurations_are_tried_again_when_a_run_is_resumed(join, context):
    one = join(trials=1)
    (params,) = choices(context, 1)
    (taken,) = one.claim([Proposal(0, params)], []).proposals
    assert one.add(without_answer(taken.number, TrialStatus.FAILED, "it broke", dict(params)))
    assert join(trials=1).update().complete
    resumed = join(trials=1, retry_failed=True)
    update = resumed.update()
    assert not update.complete
    assert update.records == ()
    assert update.abandoned == (params,)
    record = answer(resumed, context, params)
    assert resumed.update().complete
    assert one.records(()) == (record,)


@pytest.mark.slow
def test_a_killed_run_loses_nothing_and_nothing_is_evaluated_twice(
    small_space, url, tmp_path, monkeypatch
):
    # The child claims a batch of four, finishes two and hangs in the third.
    child = hanging(small_space, url, tmp_path / "killed")
    child.kill()
    child.join()
    left = load_study(tmp_path / "killed").result
    monkeypatch.setattr(database, "GRACE_PERIOD_S", 2)
    monkeypatch.setattr(shared, "HEARTBEAT_S", 0.2)
    study = run(small_space, RunOptions(out=tmp_path / "next", storage=url))
    records = study.result.records
    assert sum(record.evaluated for record in records) == 12
    assert len({record.parameters for record in records}) == len(records)
    assert {record.number for record in left.records} <= {record.number for record in records}
    trials = stored_trials(url)
    assert all(trial.state.is_finished() for trial in trials)
    finished = {str(trial.user_attrs["parameters"]) for trial in trials if is_answer(trial)}
    lost = [trial for trial in trials if not is_answer(trial)]
    # Two had an answer; the two others were taken over.
    assert len(lost) == 2
    assert {str(trial.user_attrs["parameters"]) for trial in lost} <= finished
    # The killed run can be resumed in its folder, where nothing is left to do.
    again = run(small_space, RunOptions(out=tmp_path / "killed", resume=True, storage=url))
    assert again.result.records == records


def test_an_interrupted_run_leaves_a_study_and_its_trials_to_others(
    small_space, url, tmp_path, monkeypatch
):
    interrupt_after(monkeypatch, 2)
    study = run(small_space, RunOptions(out=tmp_path / "interrupted", storage=url))
    assert study.interrupted
    assert load_study(tmp_path / "interrupted").interrupted
    assert sum(record.evaluated for record in study.result.records) == 2
    assert (tmp_path / "interrupted" / "pareto.csv").exists()
    waiting = [trial for trial in stored_trials(url) if trial.state.name == "WAITING"]
    assert len(waiting) == 2
    seen = interrupt_after(monkeypatch, 100)
    again = run(small_space, RunOptions(out=tmp_path / "next", storage=url))
    assert sum(record.evaluated for record in again.result.records) == 12
    assert len(seen) == 10
    assert all(trial.state.is_finished() for trial in stored_trials(url))


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_database_that_is_gone_ends_the_run_and_may_come_back(
    small_space, tmp_path, monkeypatch, postgres_server
):
    monkeypatch.setattr(database, "GRACE_PERIOD_S", 2)
    monkeypatch.setattr(shared, "HEARTBEAT_S", 0.2)
    url = postgres_server.create("cut_for_good")
    cut_at(monkeypatch, postgres_server, {6: True})
    with pytest.raises(StudyError, match=r"cannot write to postgresql.*give the same command"):
        run(small_space, RunOptions(out=tmp_path / "a", storage=url))
    # The folder can be read: it lacks at most the last batch.
    left = load_study(tmp_path / "a")
    assert left.interrupted
    assert sum(record.evaluated for record in left.result.records) == 4
    postgres_server.cut("cut_for_good", for_good=False)
    again = run(small_space, RunOptions(out=tmp_path / "a", storage=url, resume=True))
    assert sum(record.evaluated for record in again.result.records) == 12


# --- several processes --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_processes_share_a_study(small_space, tmp_path, kind, request):
    url = database_of(kind, request, tmp_path)
    settings = [(str(small_space), url, tmp_path, index) for index in range(3)]
    children = [forked(run_together, *each) for each in settings]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
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
    trials = stored_trials(url)
    assert all(trial.state.is_finished() for trial in trials)
    evaluated = {record.number for record in records if record.evaluated}
    shares = [trial.user_attrs[RUN_KEY] for trial in trials if trial.number in evaluated]
    assert len(set(shares)) == 3
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
    one = join(trials=3)
    assert one.update().total == 3
    study = run(small_space, RunOptions(out=tmp_path / "more", trials=5, storage=url))
    assert sum(record.evaluated for record in study.result.records) == 5
    update = one.update()
    assert update.total == 5
    assert update.complete


def test_streams_of_the_sampler_differ_but_not_the_first(small_space, url, tmp_path):
    assert stream_seed(5, 0) == 5
    seeds = {stream_seed(5, stream) for stream in range(50)}
    assert len(seeds) == 50
    assert stream_seed(5, 1) != stream_seed(6, 1)
    first = run(small_space, RunOptions(out=tmp_path / "a", trials=1, storage=url))
    second = run(small_space, RunOptions(out=tmp_path / "b", trials=2, storage=url))
    assert first.storage.stream == 0
    assert second.storage.stream != 0


def test_studies_of_others_are_left_alone(small_space, url, tmp_path):
    import optuna

    study = optuna.create_study(
        study_name="small", storage=url, directions=["maximize", "minimize"]
    )
    study.add_trial(optuna.create_trial(values=[1.0, 2.0]))
    with pytest.raises(StudyError, match="trials that dse did not make"):
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
    with pytest.raises(ConfigError, match="1 to 512"):
        run(small_space, RunOptions(out=tmp_path / "a", storage=url, study_name="x" * 513))
    assert not (tmp_path / "a").exists()
    run(small_space, RunOptions(out=tmp_path / "a", trials=1, storage=url, study_name="x" * 512))


def stored_trials(url):
    """All trials of the study as Optuna sees them."""
    import optuna
    from sqlalchemy.pool import NullPool

    url = url.replace("postgresql:", "postgresql+psycopg:")
    tables = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
    trials = optuna.load_study(study_name="small", storage=tables).get_trials()
    tables.remove_session()
    return trials


def is_answer(trial):
    return "record" in trial.user_attrs


def heartbeat_age_s(url):
    """How long ago the last heartbeat of a trial was."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        (age_s,) = connection.execute(
            "SELECT strftime('%s', 'now') - strftime('%s', max(heartbeat)) FROM trial_heartbeats"
        ).fetchone()
    connection.close()
    return age_s


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def hanging(space, url, out):
    """Starts a run that hangs in its third evaluation."""
    child = forked(run_and_hang, str(space), url, out)
    wait_for(out.parent / "hangs", child)
    return child


def cut_at(monkeypatch, server, cuts):
    """Cuts the connections during the evaluations of these positions; true: for good."""
    original = ConfigurationEvaluator.evaluate
    seen = []

    def evaluate(self, number, parameters):
        seen.append(number)
        if len(seen) in cuts:
            for_good = cuts[len(seen)]
            server.cut("cut_for_good" if for_good else "cut", for_good=for_good)
        return original(self, number, parameters)

    monkeypatch.setattr(ConfigurationEvaluator, "evaluate", evaluate)


def wait_for(path, child):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert child.is_alive(), "the child ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.02)
