"""Recommendations against looking at everything."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
import math

import pytest

from dse.api import Job
from dse.errors import ConfigError, UnknownNameError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.search._proposals import Effort
from dse.search.recommend import (
    SURE,
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
from dse.workload import MemoryAccount, load_workload
from dse.workload.transformer import TransformerWorkload

PLATFORMS = ("h100_sxm", "v100_dgx1")
SMALL = RecommendOptions(platforms=PLATFORMS, world_sizes=(1, 8), batch_sizes=(4096, 16384))


class Remembered:
    """The evaluator of recommendations, which answers the same question once."""

    def __init__(self, inner):
        self.bounds = inner.bounds
        self.impossible = cache(inner.impossible)
        self.bound_per_s = cache(inner.bound_per_s)
        self.refined_per_s = inner.refined_per_s
        self.solve = cache(inner.solve)
        self.limit = inner.limit
        self.job = inner.evaluator.job


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
    return sorted(solved.throughput_per_s for solved in brute_force("dlrm_ddp"))


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
    return recommended_of("dlrm_ddp", SMALL, goal)


@pytest.mark.parametrize("goal", GOALS)
def test_nothing_that_was_not_looked_at_is_better(goal):
    goal = goal()
    answer = recommended(goal)
    good = [solved for solved in brute_force("dlrm_ddp") if reaches(solved, goal)]
    assert (answer.answer is None) == (not good)
    assert len(answer.judgements) == 2 * 2 * 2
    assert sum(answer.count(verdict) for verdict in Verdict) == 8
    if answer.answer is None:
        assert answer.runners_up == ()
        closest = answer.closest
        if not isinstance(goal, HourlyBudget):
            share = max(
                solved.throughput_per_s / goal.required_per_s(solved.option.price_usd_per_hour)
                for solved in brute_force("dlrm_ddp")
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
    for solved in brute_force("dlrm_ddp"):
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
            assert best.rank(goal) <= option.rank(goal, throughput)


class Table(OptionEvaluator):
    """Options whose throughput, bound and memory are written down."""

    def __init__(self, throughputs, slack=1.0, never=()):
        self.throughputs = throughputs
        self.slack = slack
        self.never = never
        self.solved = []

    def impossible(self, option):
        return "does not fit" if option in self.never else ""

    bounds = (Effort.OPTIMISTIC, Effort.OWN_BOUND)

    def bound_per_s(self, option, effort=Effort.OWN_BOUND):
        quick = 2.0 if effort is Effort.OPTIMISTIC else 1.0
        return quick * self.slack * self.throughputs[option]

    def refined_per_s(self, option, required_per_s):
        del required_per_s
        return self.slack * self.throughputs[option]

    def solve(self, option, bound_per_s, confidence=0.5):
        del confidence
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
        times_s = tuple(time_s * (1 + (step - 49.5) / 495) for step in range(100))
        return Solved(option, example().configuration, prediction, "", bound_per_s, times_s)

    def limit(self, solved):
        return "nothing"


@cache
def example():
    return brute_force("dlrm_ddp")[0]


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
    # A hundred times, equally far apart from nine tenths of the expected one to eleven tenths.
    assert solved.probability(Target(1e6)) == 0.5
    assert solved.probability(Target(1e6 / 1.05)) == 0.75
    assert solved.probability(Target(1e6 / 0.95)) == 0.25
    assert solved.probability(Target(1e6 / 1.2)) == 1.0
    assert solved.probability(Target(1e6 / 0.8)) == 0.0
    # Whoever is exactly as fast as required is fast enough.
    exact = Target(only.global_batch_size / solved.times_s[41])
    assert solved.probability(exact) == 0.42
    assert solved.probability(HourlyBudget(5.0)) == 0.0
    assert solved.probability(HourlyBudget(10.0)) == 1.0
    for confidence, verdict in ((0.75, Verdict.MEETS), (0.76, Verdict.MISSES)):
        (judged,) = judge_options(bench, [only], Target(1e6 / 1.05), confidence=confidence)
        assert judged.verdict is verdict
    # What may not fit is no surer than that it fits: one standard deviation below the limit.
    account = MemoryAccount((("all", 1e9),), spread=0.1)
    limit_bytes = 1e9 * math.exp(0.1)
    tight = replace(
        solved,
        prediction=replace(
            solved.prediction,
            feasible=True,
            memory=(account,),
            usable_memory_bytes=limit_bytes,
        ),
    )
    assert tight.probability(Target(1e6 / 1.2)) == pytest.approx(0.8413, abs=1e-4)
    assert tight.probability(HourlyBudget(10.0)) == pytest.approx(0.8413, abs=1e-4)
    assert tight.probability(Target(1e6)) == 0.5
    # Without drawn times the expected one decides.
    blunt = replace(solved, times_s=())
    assert blunt.probability(Target(1e6)) == 1.0
    assert blunt.probability(Target(1.001e6)) == 0.0


def test_the_probability_is_the_share_of_the_samples_of_the_job():
    evaluator, _ = evaluator_of("dlrm_ddp", SMALL)
    for solved in brute_force("dlrm_ddp"):
        samples_s = evaluator.job(solved.configuration).sample_times_s()
        batch = solved.option.global_batch_size
        for factor in (0.8, 0.95, 1.0, 1.05, 1.2):
            required = factor * solved.throughput_per_s
            share = float((batch / samples_s >= required).mean())
            assert solved.probability(Target(required)) == pytest.approx(share, abs=0.005)


def all_options(factors):
    """Two platforms of eight sizes; throughput grows with ranks and batch, price with ranks."""
    throughputs = {}
    for name, price, speed in (("dear", 3.0, 1.3), ("cheap", 1.0, 1.0)):
        for size in (1, 2, 4, 8, 16, 32, 64, 128):
            for doublings, factor in enumerate(factors):
                batch = 1024 * 2**doublings
                one = Option(name, size, batch, Precision.FP16, size * price, doublings)
                throughputs[one] = 1e6 * speed * size**0.9 * factor
    return throughputs


@pytest.mark.parametrize("factors", [(1.0, 1.3, 1.5), (1.0, 1.01, 1.02), (1.0, 1.09, 1.11)])
@pytest.mark.parametrize(
    "goal",
    [Target(9e6), Target(3.9e6), Deadline(100.0, 1e9), Budget(0.5, 1e9), HourlyBudget(40.0)],
)
@pytest.mark.parametrize("confidence", [0.5, 0.8])
def test_answers_against_all_options(factors, goal, confidence):
    """Answer, surest and best with the own batch are those of looking at everything."""
    table = all_options(factors)
    bench = Table(table, slack=1.05)
    judged = judge_options(bench, list(table), goal, confidence=confidence)
    found = recommendation(
        bench, judged, goal, model="", confidence=confidence, space=(), model_batch_size=1024
    )
    every = [Table(table).solve(one, math.inf) for one in table]

    def best(least, *, own_batch=False):
        good = [
            solved
            for solved in every
            if reaches(solved, goal)
            and solved.probability(goal) >= least
            and not (own_batch and solved.option.doublings)
        ]
        return min(good, key=lambda solved: solved.rank(goal), default=None)

    def same(told, truth):
        assert (told and told.option) == (truth and truth.option)

    truth = best(confidence)
    same(found.answer, truth)
    same(found.sure, best(SURE) if truth and truth.probability(goal) < SURE else None)
    same(found.own_batch, best(confidence, own_batch=True) if truth.option.doublings else None)
    if isinstance(goal, Target):
        # Nothing that reaches it is cheaper, and no smaller batch does on the same machines.
        others = [one for one in every if one.probability(goal) >= confidence]
        others = [one for one in others if reaches(one, goal)]
        option = found.answer.option
        assert option.price_usd_per_hour == min(one.option.price_usd_per_hour for one in others)
        assert not any(
            one.option.price_usd_per_hour == option.price_usd_per_hour
            and one.option.doublings < option.doublings
            for one in others
        )


def test_a_larger_batch_has_to_be_worth_it():
    one, two, four = (
        Option("one", 8, 1024 * 2**doublings, Precision.FP16, 10.0, doublings)
        for doublings in range(3)
    )
    goal = HourlyBudget(20.0)
    # Each doubling has to bring a twentieth.
    for speeds, taken in (
        ((1.0, 1.04, 1.10), one),
        ((1.0, 1.06, 1.10), two),
        ((1.0, 1.06, 1.12), four),
    ):
        bench = Table(dict(zip((one, two, four), (1e6 * speed for speed in speeds), strict=True)))
        judged = judge_options(bench, [one, two, four], goal)
        found = recommendation(bench, judged, goal, model="", confidence=0.5, space=())
        assert found.answer.option == taken
        assert (found.own_batch is None) == (taken is one)
    # Batches that were asked for are all as good.
    asked = [replace(option, doublings=0) for option in (one, two, four)]
    bench = Table(dict(zip(asked, (1e6, 1.01e6, 1.02e6), strict=True)))
    found = recommendation(
        bench, judge_options(bench, asked, goal), goal, model="", confidence=0.5, space=()
    )
    assert found.answer.option == asked[2]


def test_batches_are_doubled_unless_they_are_named():
    own = load_workload("dlrm_ddp").global_batch_size
    options = RecommendOptions(platforms=("h100_sxm",), world_sizes=(1, 8))
    found = recommend("dlrm_ddp", Target(1.0), options)
    tried = {(one.option.global_batch_size, one.option.doublings) for one in found.judgements}
    assert tried == {(own * 2**doublings, doublings) for doublings in range(4)}
    # The least that reaches it: one rank with the recipe's batch.
    assert (found.answer.option.world_size, found.answer.option.global_batch_size) == (1, own)
    assert found.model_batch_size == own
    named = recommend("dlrm_ddp", Target(1.0), replace(options, batch_sizes=(2 * own,)))
    assert {one.option.doublings for one in named.judgements} == {0}
    assert {one.option.global_batch_size for one in named.judgements} == {2 * own}


def test_nodes_are_counted_in_powers_of_two_and_three_times_those():
    options = RecommendOptions(platforms=("h100_sxm", "gb200_nvl72"), batch_sizes=(16384,))
    found = recommend("dlrm_ddp", Target(1.0), options)
    sizes = {one.option.platform: set() for one in found.judgements}
    for one in found.judgements:
        sizes[one.option.platform].add(one.option.world_size)
    # Nodes of eight; of four, up to 18 of which form a pod.
    assert sizes["h100_sxm"] == {1, 2, 4, 8, 16, 24, 32, 48, 64}
    assert sizes["gb200_nvl72"] == {1, 2, 4, 8, 12, 16, 24, 32, 48, 64}


def test_networks_apply_between_nodes():
    options = RecommendOptions(
        platforms=("h100_sxm", "a100_sxm_40"),
        world_sizes=(8, 16),
        batch_sizes=(16384,),
        program="ideal",
    )
    slow = replace(options, network="tcpx_800g")

    def speeds(chosen):
        found = {}
        for name, one in (("h100_sxm", 8), ("h100_sxm", 16)):
            single = replace(chosen, platforms=(name,), world_sizes=(one,))
            found[one] = recommend("dlrm_ddp", Target(1.0), single).answer
        return found

    fast, slowed = speeds(options), speeds(slow)
    assert slowed[8].prediction == fast[8].prediction
    assert slowed[16].throughput_per_s < fast[16].throughput_per_s
    assert dict(slowed[16].configuration.parameters)["network"] == "tcpx_800g"
    with pytest.raises(ConfigError, match="no platform has a network `ethernet_100`"):
        recommend("dlrm_ddp", Target(1.0), replace(options, network="ethernet_100"))
    # A platform that has no such network uses one node, and says why it does not use two.
    assert "efa_3200g" in {one.name for one in load_platform("h100_sxm").networks}
    only = recommend("dlrm_ddp", Target(1.0), replace(options, network="efa_3200g"))
    verdicts = {
        (one.option.platform, one.option.world_size): one.verdict for one in only.judgements
    }
    assert ("a100_sxm_40", 16) not in verdicts
    (left,) = only.unpriced
    assert (left.platform, left.world_sizes) == ("a100_sxm_40", (16,))
    assert "efa_3200g" in left.reason
    assert verdicts["a100_sxm_40", 8] is not Verdict.IMPOSSIBLE
    links = recommend("dlrm_ddp", Target(1.0), replace(options, world_sizes=(8,), link="pcie"))
    assert dict(links.answer.configuration.parameters)["link"] == "pcie"


def test_a_providers_prices_go_with_its_networks():
    """AWS connects by EFA, or on the oldest by Ethernet; InfiniBand cannot be rented there."""
    options = RecommendOptions(
        world_sizes=(8, 16), batch_sizes=(16384,), price_provider="AWS", confidence=0.5
    )
    found = recommend("dlrm_ddp", Target(1.0), options)
    offered = {
        name: {net for one in load_platform(name).offers for net in one.networks}
        for name in {one.option.platform for one in found.judgements}
    }
    several = [one.option for one in found.judgements if one.option.world_size == 16]
    assert {option.platform for option in several} == set(offered)
    for option in several:
        assert option.offer.provider == "AWS"
        assert option.network in option.offer.networks
        assert not option.network.startswith("infiniband")
    for one in found.judgements:
        if one.solved is not None:
            assert one.solved.prediction.network == one.option.network
            assert one.solved.prediction.price_usd_per_hour == one.option.price_usd_per_hour
            assert one.solved.prediction.rented.partition(" × ")[2].startswith("AWS ")


def test_machines_without_a_price_are_named():
    options = RecommendOptions(
        platforms=("h100_sxm", "v100_dgx2"), world_sizes=(8, 16), batch_sizes=(16384,)
    )
    named = replace(options, price_provider="AWS", network="infiniband_ndr400")
    found = recommend("dlrm_ddp", Target(1.0), named)
    left = {one.platform: one for one in found.unpriced}
    assert set(left) == {"h100_sxm", "v100_dgx2"}
    assert left["h100_sxm"].world_sizes == (16,)
    assert "AWS" in left["h100_sxm"].reason
    assert "efa_3200g" in left["h100_sxm"].reason
    assert left["v100_dgx2"].world_sizes == ()
    assert {one.option.platform for one in found.judgements} == {"h100_sxm"}
    with pytest.raises(ConfigError, match="v100_dgx2"):
        recommend("dlrm_ddp", Target(1.0), replace(options, platforms=("v100_dgx2",)))


def test_small_jobs_are_quoted_on_small_instances():
    options = RecommendOptions(platforms=("h100_sxm",), world_sizes=(1, 2), batch_sizes=(4096,))
    found = recommend("dlrm_ddp", Target(1.0), options)
    prices = {one.option.world_size: one.option.price_usd_per_hour for one in found.judgements}
    # There is an instance of one H100, and the next has eight.
    assert prices == {1: 6.88, 2: 55.04}
    assert found.answer.prediction.rented == "1 × AWS p5.4xlarge"


def test_programs_are_taken():
    options = RecommendOptions(platforms=("h100_sxm",), world_sizes=(8,), batch_sizes=(16384,))
    for program in ("hugectr", "torchrec"):
        found = recommend("dlrm_ddp", Target(1.0), replace(options, program=program))
        assert found.program == program
        assert found.answer.prediction.program == program


def test_where_nothing_reaches_it_says_what_was_not_tried():
    options = [option("one", 2**power, 2.0**power) for power in range(4)]
    bench = Table({one: 1e6 * one.world_size for one in options})

    def told(goal, confidence=0.5):
        judged = judge_options(bench, options, goal, confidence=confidence)
        return recommendation(bench, judged, goal, model="", confidence=confidence, space=())

    found = told(Target(9e6))
    assert found.answer is None
    assert found.closest.option == options[-1]
    assert "8 ranks" in found.advice
    unsure = told(Target(8e6), 0.9)
    assert unsure.answer is None
    assert "50 %" in unsure.advice
    assert "90 %" in unsure.advice


def test_runners_up_are_searched_as_hard_as_the_answer():
    """Every plan that is shown is the one that its option gets when it is looked at alone."""
    goal = Target(0.5 * throughputs()[0])
    found = recommend("dlrm_ddp", goal, SMALL)
    assert len(found.runners_up) == 1
    fastest = {solved.option: solved.throughput_per_s for solved in brute_force("dlrm_ddp")}
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


def test_a_recommended_plan_is_the_one_that_other_commands_find():
    """Even where a quickly found plan is close to its bound."""
    size = {"world_sizes": (2,), "batch_sizes": (65536,)}
    options = RecommendOptions(platforms=("a100_sxm_80",), **size)
    found = recommend("dlrm_small", HourlyBudget(1000.0), options).answer
    assert found is not None
    job = Job("dlrm_small", "a100_sxm_80", world_size=2, global_batch_size=65536)
    assert found.prediction.iteration_time_s == job.predict().iteration_time_s


def test_parameters_are_checked():
    with pytest.raises(ConfigError, match="replicas: not for a transformer"):
        recommend("gpt_1_7b", Target(1.0), RecommendOptions(parameters=(("replicas", 2),)))
    with pytest.raises(ConfigError, match="tensor: not for a recommendation model"):
        recommend("dlrm_ddp", Target(1.0), RecommendOptions(parameters=(("tensor", 2),)))
    wrong = RecommendOptions(parameters=(("launch", "cuda"),))
    with pytest.raises(ConfigError, match="launch"):
        recommend("dlrm_ddp", Target(1.0), wrong)


def test_wrong_questions():
    with pytest.raises(UnknownNameError):
        recommend("dlrm_tinny", Target(1.0))
    with pytest.raises(ConfigError, match="has no on_demand price"):
        recommend("dlrm_ddp", Target(1.0), RecommendOptions(platforms=("cpu",)))
    with pytest.raises(ConfigError, match="no platform has a price on the basis `spot` of Nobody"):
        recommend(
            "dlrm_ddp",
            Target(1.0),
            RecommendOptions(price_basis="spot", price_provider="Nobody"),
        )
    with pytest.raises(ConfigError, match="world size 0"):
        recommend("dlrm_ddp", Target(1.0), RecommendOptions(world_sizes=(0,)))
    with pytest.raises(ConfigError, match=r"confidence 0\.1"):
        recommend("dlrm_ddp", Target(1.0), RecommendOptions(confidence=0.1))


def test_a_model_that_fits_nowhere_says_so():
    options = RecommendOptions(platforms=("v100_dgx1",), world_sizes=(1, 2))
    found = recommend("dlrm_dcnv2", Target(1e6), options)
    assert found.answer is None
    assert found.closest is None
    assert all(one.verdict is Verdict.IMPOSSIBLE for one in found.judgements)
    assert "the tables take" in found.judgements[0].reason


def test_platforms_that_cannot_run_it_are_named_with_a_reason():
    options = RecommendOptions(
        platforms=("l4_pcie", "gb200_nvl72"), world_sizes=(4, 64), batch_sizes=(512,)
    )
    found = recommend("llama31_405b", Target(1e-3), options)
    assert found.answer.option.platform == "gb200_nvl72"
    # Those of four ranks are impossible too, but the platform has others.
    assert found.count(Verdict.IMPOSSIBLE) > 1
    assert list(found.impossible_platforms) == ["l4_pcie"]
    assert "64 × l4_pcie" in found.impossible_platforms["l4_pcie"]
