"""The genetic search beside Optuna's own study: the same proposals for the same answers."""

from __future__ import annotations

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
import pytest

from dse.search.propose._genetic_study import GeneticStudy

PARAMETERS = {
    f"p{index}": IntDistribution(0, 6) if index % 2 else CategoricalDistribution(list(range(5)))
    for index in range(7)
}


def proposals(study, count, objectives, batch):
    """What a study asks; every answer follows from the values, some are failures."""
    asked = []
    while len(asked) < count:
        if len(asked) % 5 == 0:
            # As unseen configurations are put in, and those that others have answered.
            study.enqueue_trial({name: len(asked) % 5 for name in PARAMETERS})
        trials = [study.ask(PARAMETERS) for _ in range(batch)]
        for trial in trials:
            values = [trial.params[name] for name in PARAMETERS]
            asked.append(tuple(values))
            if sum(values) % 7 == 0:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                continue
            trial.set_constraint("sum", float(sum(values) - 22))
            trial.set_constraint("first", float(values[0] - 3))
            score = sum(place * value for place, value in enumerate(values))
            found = [score + values[0] * values[1] % 3, sum(value**2 for value in values)]
            study.tell(trial, [float(value) for value in found[:objectives]])
    return asked


@pytest.mark.parametrize(("objectives", "batch", "seed"), [(1, 1, 0), (2, 20, 1), (2, 7, 2)])
def test_it_proposes_what_a_study_of_optuna_proposes(objectives, batch, seed):
    directions = ["maximize", "minimize"][:objectives]
    theirs = optuna.create_study(
        directions=directions, sampler=optuna.samplers.NSGAIISampler(seed=seed)
    )
    expected = proposals(theirs, 600, objectives, batch)
    found = proposals(GeneticStudy(directions, seed), 600, objectives, batch)
    assert found == expected
    assert len(set(found)) > 100


def test_it_forgets_old_generations():
    study = GeneticStudy(["maximize", "minimize"], 0)
    proposals(study, 1000, 2, 10)
    assert len(study._sampler._members) <= 4
    assert len(study._sampler._parents) <= 4
