"""Thorough plans for the front: which are searched, and that nothing depends on the order."""

from __future__ import annotations

from dataclasses import dataclass, replace
import random

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
import yaml

import dse
from dse.search import RunOptions, mark_front, read_inputs, run
from dse.search._polish import FrontPolish
from dse.search._proposals import Effort, Proposal
from dse.search.space import SamplerName
from dse.sharding import ShardingPlan
from tests.conftest import ROOT
from tests.search.analyse.studies import MEMORY, SPEED, trial

OBJECTIVES = (SPEED, MEMORY)


def answer(number, throughput, free, plan, **changes):
    """An answer with a plan, which is only a number here."""
    record = trial(number, throughput, 1.0, free=free, objectives=OBJECTIVES)
    parameters = (("number", number),)
    configuration = replace(
        record.configuration,
        parameters=parameters,
        plan=ShardingPlan(plan, ()),
        planner="made up",
    )
    return replace(record, parameters=parameters, configuration=configuration, **changes)


@dataclass
class Case:
    """Configurations with known answers.

    Attributes:
        quick: Throughput and free memory of each one's quick plan.
        thorough: The same of its thorough plan.
        other: The same with the thorough plan of another one, by both numbers; None if it may not
            be used.
    """

    quick: list[tuple[int, int]]
    thorough: list[tuple[int, int]]
    other: dict[tuple[int, int], tuple[int, int] | None]

    def __post_init__(self):
        self.searched = []

    @property
    def first(self):
        return [answer(number, *point, number) for number, point in enumerate(self.quick)]

    def search(self, number):
        self.searched.append(number)
        return answer(number, *self.thorough[number], 1000 + number, thorough=True)

    def compare(self, record, others):
        found = []
        for other in others:
            plan = other.configuration.plan.world_size
            point = self.other.get((record.number, plan % 1000)) if plan >= 1000 else None
            if point is not None:
                found.append(answer(record.number, *point, plan, borrowed=True))
        return [each for each in found if each.values[0] > record.values[0]]


def polished(case, workers=1, seed=0, compare=True, known=(), most=1000):
    """Searches with so many workers, which end in any order; returns the records and the answers.

    Args:
        case: The answers.
        workers: Searches at a time.
        seed: Which one ends first.
        compare: Whether plans of others are tried.
        known: Answers of an earlier run.
        most: Answers before the run is interrupted.
    """
    stored = list(known)
    rng = random.Random(seed)
    polish = FrontPolish(
        case.first, stored, OBJECTIVES, case.compare if compare else None, stored.append
    )
    busy = []
    while polish.waiting and most:
        for record in polish.waiting:
            proposal = Proposal(record.number, record.parameters, Effort.THOROUGH)
            if len(busy) < workers and proposal not in busy and polish.wants(proposal):
                busy.append(proposal)
        done = busy.pop(rng.randrange(len(busy)))
        stored.append(case.search(done.number))
        polish.add(stored[-1])
        most -= 1
    return polish.records, stored


def points(records):
    return [(each.number, each.values, each.thorough) for each in records]


def plain(case):
    """The same without plans of others, one after the other, with nothing kept between steps."""
    records = case.first
    while True:
        marked = mark_front(records, OBJECTIVES)
        quick = [each for each in marked if each.on_front and not each.thorough]
        if not quick:
            return records
        first = min(quick, key=lambda each: (-each.values[0], -each.values[1], each.number))
        found = case.search(first.number)
        least = 1.0 if found.values[1] >= first.values[1] else 1.01
        if found.values[0] <= least * first.values[0]:
            found = replace(first, thorough=True)
        records = [found if each.number == found.number else each for each in records]


speeds = st.sampled_from([50, 90, 100, 100.5, 103, 106.5, 107, 130])
point = st.tuples(speeds, st.sampled_from([0.125, 0.25, 0.375, 0.5, 0.625, 0.75]))


@st.composite
def cases(draw):
    count = draw(st.integers(1, 9))
    quick = draw(st.lists(point, min_size=count, max_size=count))
    thorough = draw(st.lists(point, min_size=count, max_size=count))
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    return Case(quick, thorough, {pair: draw(st.none() | point) for pair in pairs})


@given(cases())
@settings(deadline=None)
def test_what_is_on_the_front_was_searched(case):
    records, _ = polished(case)
    for record in mark_front(records, OBJECTIVES):
        assert record.thorough or not record.on_front
    assert len(case.searched) == len(set(case.searched))
    for record in records:
        # No configuration gets a slower plan.
        assert record.values[0] >= case.quick[record.number][0]


@given(cases(), st.integers(1, 6), st.integers(0, 99))
@settings(deadline=None)
def test_answers_do_not_depend_on_the_workers(case, workers, seed):
    assert points(polished(case)[0]) == points(polished(case, workers, seed)[0])


