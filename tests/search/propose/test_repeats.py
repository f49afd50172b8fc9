"""Samplers that have settled repeat themselves; something else is proposed soon."""

from __future__ import annotations

from dataclasses import replace
import itertools

import numpy as np
import pytest

from dse.search._records import TrialStatus
from dse.search.evaluate._evaluator import Evaluator
from dse.search.evaluate._judge import without_answer
from dse.search.propose import Proposer
from dse.search.propose._genetic_study import GeneticStudy
from dse.search.space import SamplerName
from dse.workload import Parameter
from tests.search.propose.made_up import MadeUp

#: Choices of each parameter, and the number of parameters.
CHOICES = 6
PARAMETERS = 4


class Bowl(Evaluator):
    """Costs that grow with the distance from two neighbouring configurations."""

    def __init__(self):
        names = (f"p{place}" for place in range(PARAMETERS))
        numbered = tuple(Parameter(name, tuple(range(CHOICES))) for name in names)
        super().__init__(replace(MadeUp([], [], []).space, parameters=numbered))

    def reject(self, parameters):
        return ""

    def _evaluate(self, number, parameters):
        values = np.array([*parameters.values()])
        record = without_answer(number, TrialStatus.FEASIBLE, "", parameters)
        costs = (float(((values - best) ** 2).sum()) for best in (2, 3))
        return replace(record, values=tuple(costs))


def proposed(sampler, rounds, seed=0):
    """What is proposed in rounds of twenty, which are answered."""
    evaluator = Bowl()
    proposer = Proposer(evaluator.space, sampler, seed, evaluator)
    for _ in range(rounds):
        proposals = proposer.ask(20).proposals
        proposer.tell([evaluator.answer(proposal) for proposal in proposals])
        yield from (tuple(dict(each.parameters).values()) for each in proposals)


def test_a_settled_sampler_is_not_asked_twenty_times_for_each_new_configuration(monkeypatch):
    asked = itertools.count()
    ask = GeneticStudy.ask
    monkeypatch.setattr(GeneticStudy, "ask", lambda *args: (next(asked), ask(*args))[1])
    found = [*proposed(SamplerName.NSGA2, 50)]
    assert len(set(found)) == len(found) == 1000
    assert next(asked) < 8 * len(found)


@pytest.mark.parametrize("sampler", [SamplerName.NSGA2, SamplerName.TPE])
def test_every_configuration_is_proposed_once_in_the_end(sampler):
    space = Bowl().space
    small = replace(space, parameters=space.parameters[:2])
    evaluator = Bowl()
    evaluator.space = small
    proposer = Proposer(small, sampler, 0, evaluator)
    found = []
    while not proposer.exhausted:
        proposals = proposer.ask(20).proposals
        records = [evaluator.answer(proposal) for proposal in proposals]
        proposer.tell(records)
        found += [each.parameters for each in proposals]
    assert len(set(found)) == len(found) == CHOICES**2
