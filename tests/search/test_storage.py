"""What every storage of finished trials has in common."""

from __future__ import annotations

import pytest

from dse.errors import StudyError
from dse.search import ModelEvaluator, RunOptions, TrialStatus, load_study, read_inputs, run
from dse.search._options import RunOptions as Options
from dse.search._run import _header
from dse.search.evaluate._evaluator import without_answer
from dse.search.propose._proposer import Proposal
from dse.search.space import SamplerName
from dse.search.storage._join import join_study
from dse.search.storage._journal import Journal
from dse.search.storage._storage import LocalStorage
from tests.search.databases import database_of


@pytest.fixture(params=["journal", "sqlite", "postgresql"])
def url(request, tmp_path):
    """Where a study is kept; empty for the journal in its folder."""
    return "" if request.param == "journal" else database_of(request.param, request, tmp_path)


@pytest.fixture
def inputs(small_space):
    return read_inputs(small_space)


@pytest.fixture
def header(inputs):
    return _header(inputs, Options())


@pytest.fixture
def reopen(url, header, tmp_path):
    """Opens the storage, and opens it again as the next run of the same stream."""
    opened = []

    def open_storage():
        former = opened[-1].header if opened else None
        while opened:
            opened.pop().__exit__(None, None, None)
        journal = Journal(
            tmp_path / "journal.log", header.objectives, header.parameters, create=True
        )
        if not url:
            return LocalStorage(journal, header.trials)
        study = join_study(header, former, Options(storage=url))
        opened.append(study)
        return study.storage(journal)

    yield open_storage
    while opened:
        opened.pop().__exit__(None, None, None)


@pytest.fixture
def storage(reopen):
    return reopen()


def choices(context, count):
    """Configurations that can be evaluated."""
    first = {parameter.name: parameter.choices[0] for parameter in context.space.parameters}
    batches = context.space.choices("global_batch_size")
    worlds = (2, 8)
    found = [
        tuple({**first, "world_size": world, "global_batch_size": batch}.items())
        for world in worlds
        for batch in batches
    ]
    return found[:count]


def rejected(number, choice):
    return without_answer(number, TrialStatus.REJECTED, "over a limit", dict(choice))


def test_records_come_back_as_they_were(storage, reopen, inputs):
    evaluator = inputs.context.make_evaluator()
    first, second, third = choices(inputs.context, 3)
    entered = storage.enter([Proposal(0, first), Proposal(2, third)], [rejected(1, second)])
    assert [proposal.parameters for proposal in entered.proposals] == [first, third]
    assert [proposal.number for proposal in entered.proposals] == [0, 2]
    assert [record.number for record in entered.rejections] == [1]
    done = [evaluator.evaluate(one.number, dict(one.parameters)) for one in entered.proposals]
    # In another order than they were asked.
    assert [storage.add(record) for record in reversed(done)] == [True, True]
    found = sorted(reopen().former_records(), key=lambda record: record.number)
    assert found == [done[0], *entered.rejections, done[1]]


def test_failed_records_keep_their_reason_and_may_be_tried_again(storage, reopen, inputs):
    (choice,) = choices(inputs.context, 1)
    (taken,) = storage.enter([Proposal(0, choice)], []).proposals
    failure = without_answer(taken.number, TrialStatus.FAILED, "it broke: ü", dict(choice))
    assert storage.add(failure)
    again = reopen()
    (former,) = again.former_records()
    assert former == failure
    (taken,) = again.enter([Proposal(0, choice)], []).proposals
    better = inputs.context.make_evaluator().evaluate(taken.number, dict(choice))
    assert again.add(better)
    assert reopen().former_records() == (better,)


def test_a_storage_of_one_run_has_no_news(storage, inputs):
    proposals = [Proposal(index, one) for index, one in enumerate(choices(inputs.context, 2))]
    assert storage.enter(proposals, []).proposals == tuple(proposals)
    news = storage.news()
    assert news.records == news.orphans == ()
    assert news.total == 12
    assert not news.complete
    assert news.runs == 1
    assert storage.stream == 0


def test_bounds_are_kept_together(storage, reopen, inputs):
    first, second = choices(inputs.context, 2)
    assert storage.bounds() == {}
    storage.add_bounds({first: 0.25})
    storage.add_bounds({})
    storage.add_bounds({second: 0.5})
    assert reopen().bounds() == {first: 0.25, second: 0.5}


# --- whole runs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [
        ("sqlite", SamplerName.NSGA2),
        ("sqlite", SamplerName.TPE),
        ("postgresql", SamplerName.NSGA2),
    ],
)
def test_one_seed_gives_one_study_wherever_it_is_kept(
    small_space, tmp_path, kind, sampler, request
):
    url = database_of(kind, request, tmp_path)
    local = run(small_space, RunOptions(out=tmp_path / "local", sampler=sampler, seed=5))
    other = run(
        small_space, RunOptions(out=tmp_path / "other", sampler=sampler, seed=5, storage=url)
    )
    assert other.result.records == local.result.records
    assert other.directory.pareto.read_bytes() == local.directory.pareto.read_bytes()
    # Without the database.
    loaded = load_study(tmp_path / "other")
    assert loaded.result.records == local.result.records
    assert not loaded.interrupted


def test_a_continued_run_ends_at_the_front_of_an_uninterrupted_one(
    small_space, tmp_path, monkeypatch, url
):
    whole = run(small_space, RunOptions(out=tmp_path / "whole"))
    out = tmp_path / "cut"
    interrupt_after(monkeypatch, 6)
    cut = run(small_space, RunOptions(out=out, storage=url))
    assert cut.interrupted
    before = {record.parameters for record in load_study(out).result.records}
    assert sum(record.evaluated for record in load_study(out).result.records) == 6
    seen = interrupt_after(monkeypatch, 100)
    again = run(small_space, RunOptions(out=out, resume=True, storage=url))
    assert not before & set(seen)
    assert len(seen) == 6
    assert {record.parameters: record.values for record in again.result.records} == {
        record.parameters: record.values for record in whole.result.records
    }
    assert {record.parameters for record in again.result.front} == {
        record.parameters for record in whole.result.front
    }


def test_the_url_and_the_folder_must_belong_together(small_space, tmp_path, url):
    out = tmp_path / "study"
    run(small_space, RunOptions(out=out, trials=3, storage=url))
    if url:
        with pytest.raises(StudyError, match="add --storage with that URL"):
            run(small_space, RunOptions(out=out, resume=True))
        with pytest.raises(StudyError, match="holds the study `small`, not `large`"):
            run(small_space, RunOptions(out=out, resume=True, storage=url, study_name="large"))
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(StudyError, match="is not there" if url else "started without --storage"):
        run(small_space, RunOptions(out=out, resume=True, storage=other))


def interrupt_after(monkeypatch, count):
    """Has the evaluation after so many end in Ctrl-C; returns a list of what is evaluated."""
    seen = []
    original = ORIGINAL_EVALUATE

    def evaluate(self, number, parameters):
        if len(seen) == count:
            raise KeyboardInterrupt
        seen.append(tuple(parameters.items()))
        return original(self, number, parameters)

    monkeypatch.setattr(ModelEvaluator, "evaluate", evaluate)
    return seen


ORIGINAL_EVALUATE = ModelEvaluator.evaluate