@given(cases(), st.integers(1, 4), st.integers(0, 99), st.integers(0, 9))
@settings(deadline=None)
def test_an_interrupted_run_ends_with_the_same_answers(case, workers, seed, most):
    whole, _ = polished(case)
    _, stored = polished(case, workers, seed, most=most)
    resumed, stored = polished(case, known=stored)
    assert points(resumed) == points(whole)
    # A study that is read back has the stored answers only.
    assert points(polished(case, compare=False, known=stored)[0]) == points(whole)


@given(cases())
@settings(deadline=None)
def test_without_plans_of_others_it_is_one_search_after_the_other(case):
    assert points(polished(case, compare=False)[0]) == points(plain(case))


def test_what_another_ones_plan_takes_off_the_front_is_not_searched():
    # The better plan of 0 takes more memory, so the quick plan of 1 comes onto the front.
    case = Case([(10, 0.5), (8, 0.5)], [(12, 0.25), (9, 0.25)], {(1, 0): (9, 0.25)})
    records, stored = polished(case)
    assert case.searched == [0]
    assert points(records) == [(0, (12, 0.25), True), (1, (9, 0.25), False)]
    assert [record.borrowed for record in stored] == [False, True]
    case.searched.clear()
    polished(case, compare=False)
    assert case.searched == [0, 1]


def test_a_plan_that_needs_more_memory_has_to_be_faster_by_a_percent():
    def searched(throughput, free):
        records, _ = polished(Case([(200, 0.5)], [(throughput, free)], {}))
        return records[0].values

    assert searched(201, 0.25) == (200, 0.5)
    assert searched(203, 0.25) == (203, 0.25)
    assert searched(201, 0.5) == (201, 0.5)


def test_a_search_that_is_no_better_keeps_the_answer():
    case = Case([(10, 0.5)], [(10, 0.75)], {})
    records, _ = polished(case)
    assert points(records) == [(0, (10, 0.5), True)]


SPACE = """\
schema_version: 1
name: polished
workload: {model: dlrm_tiny}
parameters:
  program: ideal
  platform: a100_sxm_80
  world_size: [2, 4]
  global_batch_size: [16384, 65536]
  launch: [eager, cuda_graphs]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
  - {metric: memory_headroom_fraction, direction: maximize}
search: {sampler: grid, batch: 8, improvement_rounds: 1, planners: [size_greedy]}
"""


def test_a_plan_of_another_configuration_is_used_where_it_is_faster(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(
        SPACE.replace("rounds: 1, planners: [size_greedy]", "rounds: 0, planners: [random]")
    )
    inputs = read_inputs(path)
    evaluator = inputs.context.make_evaluator()
    first = {each.name: each.choices[0] for each in inputs.space.parameters}
    slow = evaluator.evaluate(3, {**first, "launch": "eager"})
    path.write_text(SPACE)
    searching = read_inputs(path).context.make_evaluator()
    good = searching.evaluate_thoroughly(5, {**first, "launch": "cuda_graphs"})
    elsewhere = searching.evaluate_thoroughly(6, {**first, "world_size": 4})
    plans = [evaluator.job(each.configuration).plan for each in (slow, good)]
    job = evaluator.open_job(dict(slow.parameters))
    times_s = [job.with_plan(plan).simulated().time_s for plan in plans]
    assert times_s[1] < times_s[0]
    (found,) = evaluator.with_plans_of(slow, [elsewhere, good])
    assert found.borrowed
    assert (found.number, found.parameters) == (3, slow.parameters)
    assert found.configuration.plan == plans[1]
    assert found.prediction.iteration_time_s == pytest.approx(times_s[1])
    assert evaluator.with_plans_of(found, [good]) == ()
    # It is for another number of ranks.
    assert evaluator.with_plans_of(slow, [elsewhere]) == ()


def test_a_run_ends_with_the_same_front_whatever_the_order_of_answers(tmp_path, out_of_order):
    model = yaml.safe_load((ROOT / "models/dlrm_tiny.yaml").read_text())
    model["tables"] = model["tables"][:4]
    (tmp_path / "few_tables.yaml").write_text(yaml.safe_dump(model))
    space = tmp_path / "space.yaml"
    space.write_text(SPACE.replace("dlrm_tiny", "few_tables.yaml"))

    def front(name, **settings):
        study = run(space, RunOptions(out=tmp_path / name, sampler=SamplerName.GRID, **settings))
        assert all(record.thorough for record in study.result.front)
        loaded = dse.load_study(study.directory.root).result
        assert loaded.front == study.result.front
        return study.directory.pareto.read_bytes()

    whole = front("serial", executor="serial")
    front("part", trials=3, executor="serial")
    assert front("part", trials=8, executor="serial", resume=True) == whole
    out_of_order()
    assert front("shuffled") == whole
