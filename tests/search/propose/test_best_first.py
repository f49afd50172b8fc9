"""Exact search: fronts against brute force, bounds against answers, certificates."""

from __future__ import annotations

from dataclasses import replace
import itertools
import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import ConfigError
from dse.search import RunOptions, load_study, read_inputs, run
from dse.search._certificate import Certificate, stronger
from dse.search._proposals import Effort, Proposal
from dse.search._records import TrialStatus
from dse.search.analyse import conclude
from dse.search.analyse._hypervolume import hypervolume
from dse.search.analyse._pareto import pareto_mask
from dse.search.evaluate._distinct import Canonical, enumerate_space
from dse.search.propose import BestFirst, make_strategy
from dse.search.space import Constraint, SamplerName
from tests.search.propose.made_up import SPACE, MadeUp, MadeUpEvaluator, made_up

TRANSFORMER_SPACE = """\
schema_version: 1
name: exact transformer
workload: {model: gpt_1_7b}
parameters:
  platform: [a100_sxm_80, h100_sxm]
  world_size: [8, 16]
  global_batch_size: 32
  tensor: [1, 2, 8]
  pipeline: [1, 2]
  micro_batch_size: [1, 4]
  sequence_parallel: [false, true]
  recompute: [none, full]
  data_sharding: [none, zero1, zero3]
objectives:
  - {metric: throughput_tokens_per_s, direction: maximize}
  - {metric: cost_usd_per_million_samples, direction: minimize}
search: {batch: 4}
"""


