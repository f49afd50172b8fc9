"""Ways to run a transformer among which a recommendation chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.machine.platforms import load_platform
from dse.search.recommend import HourlyBudget, RecommendOptions, Target, Verdict, recommend
from dse.workload import load_workload
from dse.workload.transformer import TransformerWorkload


def test_the_batch_of_a_transformer_grows_by_an_eighth_at_most():
    options = RecommendOptions(platforms=("h100_sxm",), world_sizes=(48, 256, 384))
    found = recommend("llama3_8b", HourlyBudget(1e6), options)
    own = load_workload("llama3_8b").global_batch_size
    assert own == 128
    batches = {
        one.option.world_size: one.option.global_batch_size
        for one in found.judgements
        if not one.option.doublings
    }
    # Over 48 ranks, over at most 256 of 256, and over 24 of 384.
    assert batches == {48: 144, 256: 128, 384: 144}


def test_what_is_given_holds_for_every_way():
    options = RecommendOptions(
        platforms=("h100_sxm",),
        world_sizes=(8,),
        batch_sizes=(64,),
        parameters=(("tensor", 2), ("data_sharding", "zero1"), ("schedule", "gpipe")),
    )
    free = replace(options, parameters=())
    goal = HourlyBudget(60.0)
    given, best = (recommend("gpt_1_7b", goal, one).answer for one in (options, free))
    chosen = dict(given.configuration.parameters)
    assert tuple((name, chosen[name]) for name, _ in options.parameters) == options.parameters
    assert given.throughput_per_s <= best.throughput_per_s
    # The step is the one that these parameters have anywhere.
    job = TransformerWorkload(load_workload("gpt_1_7b").model).job(
        load_platform("h100_sxm"), chosen
    )
    assert given.prediction.iteration_time_s == pytest.approx(job.simulated().time_s)


def test_ranks_that_given_degrees_do_not_divide_are_impossible():
    options = RecommendOptions(
        platforms=("h100_sxm",), batch_sizes=(64,), parameters=(("tensor", 4),)
    )
    found = recommend("gpt_1_7b", HourlyBudget(120.0), options)
    few = [one for one in found.judgements if one.option.world_size < 4]
    assert len(few) == 2
    assert all(
        one.verdict is Verdict.IMPOSSIBLE and "does not divide" in one.reason for one in few
    )
    assert dict(found.answer.configuration.parameters)["tensor"] == 4


def test_a_way_that_surely_fits_is_taken():
    """The fastest way may fill the memory, and one with more room may reach the goal, too."""
    options = RecommendOptions(platforms=("h100_sxm",), world_sizes=(16,), batch_sizes=(512,))
    # Nine tenths are asked for in any case: the fastest way has less.
    found = recommend("llama3_8b", Target(14.0), options)
    degrees = ("tensor", 1), ("pipeline", 1), ("context", 1)
    same = (*degrees, ("recompute", "none"), ("data_sharding", "zero1"))
    full = recommend("llama3_8b", Target(14.0), replace(options, parameters=same))
    assert 0.5 <= full.answer.prediction.fit_probability < 0.9
    assert full.answer.throughput_per_s > found.answer.throughput_per_s
    assert found.answer.prediction.fit_probability >= 0.9
    # Where no way fits so surely as is asked for, the fastest is what misses the goal.
    asked = replace(options, confidence=0.95, parameters=same)
    assert recommend("llama3_8b", Target(14.0), asked).answer is None


def test_a_surer_way_is_taken_where_confidence_asks_for_it():
    options = RecommendOptions(platforms=("h100_sxm",), world_sizes=(16,), batch_sizes=(512,))
    found = recommend("gpt_7_5b", Target(50.0), options)
    assert 0.9 <= found.answer.prediction.fit_probability < 0.95
    # Without being asked for, it is named beside the fastest.
    assert found.sure.prediction.fit_probability >= 0.95
    assert found.sure.option == found.answer.option
    assert 0.9 * found.answer.throughput_per_s < found.sure.throughput_per_s
    asked = recommend("gpt_7_5b", Target(50.0), replace(options, confidence=0.95))
    assert asked.answer.configuration == found.sure.configuration
    assert asked.answer.probability(asked.goal) >= 0.95
