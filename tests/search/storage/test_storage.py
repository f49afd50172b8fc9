"""What every storage of finished trials has in common."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dse.errors import StudyError
from dse.search import RunOptions, TrialStatus, load_study, read_inputs, run
from dse.search._proposals import Proposal
from dse.search._run import _header
from dse.search.evaluate import ConfigurationEvaluator
from dse.search.evaluate._judge import without_answer
from dse.search.space import SamplerName
from dse.search.storage._join import join_study
from dse.search.storage._journal import Journal
from dse.search.storage._shared import SharedStorage
from dse.search.storage._storage import LocalStorage
from tests.search.databases import database_of

POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.slow)


@pytest.fixture(params=["journal", "sqlite", POSTGRESQL])
def url(request, tmp_path):
    """Where a study is kept; empty for the journal in its folder."""
    return "" if request.param == "journal" else database_of(request.param, request, tmp_path)


@pytest.fixture
def inputs(small_space):
    return read_inputs(small_space)


@pytest.fixture
def header(inputs):
    return _header(inputs, RunOptions())


@pytest.fixture
def reopen(url, header, tmp_path):
    """Opens the storage, and opens it again as the next run."""
    opened = ExitStack()

    def open_storage():
        opened.close()
        journal = Journal(
            tmp_path / "journal.log", header.objectives, header.parameters, create=True
        )
        if not url:
            return LocalStorage(journal, header.trials)
        tables, joined = join_study(header, None, RunOptions(storage=url))
        opened.callback(tables.close)
        return opened.enter_context(SharedStorage(tables, joined, journal))

    with opened:
        yield open_storage


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


def stored(storage):
    """Everything that a run finds when it starts."""
    records = [*storage.former_records(), *storage.update().records]
    return sorted(records, key=lambda record: record.number)


def test_records_come_back_as_they_were(storage, reopen, inputs):
    evaluator = inputs.context.make_evaluator()
    first, second, third = choices(inputs.context, 3)
    batch = storage.claim([Proposal(0, first), Proposal(2, third)], [rejected(1, second)])
    assert [proposal.parameters for proposal in batch.proposals] == [first, third]
    assert [proposal.number for proposal in batch.proposals] == [0, 2]
    assert [record.number for record in batch.rejections] == [1]
    done = [evaluator.evaluate(each.number, dict(each.parameters)) for each in batch.proposals]
    # In another order than they were proposed.
    assert [storage.add(record) for record in reversed(done)] == [True, True]
    assert stored(reopen()) == [done[0], *batch.rejections, done[1]]


def test_failed_records_keep_their_reason_and_may_be_tried_again(storage, reopen, inputs):
    (params,) = choices(inputs.context, 1)
    (taken,) = storage.claim([Proposal(0, params)], []).proposals
    failure = without_answer(taken.number, TrialStatus.FAILED, "it broke: ü", dict(params))
    assert storage.add(failure)
    again = reopen()
    assert stored(again) == [failure]
    (taken,) = again.claim([Proposal(0, params)], []).proposals
    better = inputs.context.make_evaluator().evaluate(taken.number, dict(params))
    assert again.add(better)
    assert stored(reopen()) == [better]


def test_a_study_of_one_run_has_no_other_runs(storage, inputs):
    proposals = [Proposal(index, one) for index, one in enumerate(choices(inputs.context, 2))]
    assert storage.claim(proposals, []).proposals == tuple(proposals)
    update = storage.update()
    assert update.records == update.abandoned == ()
    assert update.total == 12
    assert not update.complete
    assert update.runs == 1
    assert storage.stream == 0


def test_bounds_are_kept_together(storage, reopen, inputs):
    first, second = choices(inputs.context, 2)
    assert storage.bounds() == {}
    storage.add_bounds({first: 0.25})
    storage.add_bounds({})
    storage.add_bounds({second: 0.5})
    assert reopen().bounds() == {first: 0.25, second: 0.5}


# --- whole runs ---------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "sampler"), [("sqlite", "nsga2"), ("sqlite", "tpe")])
def test_a_new_shared_study_of_one_run_is_that_of_its_seed(
    small_space, tmp_path, kind, sampler, request
):
    url = database_of(kind, request, tmp_path)
    settings = {"sampler": SamplerName(sampler), "seed": 5}
    local = run(small_space, RunOptions(out=tmp_path / "local", **settings))
    other = run(small_space, RunOptions(out=tmp_path / "other", **settings, storage=url))
    assert other.result.records == local.result.records
    assert other.directory.pareto.read_bytes() == local.directory.pareto.read_bytes()
    # Without the database.
    loaded = load_study(tmp_path / "other")
    assert loaded.result.records == local.result.records
    assert not loaded.interrupted


def test_a_resumed_run_evaluates_nothing_twice(small_space, tmp_path, monkeypatch, url):
    out = tmp_path / "cut"
    interrupt_after(monkeypatch, 6)
    assert run(small_space, RunOptions(out=out, storage=url)).interrupted
    before = {record.parameters for record in load_study(out).result.records}
    assert sum(record.evaluated for record in load_study(out).result.records) == 6
    seen = interrupt_after(monkeypatch, 100)
    again = run(small_space, RunOptions(out=out, resume=True, storage=url))
    assert not again.interrupted
    assert not before & set(seen)
    assert len(seen) == 6
    assert sum(record.evaluated for record in again.result.records) == 12


def test_the_url_and_the_folder_must_belong_together(small_space, tmp_path, url):
    out = tmp_path / "study"
    run(small_space, RunOptions(out=out, trials=3, storage=url))
    if url:
        with pytest.raises(StudyError, match="add --storage with that URL"):
            run(small_space, RunOptions(out=out, resume=True))
        with pytest.raises(StudyError, match="holds the study `small`, not `large`"):
            run(small_space, RunOptions(out=out, resume=True, storage=url, study_name="large"))
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(StudyError, match="does not exist" if url else "started without --storage"):
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

    monkeypatch.setattr(ConfigurationEvaluator, "evaluate", evaluate)
    return seen


ORIGINAL_EVALUATE = ConfigurationEvaluator.evaluate
