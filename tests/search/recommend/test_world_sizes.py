"""Numbers of ranks that recommendations try: more only where fewer do not reach the goal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.machine import Precision
from dse.search.recommend import Budget, RecommendOptions, Target, recommend

MODEL = "bert_base"
OPTIONS = RecommendOptions(platforms=("h100_sxm",), batch_sizes=(3072,), price_provider="AWS")


def looked_at(goal, options=OPTIONS):
    """The recommendation, and the largest number of ranks that was looked at."""
    found = recommend(MODEL, goal, options)
    return found, max(one.option.world_size for one in found.judgements)


@pytest.fixture(scope="module")
def fastest():
    """Samples a second of the fastest machines of up to 64 ranks."""
    found, most = looked_at(Target(1e9))
    assert most == 64
    return found.closest.throughput_per_s


def test_a_goal_within_reach_needs_no_more_ranks(fastest):
    found, most = looked_at(Target(0.9 * fastest))
    assert found.answer is not None
    assert most == 64


def test_a_goal_a_little_further_is_reached_by_more_ranks(fastest):
    progress = []
    found = recommend(
        MODEL, Target(1.3 * fastest), OPTIONS, progress=lambda *counts: progress.append(counts)
    )
    sizes = [one.option.world_size for one in found.judgements]
    assert len(sizes) == len({one.option for one in found.judgements})
    assert 64 < found.answer.option.world_size <= max(sizes) <= 1024
    assert found.answer.throughput_per_s >= 1.3 * fastest
    assert progress[-1] == (len(sizes), len(sizes))
    assert [done for done, _ in progress] == [*range(1, len(sizes) + 1)]


def test_the_answer_is_that_of_all_sizes_together(fastest):
    goal = Target(1.3 * fastest)
    found, _ = looked_at(goal)
    sizes = sorted({one.option.world_size for one in found.judgements})
    named, _ = looked_at(goal, replace(OPTIONS, world_sizes=tuple(sizes)))
    assert named.answer.option == found.answer.option


@pytest.mark.parametrize("goal", [Target(1e9), Budget(1e-6, 1e9)], ids=["too far", "too cheap"])
def test_where_more_ranks_cannot_help_none_are_tried(goal):
    found, most = looked_at(goal)
    assert found.answer is None
    assert most == 64


def test_named_sizes_are_all_that_is_looked_at(fastest):
    found, most = looked_at(Target(1.3 * fastest), replace(OPTIONS, world_sizes=(8, 16)))
    assert found.answer is None
    assert most == 16


def test_a_model_that_fits_nowhere_is_tried_on_more_ranks():
    options = RecommendOptions(
        platforms=("v100_dgx1",), batch_sizes=(1536,), precisions=(Precision.FP16,)
    )
    found = recommend("gpt_145b", Target(1e-3), options)
    assert found.answer.option.world_size > 64
