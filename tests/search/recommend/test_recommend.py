"""Recommendations against looking at everything."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
import math

import pytest

from dse.errors import ConfigError, UnknownNameError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.search.recommend import (
    Budget,
    Deadline,
    HourlyBudget,
    Option,
    OptionEvaluator,
    RecommendOptions,
    Solved,
    Target,
    Verdict,
    judge_options,
    option_evaluator,
    recommend,
    recommendation,
)
from dse.workload import load_workload
from dse.workload.transformer import TransformerWorkload

PLATFORMS = ("h100_sxm", "v100_dgx1")
SMALL = RecommendOptions(platforms=PLATFORMS, world_sizes=(1, 8), batch_sizes=(4096, 16384))


class Remembered:
    """The evaluator of recommendations, which answers the same question once."""

    def __init__(self, inner):
        self.impossible = cache(inner.impossible)
        self.bound_per_s = cache(inner.bound_per_s)
        self.solve = cache(inner.solve)
        self.limit = inner.limit


@cache
def evaluator_of(model_name, options):
    """The evaluator of recommendations, and every option of the space."""
    workload = load_workload(model_name)
    platforms = {name: load_platform(name) for name in options.platforms}
    every = [
        Option(name, size, batch, workload.precision, platform.quote(size).usd_per_hour)
        for name, platform in platforms.items()
        for size in options.world_sizes
        for batch in options.batch_sizes
    ]
    return Remembered(option_evaluator(workload, platforms, options)), every


def recommended_of(model_name, options, goal):
    evaluator, space = evaluator_of(model_name, options)
    judgements = judge_options(evaluator, space, goal)
    return recommendation(evaluator, judgements, goal, model=model_name, confidence=0.5, space=())


@cache
def brute_force(model_name):
    """The plan of every option, without any bound."""
    evaluator, options = evaluator_of(model_name, SMALL)
    possible = [option for option in options if not evaluator.impossible(option)]
    found = [evaluator.solve(option, math.inf) for option in possible]
    return [solved for solved in found if solved.prediction.feasible]


def throughputs():
    return sorted(solved.throughput_per_s for solved in brute_force("dlrm_tiny"))


GOALS = [
    lambda: Target(throughputs()[len(throughputs()) // 2]),
    lambda: Target(throughputs()[-1]),
    lambda: Target(2 * throughputs()[-1]),
    lambda: Deadline(3600.0, 3600 * throughputs()[len(throughputs()) // 2]),
    lambda: Budget(100.0, 1e10),
    lambda: Budget(1e-6, 1e10),
    lambda: HourlyBudget(60.0),
    lambda: HourlyBudget(1.0),
]


def reaches(solved, goal):
    return solved.throughput_per_s >= goal.required_per_s(solved.option.price_usd_per_hour)


@cache
def recommended(goal):
    return recommended_of("dlrm_tiny", SMALL, goal)


@pytest.mark.parametrize("goal", GOALS)
def test_nothing_that_was_not_looked_at_is_better(goal):
    goal = goal()
    answer = recommended(goal)
    good = [solved for solved in brute_force("dlrm_tiny") if reaches(solved, goal)]
    assert (answer.answer is None) == (not good)
    assert len(answer.judgements) == 2 * 2 * 2
    assert sum(answer.count(verdict) for verdict in Verdict) == 8
    if answer.answer is None:
        assert answer.runners_up == ()
        closest = answer.closest
        if not isinstance(goal, HourlyBudget):
            share = max(
                solved.throughput_per_s / goal.required_per_s(solved.option.price_usd_per_hour)
                for solved in brute_force("dlrm_tiny")
            )
            reached = closest.throughput_per_s / goal.required_per_s(
                closest.option.price_usd_per_hour
            )
            assert reached == pytest.approx(share)
            assert answer.limit
        return
    best = min(good, key=lambda solved: solved.rank(goal))
    assert reaches(answer.answer, goal)
    if isinstance(goal, Target):
        # Among equal prices the better plan may hide behind a good enough one.
        assert answer.answer.option.price_usd_per_hour == best.option.price_usd_per_hour
    else:
        # Plans within a twentieth of their bound are not searched for thoroughly.
        leading = answer.answer.rank(goal)[0]
        assert leading == pytest.approx(best.rank(goal)[0], rel=0.05)
    for platform in PLATFORMS:
        own = [solved for solved in good if solved.option.platform == platform]
        told = [
            solved
            for solved in (answer.answer, *answer.runners_up)
            if solved.option.platform == platform
        ]
        assert len(told) == (1 if own else 0)


@pytest.mark.parametrize("goal", GOALS)
def test_what_is_ruled_out_is_ruled_out_with_reason(goal):
    goal = goal()
    found = recommended(goal)
    fastest = {}
    for solved in brute_force("dlrm_tiny"):
        fastest[solved.option] = max(fastest.get(solved.option, 0.0), solved.throughput_per_s)
    for judgement in found.judgements:
        option = judgement.option
        if judgement.verdict is Verdict.IMPOSSIBLE:
            assert judgement.reason
            assert option not in fastest
            continue
        throughput = fastest[option]
        required = goal.required_per_s(option.price_usd_per_hour)
        assert throughput <= judgement.bound_per_s * (1 + 1e-9)
        if judgement.verdict in (Verdict.BOUNDED, Verdict.MISSES):
            assert throughput < required
        elif judgement.verdict is Verdict.WORSE:
            best = next(
                solved
                for solved in (found.answer, *found.runners_up)
                if solved.option.platform == option.platform
            )
            assert best.rank(goal) <= goal.rank(throughput, option.price_usd_per_hour)


class Table(OptionEvaluator):
    """Options whose throughput, bound and memory are written down."""

    def __init__(self, throughputs, slack=1.0, never=()):
        self.throughputs = throughputs
        self.slack = slack
        self.never = never
        self.solved = []

    def impossible(self, option):
        return "does not fit" if option in self.never else ""

    def bound_per_s(self, option, required_per_s=None):
        del required_per_s
        return self.slack * self.throughputs[option]

    def solve(self, option, bound_per_s):
        self.solved.append(option)
        time_s = option.global_batch_size / self.throughputs[option]
        prediction = replace(
            example().prediction,
            iteration_time_s=time_s,
            iteration_time_p5_s=time_s / 1.1,
            iteration_time_p95_s=time_s * 1.1,
            throughput_samples_per_s=self.throughputs[option],
            feasible=True,
        )
        return Solved(option, example().configuration, prediction, "", bound_per_s)

    def limit(self, solved):
        return "nothing"


@cache
def example():
    return brute_force("dlrm_tiny")[0]


def option(platform, world_size, price):
    return Option(platform, world_size, 1024, Precision.FP16, price)


def test_bounds_save_searches():
    """The cheapest that can reach the target is searched first, and nothing after it."""
    options = [option("one", 2**power, 2.0**power) for power in range(8)]
    bench = Table({one: 1e6 * one.world_size for one in options}, slack=1.02)
    judged = judge_options(bench, options, Target(7.9e6))
    assert bench.solved == [options[3]]
    assert [one.verdict for one in judged] == [
        *[Verdict.BOUNDED] * 3,
        Verdict.MEETS,
        *[Verdict.WORSE] * 4,
    ]
    bench.solved.clear()
    judged = judge_options(bench, options, HourlyBudget(16.0))
    assert bench.solved == [options[4]]
    # A loose bound does not rule out what misses; that is told.
    loose = Table({one: 1e6 * one.world_size for one in options}, slack=1.5)
    judged = judge_options(loose, options, Target(7.9e6))
    assert [one.verdict for one in judged[2:4]] == [Verdict.BOUNDED, Verdict.MEETS]
    judged = judge_options(loose, options, Target(5.9e6))
    assert [one.verdict for one in judged[2:4]] == [Verdict.UNDECIDED, Verdict.MEETS]


def test_every_platform_gets_its_own_best():
    options = [
        option(name, size, size * price)
        for name, price in (("dear", 5.0), ("cheap", 1.0))
        for size in (1, 2, 4)
    ]
    bench = Table({one: 1e6 * one.world_size for one in options}, never=(options[0],))
    told = []
    judged = judge_options(
        bench, options, Deadline(1.0, 2e6), progress=lambda *done: told.append(done)
    )
    assert judged[0].verdict is Verdict.IMPOSSIBLE
    assert {one.option.platform for one in judged if one.verdict is Verdict.MEETS} == {
        "dear",
        "cheap",
    }
    assert told == [(count + 1, 6) for count in range(6)]


def test_probabilities_and_confidence():
    only = option("one", 8, 10.0)
    bench = Table({only: 1e6})
    solved = bench.solve(only, 1e6)
    # Half above the expected value; 95 % above the lower end of a 90 % interval.
    assert solved.probability(Target(1e6)) == pytest.approx(0.5)
    assert solved.probability(Target(1e6 / 1.1)) == pytest.approx(0.95, abs=1e-3)
    assert solved.probability(Target(1.1e6)) == pytest.approx(0.05, abs=1e-3)
    assert solved.probability(HourlyBudget(5.0)) == 0.0
    assert solved.probability(HourlyBudget(10.0)) == 1.0
    for confidence, verdict in ((0.9, Verdict.MEETS), (0.96, Verdict.UNDECIDED)):
        (judged,) = judge_options(bench, [only], Target(1e6 / 1.1), confidence=confidence)
        assert judged.verdict is verdict


def test_runners_up_are_searched_as_hard_as_the_answer():
    """Every plan that is shown is the one that its option gets when it is looked at alone."""
    goal = Target(0.5 * throughputs()[0])
    found = recommend("dlrm_tiny", goal, SMALL)
    assert len(found.runners_up) == 1
    fastest = {solved.option: solved.throughput_per_s for solved in brute_force("dlrm_tiny")}
    for solved in (found.answer, *found.runners_up):
        # A plan within a twentieth of its bound is good enough for any of them.
        enough = min(fastest[solved.option], solved.bound_per_s / 1.05)
        assert solved.throughput_per_s >= enough * (1 - 1e-9)


def test_goals_by_hand():
    assert Deadline(10.0, 1e6).required_per_s(99.0) == 1e5
    # 36 USD/h is a cent a second: a million samples for 10 USD leave 1000 s.
    assert Budget(10.0, 1e6).required_per_s(36.0) == pytest.approx(1000.0)
    assert HourlyBudget(36.0).required_per_s(36.0) == 0.0
    assert HourlyBudget(36.0).required_per_s(36.1) == math.inf
    assert Deadline(10.0, 1e6).rank(1e5, 36.0)[0] == pytest.approx(0.1)
    for goal in (Target(1.0), Deadline(10.0, 1e6), Budget(10.0, 1e6), HourlyBudget(1.0)):
        assert goal.rank(2e5, 10.0) < goal.rank(1e5, 10.0)
        assert goal.rank(math.inf, 10.0) < goal.rank(1e5, 10.0)
    with pytest.raises(ConfigError, match="above 0"):
        Target(0.0)
    with pytest.raises(ConfigError, match="above 0"):
        Deadline(10.0, math.inf)


def test_transformers_get_the_best_way_to_spread_them():
    options = RecommendOptions(
        platforms=("a100_sxm_80", "h100_sxm"), world_sizes=(4, 8), batch_sizes=(64,)
    )
    evaluator, space = evaluator_of("gpt_1_7b", options)
    every = [evaluator.solve(option, math.inf) for option in space]
    for goal in (
        Target(1.01 * min(solved.throughput_per_s for solved in every)),
        Deadline(3600.0, 3600 * 1.01 * min(solved.throughput_per_s for solved in every)),
        HourlyBudget(60.0),
    ):
        found = recommended_of("gpt_1_7b", options, goal)
        good = [solved for solved in every if reaches(solved, goal)]
        best = min(good, key=lambda solved: solved.rank(goal))
        assert found.answer.option == best.option
        assert found.answer.configuration == best.configuration
        spread = TransformerWorkload.parallelism(best.configuration)
        assert f"data {spread.data}" in found.answer.planner or spread.data == 1
        assert f"micro batch {spread.micro_batch_size}" in found.answer.planner
        assert not found.undecided_better
    # No way to spread the step is faster than the arithmetic at the peak rate.
    for solved in every:
        assert solved.throughput_per_s < evaluator.bound_per_s(solved.option)


def test_wrong_questions():
    with pytest.raises(UnknownNameError):
        recommend("dlrm_tinny", Target(1.0))
    with pytest.raises(ConfigError, match="has no on_demand price"):
        recommend("dlrm_tiny", Target(1.0), RecommendOptions(platforms=("cpu",)))
    with pytest.raises(ConfigError, match="no platform has a price on the basis `spot` of Nobody"):
        recommend(
            "dlrm_tiny",
            Target(1.0),
            RecommendOptions(price_basis="spot", price_provider="Nobody"),
        )
    with pytest.raises(ConfigError, match="world size 0"):
        recommend("dlrm_tiny", Target(1.0), RecommendOptions(world_sizes=(0,)))
    with pytest.raises(ConfigError, match=r"confidence 0\.1"):
        recommend("dlrm_tiny", Target(1.0), RecommendOptions(confidence=0.1))


def test_a_model_that_fits_nowhere_says_so():
    options = RecommendOptions(platforms=("v100_dgx1",), world_sizes=(1, 2))
    found = recommend("dlrm_dcnv2", Target(1e6), options)
    assert found.answer is None
    assert found.closest is None
    assert all(one.verdict is Verdict.IMPOSSIBLE for one in found.judgements)
    assert "the tables take" in found.judgements[0].reason