@pytest.fixture(scope="module", params=[SPACE, TRANSFORMER_SPACE], ids=["dlrm", "transformer"])
def inputs(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "space.yaml"
    path.write_text(request.param)
    return read_inputs(path)


@pytest.fixture(scope="module")
def every(inputs):
    """Answers of the whole space."""
    evaluator = inputs.context.make_evaluator()
    names = [parameter.name for parameter in inputs.space.parameters]
    records = []
    for chosen in itertools.product(*(each.choices for each in inputs.space.parameters)):
        parameters = dict(zip(names, chosen, strict=True))
        if not evaluator.rejection(parameters):
            records.append(evaluator.evaluate(len(records), parameters))
    return records


def front_values(records, objectives):
    values = np.array([r.values for r in records if r.status is TrialStatus.FEASIBLE])
    mask = pareto_mask(values, [axis.maximize for axis in objectives])
    return {tuple(f"{value:.9g}" for value in row) for row in values[mask]}


# --- with the performance model --------------------------------------------------------------


@pytest.fixture(scope="module")
def searched(inputs):
    """A search to its end without an executor: the records and the strategy."""
    evaluator = inputs.context.make_evaluator()
    strategy = make_strategy(inputs.space, SamplerName.AUTO, 0, evaluator)
    records = []
    while not strategy.exhausted:
        batch = strategy.ask(4)
        strategy.tell_bounds([evaluator.answer(proposal) for proposal in batch.bounds])
        answers = [evaluator.answer(proposal) for proposal in batch.proposals]
        records += answers
        strategy.tell(answers)
    return records, strategy


def test_the_front_is_that_of_all_configurations(inputs, every, searched):
    records, strategy = searched
    objectives = inputs.space.objectives
    assert front_values(records, objectives) == front_values(every, objectives)
    certificate = strategy.certificate()
    assert certificate.complete
    assert certificate.hypervolume_missing_at_most == 0
    assert certificate.evaluated == len(records) < len(every) / 8
    parts = certificate.evaluated + certificate.proven_dominated + certificate.proven_infeasible
    parts += certificate.tied
    assert certificate.distinct == parts


def test_what_is_evaluated_for_comparison_stays_proven_dominated(every, searched):
    records, strategy = searched
    certificate = strategy.certificate()
    known = {record.parameters for record in records}
    strategy.tell([record for record in every if record.parameters not in known][:5])
    assert strategy.certificate() == certificate


def test_nothing_beats_its_bounds(inputs, every):
    evaluator = inputs.context.make_evaluator()
    for record in random.Random(4).sample(every, 24):
        prediction = record.prediction
        before = 0.0
        for effort in range(evaluator.finest_bound + 1):
            proposal = Proposal(record.number, record.parameters, Effort(effort))
            bound = evaluator.answer(proposal)
            if bound.lower_bound_s is not None:
                bound = evaluator.bounded(proposal, bound.lower_bound_s)
            if bound.prediction is None:
                assert record.status is TrialStatus.INFEASIBLE
                break
            least_s = bound.prediction.iteration_time_s
            # A lower bound is that of the linear program, up to its tolerance.
            assert before <= least_s <= prediction.iteration_time_s * (1 + 1e-9)
            assert bound.prediction.peak_memory_bytes <= prediction.peak_memory_bytes * (1 + 1e-9)
            assert bound.prediction.fit_probability >= prediction.fit_probability
            for axis, value, best in zip(
                inputs.space.objectives, record.values, bound.values, strict=True
            ):
                worse = best / value if axis.maximize else value / best
                assert worse >= 1 - 1e-9
            before = least_s if effort < Effort.OWN_BOUND else before


def test_what_is_never_slower_has_the_lower_bound(inputs, every):
    evaluator, workload = inputs.context.make_evaluator(), inputs.context.workload
    choices = {each.name: each.choices for each in inputs.space.parameters}
    for record in random.Random(5).sample(every, 12):
        parameters = dict(record.parameters)
        best = evaluator.open_job(workload.favourable(parameters, choices))
        own = evaluator.open_job(parameters)
        assert best.optimistic_time_s() <= own.optimistic_time_s() * (1 + 1e-9)
        if workload.finds_plans:
            assert best.lower_bound_s() <= own.lower_bound_s() * (1 + 1e-6)


@pytest.mark.parametrize("inputs", [SPACE], ids=["dlrm"], indirect=True)
def test_equal_configurations_are_one(inputs, every):
    evaluator = inputs.context.make_evaluator()
    found = enumerate_space(inputs.space, evaluator)
    on_one_node = [each for each in found.distinct if dict(each.parameters)["world_size"] == 2]
    # Rows over a node are rows over all ranks there, and no network is used.
    for each in on_one_node:
        assert "network" in each.equal_because
        assert dict(each.parameters)["network"] == "default"
        types = dict(each.parameters)["sharding_types"]
        assert types != "table_wise+table_row_wise"
        assert each.equal_count == (1 if types == "table_wise" else 3)
    on_two = [each for each in found.distinct if dict(each.parameters)["world_size"] == 16]
    assert {dict(each.parameters)["network"] for each in on_two if "a100" in str(each)} == {
        "default",
        "slow",
    }
    total = sum(1 + each.equal_count for each in found.distinct) + len(found.impossible)
    assert total == inputs.space.size
    canonical = Canonical(inputs.space, evaluator)
    known = {each.parameters for each in found.distinct}
    for record in random.Random(6).sample(every, 30):
        assert canonical(record.parameters) in known


def test_samplers_propose_no_configuration_under_two_names(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    options = RunOptions(trials=30, out=tmp_path / "study", sampler=SamplerName.RANDOM)
    records = run(path, options).result.records
    evaluator = read_inputs(path).context.make_evaluator()
    outcomes = [evaluator.outcome(dict(r.parameters)) for r in records if r.evaluated]
    assert len(outcomes) == len(set(outcomes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that looked at everything."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "space.yaml").write_text(SPACE)
    return run(folder / "space.yaml", RunOptions(out=folder / "study"))


def test_a_run_is_certified_and_the_same_for_any_number_of_workers(tmp_path, whole, out_of_order):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    out_of_order()
    other = run(path, RunOptions(out=tmp_path / "other")).result
    assert whole.exhausted
    assert whole.result.certificate == other.certificate
    assert whole.result.certificate.complete
    assert {r.parameters for r in whole.result.front} == {r.parameters for r in other.front}
    assert all(record.thorough for record in whole.result.front)


def test_a_part_of_the_search_says_what_can_be_missing(tmp_path, whole):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    whole = whole.result
    part = run(path, RunOptions(out=tmp_path / "part", trials=1)).result
    assert not part.certificate.complete
    values = np.array([r.values for r in (*whole.front, *part.front)])
    maximize = [axis.maximize for axis in whole.objectives]
    worst = np.where(maximize, values.min(axis=0), values.max(axis=0))
    most = hypervolume([r.values for r in whole.front], worst, maximize)
    got = hypervolume([r.values for r in part.front], worst, maximize)
    assert 0 < part.certificate.hypervolume_missing_at_most <= 1
    assert most - got <= 1e-12 or part.certificate.hypervolume_missing_at_most > 0
    resumed = run(path, RunOptions(out=tmp_path / "part", trials=1000, resume=True)).result
    assert resumed.certificate == whole.certificate
    assert {r.parameters for r in resumed.front} == {r.parameters for r in whole.front}


def test_a_candidate_keeps_its_number_when_a_study_is_continued(tmp_path):
    path, out = tmp_path / "space.yaml", tmp_path / "study"
    path.write_text(SPACE)
    run(path, RunOptions(out=out, trials=1))
    before: dict[int, object] = {}
    for trials in (2, 4, 7, 1000):
        result = run(path, RunOptions(out=out, trials=trials, resume=True)).result
        numbers = {record.number: record.parameters for record in result.records}
        assert len(numbers) == len(result.records)
        assert before.items() <= numbers.items()
        assert load_study(out).result == result
        before = numbers


def test_a_search_ends_at_its_time_limit_and_can_be_resumed(tmp_path, whole):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    # The first round begins later than this, but a few are evaluated all the same.
    part = run(path, RunOptions(out=tmp_path / "study", time_limit_s=1e-9)).result
    assert not part.certificate.complete
    assert 1 <= part.certificate.evaluated <= 4
    assert 0 < part.certificate.hypervolume_missing_at_most < 1
    # Answers are kept by a second run that is as short.
    again = run(path, RunOptions(out=tmp_path / "study", time_limit_s=1e-9, resume=True)).result
    assert {r.parameters for r in part.front} == {r.parameters for r in again.front}
    assert again.certificate == part.certificate
    resumed = run(path, RunOptions(out=tmp_path / "study", resume=True)).result
    assert resumed.certificate.complete
    assert {(r.parameters, r.values) for r in resumed.front} == {
        (r.parameters, r.values) for r in whole.result.front
    }
    # Nor does one forget what is proven, and which configurations were rejected.
    short = run(path, RunOptions(out=tmp_path / "study", time_limit_s=1e-9, resume=True))
    assert short.exhausted
    assert short.result == resumed == load_study(tmp_path / "study").result
    with pytest.raises(ConfigError):
        run(path, RunOptions(out=tmp_path / "other", time_limit_s=0.0))


def test_a_resumed_run_that_is_interrupted_keeps_every_trial_and_the_certificate(
    tmp_path, monkeypatch
):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    whole = run(path, RunOptions(out=tmp_path / "study")).result
    assert whole.certificate.complete
    rejected = [r for r in whole.records if r.status is TrialStatus.REJECTED]
    assert rejected

    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(BestFirst, "ask", interrupt)
    part = run(path, RunOptions(out=tmp_path / "study", resume=True))
    assert part.interrupted
    assert part.result == whole
    assert load_study(tmp_path / "study").result == whole


def test_no_certificate_is_kept_of_trials_that_are_lost(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    study = run(path, RunOptions(out=tmp_path / "study"))
    assert study.result.certificate.complete
    study.directory.journal.unlink()
    short = run(path, RunOptions(out=tmp_path / "study", time_limit_s=1e-9, resume=True))
    assert not short.exhausted
    assert not short.result.certificate.complete


@pytest.mark.parametrize(
    ("former", "found", "kept"),
    [
        (0.2, 0.3, "former"),
        (0.3, 0.2, "found"),
        (0.2, 0.2, "found"),
        (0.2, math.nan, "former"),
        (math.nan, 0.2, "found"),
        ("complete", math.nan, "former"),
        (0.0, "complete", "found"),
    ],
)
def test_of_two_certificates_the_one_that_proves_more_counts(former, found, kept):
    both = {}
    for name, missing in (("former", former), ("found", found)):
        whole = missing == "complete"
        both[name] = Certificate(whole, 10, 5, 1, 1, 0.0 if whole else missing)
    assert stronger(both["former"], both["found"]) is both[kept]
    assert stronger(None, both["found"]) is both["found"]
    assert stronger(both["former"], None) is None


# --- with made-up answers --------------------------------------------------------------------


def test_a_hurried_round_evaluates_what_looks_best_and_asks_for_no_bounds():
    case = MadeUp([(3.0, 1.0), (1.0, 3.0), (4.0, 4.0)], [0.5] * 3, [True] * 3)
    evaluator = MadeUpEvaluator(case)
    search = BestFirst(case.space, enumerate_space(case.space, evaluator), evaluator)
    assert search.ask(4).bounds
    batch = search.ask(2, hurried=True)
    assert sorted(dict(p.parameters)["index"] for p in batch.proposals) == [0, 1]
    assert not batch.bounds


@given(made_up(), st.integers(1, 7))
@settings(deadline=None)
def test_every_front_is_found(case, count):
    evaluator = MadeUpEvaluator(case)
    found = enumerate_space(case.space, evaluator)
    strategy = BestFirst(case.space, found, evaluator)
    seen = {}
    while not strategy.exhausted:
        batch = strategy.ask(count)
        assert len(batch.proposals) <= count
        assert batch.proposals or batch.bounds
        strategy.tell_bounds([evaluator.answer(each) for each in batch.bounds])
        answers = [evaluator.answer(each) for each in batch.proposals]
        strategy.tell(list(reversed(answers)))
        for record in answers:
            index = dict(record.parameters)["index"]
            assert index not in seen
            seen[index] = record
    points = [
        answer for answer, feasible in zip(case.answers, case.feasible, strict=True) if feasible
    ]
    mask = pareto_mask(np.array(points).reshape(-1, 2), [False, False])
    wanted = {point for point, marked in zip(points, mask, strict=True) if marked}
    got = {record.values for record in seen.values() if record.status is TrialStatus.FEASIBLE}
    assert wanted <= got
    # Only what could have been on the front was looked at.
    for index, record in seen.items():
        best = np.array(record.values) - 0.5 * case.margins[index]
        others = np.array(sorted(wanted)).reshape(-1, 2)
        strictly = (others <= best).all(axis=1) & (others < best).any(axis=1)
        assert not strictly.any() or tuple(record.values) in got


def test_ties_are_counted_apart():
    # The second leads the first by 0.005 % in one objective; the third is behind it in both; the
    # fourth leads it by 0.02 %, so it is on the front.
    answers = [(1.0, 1.0), (0.99995, 2.0), (2.0, 2.0), (0.9998, 3.0)]
    case = MadeUp(answers, [0.0] * 4, [True] * 4)
    evaluator = MadeUpEvaluator(case)
    strategy = BestFirst(case.space, enumerate_space(case.space, evaluator), evaluator)
    strategy.ask(4)
    for index in (0, 3):
        strategy.tell([evaluator.evaluate(index, {"index": index})])
    certificate = strategy.certificate()
    assert certificate.complete
    assert (certificate.evaluated, certificate.tied, certificate.proven_dominated) == (2, 1, 1)
    assert certificate.distinct == 4


@pytest.mark.filterwarnings("error")
def test_where_nothing_bounds_the_answers_all_are_wanted():
    case = MadeUp([(3.0, 1.0), (1.0, 2.0), (4.0, 4.0)], [math.inf] * 3, [True] * 3)
    evaluator = MadeUpEvaluator(case)
    strategy = BestFirst(case.space, enumerate_space(case.space, evaluator), evaluator)
    while not strategy.exhausted:
        batch = strategy.ask(1)
        strategy.tell_bounds([evaluator.answer(each) for each in batch.bounds])
        strategy.tell([evaluator.answer(each) for each in batch.proposals])
    assert strategy.certificate().evaluated == 3


def test_a_limit_on_the_wrong_side_of_a_bound_proves_nothing(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    inputs = read_inputs(path)
    slow = Constraint("iteration_time_s", at_most=None, at_least=1e-2)
    context = replace(inputs.context, space=replace(inputs.space, constraints=(slow,)))
    evaluator = context.make_evaluator()
    parameters = tuple((each.name, each.choices[0]) for each in inputs.space.parameters)
    bound = evaluator.bound(Proposal(0, parameters, Effort.OPTIMISTIC))
    assert bound.prediction.iteration_time_s < 1e-2
    assert bound.status is TrialStatus.FEASIBLE
    assert not math.isinf(bound.values[0])


def test_what_is_too_likely_to_run_out_of_memory_is_not_evaluated(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(
        "schema_version: 1\nname: tight\nworkload: {model: gpt_1_7b}\nparameters:\n"
        "  platform: a100_sxm_80\n  world_size: 8\n  global_batch_size: 32\n"
        "  micro_batch_size: 4\n  data_sharding: [none, zero1, zero3]\n"
        "objectives: [{metric: throughput_tokens_per_s, direction: maximize}]\n"
        "constraints: [{metric: fit_probability, at_least: 75 %}]\n"
    )
    evaluator = read_inputs(path).context.make_evaluator()
    statuses = []
    for number, sharding in enumerate(("none", "zero1", "zero3")):
        parameters = {"platform": "a100_sxm_80", "world_size": 8, "global_batch_size": 32}
        parameters |= {"micro_batch_size": 4, "data_sharding": sharding}
        proposal = Proposal(number, tuple(parameters.items()), Effort.OPTIMISTIC)
        bound, answer = evaluator.bound(proposal), evaluator.evaluate(number, parameters)
        assert bound.status is answer.status
        statuses.append((sharding, answer.status, 0.5 < answer.prediction.fit_probability < 0.99))
    assert statuses[1:] == [
        ("zero1", TrialStatus.INFEASIBLE, True),
        ("zero3", TrialStatus.FEASIBLE, True),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("  network: slo", "no network called `slo`"),
        ("  global_batch_size: 60", "60 does not divide over 8 ranks"),
    ],
)
def test_a_space_in_which_nothing_is_possible_says_why(tmp_path, line, reason):
    file = tmp_path / "space.yaml"
    batch = "" if "batch" in line else "  global_batch_size: 64\n"
    file.write_text(
        "schema_version: 1\nname: none\nworkload: {model: dlrm_tiny}\nparameters:\n"
        f"  platform: [h100_sxm, a100_sxm_80]\n  world_size: 8\n{batch}{line}\n"
        "objectives: [{metric: throughput_samples_per_s, direction: maximize}]\n"
    )
    for resume in (False, True):
        study = run(file, RunOptions(out=tmp_path / "out", executor="serial", resume=resume))
        assert {record.status for record in study.result.records} == {TrialStatus.REJECTED}
        assert reason in conclude(study.result)
