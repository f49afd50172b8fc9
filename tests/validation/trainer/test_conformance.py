"""Every trainer keeps the protocol; each is tried with its own `case.py`."""

from __future__ import annotations

from importlib import import_module
import multiprocessing
import pickle

import numpy as np
import pytest

from dse.errors import ConfigError
from dse.validation import TRAINERS, TrainerOptions, UnsupportedCandidateError, find_trainer
from dse.validation.measurement._ranks import checked_together, with_ranks
from dse.validation.measurement._worker import Build, Collect, Drop, Run, Train
from dse.workload import predict_job

pytest.importorskip("torch")

STEPS = 4
OPTIONS = TrainerOptions(seed=3, batches=3, sparse_learning_rate=0.5, dense_learning_rate=0.1)

pytestmark = pytest.mark.parametrize("name", TRAINERS)


def case_of(name):
    return import_module(f"tests.validation.trainer.{name}.case").CASE


class Trained:
    """What the ranks of one start replied; the candidates take turns, as in rounds."""

    def __init__(self, name):
        trainer, case = TRAINERS[name], case_of(name)
        checked = checked_together(trainer, case.candidates, "cpu")
        self.names = [one.name for one in checked]
        with_ranks(self.drive, trainer, checked, OPTIONS, "cpu", 1, 300.0)

    def drive(self, group):
        numbers = range(len(self.names))
        self.first = self.turns(group, numbers)
        self.weights = [group.ask(Collect(number)) for number in numbers]
        self.spans = [group.ask(Run(number, 1, 2)) for number in numbers]
        for number in numbers:
            group.ask(Drop(number))
        # Dropped in the middle of a pipeline, built again.
        self.again = self.turns(group, numbers)
        self.unknown = group.ask(Drop(99))

    def turns(self, group, numbers):
        for number in numbers:
            group.ask(Build(number))
            group.ask(Build(number))
        turns = [[group.ask(Train(number, 1)) for number in numbers] for _ in range(STEPS)]
        # By candidate, step and rank.
        return np.array(turns)[..., 0].transpose(1, 0, 2)


@pytest.fixture(scope="module")
def trained():
    found = {}

    def of(name):
        if missing := TRAINERS[name].missing():
            pytest.skip(f"needs {missing}")
        if name not in found:
            found[name] = Trained(name)
        return found[name]

    return of


def test_every_plan_of_a_model_trains_alike(trained, name):
    losses = trained(name).first.mean(axis=2)
    assert losses.shape[1] == STEPS
    assert np.isfinite(losses).all()
    assert len(set(losses[0].tolist())) == STEPS
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=0, atol=case_of(name).losses_within)


def test_the_seed_decides_the_losses(trained, name):
    found = trained(name)
    np.testing.assert_allclose(found.again, found.first, rtol=0, atol=1e-6)


def test_iterations_take_time(trained, name):
    for spans in trained(name).spans:
        assert len(spans) == len({id(span) for span in spans}) > 0
        for span in spans:
            assert 0 < span.duration_s == span.end_s - span.start_s
            assert span.processor_s > 0


def test_weights_are_whole_where_they_are_collected(trained, name):
    found = trained(name)
    if not TRAINERS[name].collects:
        assert not any(pieces for answers in found.weights for pieces in answers)
        return
    names = []
    for answers in found.weights:
        held = {}
        for piece in (piece for pieces in answers for piece in pieces):
            seen = held.setdefault(piece.name, np.zeros(piece.shape, bool))
            ends = zip(piece.offset, piece.values.shape, strict=True)
            seen[tuple(slice(start, start + size) for start, size in ends)] = True
        assert all(seen.all() for seen in held.values())
        names.append(held.keys())
    assert all(one == names[0] for one in names)


def test_no_process_is_left(trained, name):
    trained(name)
    assert multiprocessing.active_children() == []


def test_a_trainer_is_known_by_name_and_kind(name):
    trainer = find_trainer(name)
    assert find_trainer(name, trainer.kind) is trainer
    assert type(pickle.loads(pickle.dumps(trainer))) is type(trainer)
    for unknown in ((name, "no_such_kind"), ("no_such_trainer", trainer.kind)):
        with pytest.raises(ConfigError):
            find_trainer(*unknown)


def test_what_is_run_can_be_predicted(name):
    trainer = TRAINERS[name]
    for one in case_of(name).candidates:
        adopted = trainer.adopt(one)
        assert trainer.adopt(adopted) == adopted
        checked = trainer.checked(adopted, "cpu")
        assert trainer.checked(checked, "cpu") == checked
        assert (checked.name, checked.world_size) == (one.name, one.world_size)
        assert checked.resident_bytes > 0
        prediction = predict_job(checked.job())
        assert prediction.iteration_time_s > 0
        assert pickle.loads(pickle.dumps(checked)) == checked


def test_what_cannot_be_run_is_refused_by_name(name):
    refused = case_of(name).refused
    assert refused
    for one in refused:
        with pytest.raises(UnsupportedCandidateError, match=one.name):
            TRAINERS[name].checked(one, "cpu")
