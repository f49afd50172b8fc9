"""Sampling with bounds: what is not evaluated cannot be on the front."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np

from dse.search import RunOptions, load_study, run
from dse.search._records import TrialStatus
from dse.search.analyse._pareto import pareto_mask
from dse.search.propose import BoundedProposer
from tests.search.propose.made_up import SPACE, MadeUp, MadeUpEvaluator, made_up


def front_of(costs):
    costs = np.array(costs)
    return (
        {tuple(row) for row in costs[pareto_mask(costs, [False, False])]} if len(costs) else set()
    )


@given(made_up(), st.integers(1, 7))
@settings(deadline=None)
def test_the_front_is_that_of_all_configurations_once_all_were_proposed(case, count):
    evaluator = MadeUpEvaluator(case)
    strategy = BoundedProposer(case.space, 0, evaluator)
    answers, rounds = [], 0
    while not strategy.exhausted:
        batch = strategy.ask(count)
        records = [evaluator.answer(proposal) for proposal in batch.proposals]
        answers += [r.values for r in records if r.status is TrialStatus.FEASIBLE]
        strategy.tell(records)
        rounds += 1
        assert rounds <= len(case.answers)
    possible = [cost for cost, fits in zip(case.answers, case.feasible, strict=True) if fits]
    assert front_of(answers) == front_of(possible)
    certificate = strategy.certificate()
    assert certificate.complete
    looked_at = (
        certificate.evaluated + certificate.proven_dominated + certificate.proven_infeasible
    )
    assert looked_at == len(case.answers)


def test_what_a_feasible_answer_dominates_is_not_evaluated():
    count = 30
    case = MadeUp(
        [(0.0, 0.0), *((float(cost), float(cost)) for cost in range(5, 4 + count))],
        [1.0] * count,
        [True] * count,
    )
    evaluator = MadeUpEvaluator(case)
    strategy = BoundedProposer(case.space, 0, evaluator)
    first = strategy.ask(1)
    # The configurations drawn at first are opened by the best of them.
    assert dict(first.proposals[0].parameters)["index"] == 0
    strategy.tell([evaluator.answer(proposal) for proposal in first.proposals])
    assert not strategy.ask(20).proposals
    assert strategy.exhausted
    assert strategy.certificate().proven_dominated == count - 1


def test_a_resumed_run_proposes_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("dse.search.propose._choose.MOST_ENUMERATED", 10)
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    whole = run(path, RunOptions(trials=12, out=tmp_path / "whole")).result
    run(path, RunOptions(trials=5, out=tmp_path / "part"))
    run(path, RunOptions(trials=12, out=tmp_path / "part", resume=True))
    resumed = load_study(tmp_path / "part").result
    assert {r.parameters for r in resumed.front} == {r.parameters for r in whole.front}
    assert not whole.certificate.complete
    assert whole.certificate.distinct == 0
    assert sum(record.evaluated for record in whole.records) == 12
