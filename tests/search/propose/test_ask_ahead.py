"""Rounds that begin before the last one is answered propose the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.search._records import TrialStatus
from dse.search.evaluate._evaluator import Evaluator
from dse.search.evaluate._judge import without_answer
from dse.search.propose import BoundedProposer, Proposer
from dse.search.space import SamplerName
from dse.workload import Parameter
from tests.search.propose.made_up import MadeUp, MadeUpEvaluator

SIZES = (3, 5, 4, 3, 2)


class Grid(Evaluator):
    """Answers that follow from the values; a quarter is rejected, and a few fail."""

    def __init__(self):
        numbered = (
            Parameter(f"p{place}", tuple(range(count))) for place, count in enumerate(SIZES)
        )
        super().__init__(replace(MadeUp([], [], []).space, parameters=tuple(numbered)))

    def reject(self, parameters):
        return "too much" if sum(parameters.values()) % 4 == 3 else ""

    def outcome(self, parameters):
        # The last one makes no difference where the first one is 0.
        *others, last = parameters.values()
        return (*others, last if others[0] else 0)

    def _evaluate(self, number, parameters):
        values = np.array([*parameters.values()])
        if values @ [1, 2, 3, 4, 5] % 11 == 0:
            return without_answer(number, TrialStatus.FAILED, "broken", parameters)
        record = without_answer(number, TrialStatus.FEASIBLE, "", parameters)
        costs = float(((values - 1) ** 2).sum()), float((values * [3, 1, 4, 1, 5] % 7).sum())
        return replace(record, values=costs)


def asked(strategy, evaluator, count, rounds, rng=None):
    """What is proposed and rejected, in order; with random numbers, partly before the answers."""
    found, early = [], 0
    ahead = []
    for _ in range(rounds):
        batches = [*ahead, strategy.ask(count)]
        found += [each for batch in batches for each in (*batch.proposals, *batch.rejections)]
        proposals = [each for batch in batches for each in batch.proposals]
        ahead = []
        for _ in range(0 if rng is None else rng.integers(1, 4)):
            ahead.append(strategy.ask_ahead(count, int(rng.integers(1, count + 1))))
        early += sum(len(batch.proposals) for batch in ahead)
        records = [evaluator.answer(proposal) for proposal in proposals]
        if rng is not None:
            rng.shuffle(records)
        strategy.tell(records)
    found += [each for batch in ahead for each in (*batch.proposals, *batch.rejections)]
    return found, early


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("sampler", [SamplerName.NSGA2, SamplerName.RANDOM])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_proposed_ahead_is_what_would_be_proposed_later(sampler, seed, count):
    evaluator = Grid()
    rounds = 160 // count
    expected, _ = asked(
        Proposer(evaluator.space, sampler, seed, evaluator), evaluator, count, rounds
    )
    found, early = asked(
        Proposer(evaluator.space, sampler, seed, evaluator),
        evaluator,
        count,
        rounds,
        np.random.default_rng(seed),
    )
    common = min(len(expected), len(found))
    by_number = sorted(found, key=lambda each: each.number)
    assert by_number[:common] == sorted(expected, key=lambda each: each.number)[:common]
    assert early


@pytest.mark.parametrize("sampler", [SamplerName.TPE, SamplerName.GRID])
def test_samplers_that_learn_from_every_answer_propose_nothing_ahead(sampler):
    evaluator = Grid()
    strategy = Proposer(evaluator.space, sampler, 0, evaluator)
    assert len(strategy.ask(5).proposals) == 5
    assert not strategy.ask_ahead(5, 5).proposals


def test_with_bounds_nothing_is_proposed_ahead():
    count = 12
    case = MadeUp(
        [(float(cost), -float(cost)) for cost in range(count)], [1.0] * count, [True] * count
    )
    evaluator = MadeUpEvaluator(case)
    strategy = BoundedProposer(case.space, 0, evaluator)
    assert strategy.ask(3).proposals
    assert not strategy.ask_ahead(3, 3).proposals
