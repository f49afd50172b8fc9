"""Goals in samples, in tokens and in money."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature

import pytest

import dse
from dse.cli.study._recommend import recommend_command
from dse.errors import ConfigError, UnknownNameError
from dse.search.recommend import (
    Budget,
    Deadline,
    HourlyBudget,
    RecommendOptions,
    Target,
    parse_goal,
)
from dse.workload import load_workload


@pytest.mark.parametrize(
    ("text", "samples_per_s"),
    [
        ("12 samples/s", 12.0),
        ("1M tokens/s", 1e6 / 8192),
        ("10B tokens/day", 10e9 / 86400 / 8192),
        ("36G tokens/h", 1e7 / 8192),
    ],
)
def test_throughput_in_samples_and_in_tokens(text, samples_per_s):
    goal = parse_goal(target=text, tokens_per_sample=8192)
    assert isinstance(goal, Target)
    assert goal.required_per_s(1.0) == pytest.approx(samples_per_s)
    assert goal.counts_samples == ("samples" in text)
    assert ("tokens/s" in goal.text) == ("tokens" in text)


def test_whole_jobs_in_tokens():
    deadline = parse_goal(deadline="10 days", samples="15T tokens", tokens_per_sample=8192)
    assert isinstance(deadline, Deadline)
    assert deadline.samples == pytest.approx(15e12 / 8192)
    assert "15 T tokens" in deadline.text
    budget = parse_goal(budget="1000USD", samples="2B tokens", tokens_per_sample=1000)
    assert isinstance(budget, Budget)
    assert budget.samples == pytest.approx(2e6)
    hourly = parse_goal(budget="100USD/h", tokens_per_sample=1000)
    assert isinstance(hourly, HourlyBudget)
    assert not hourly.counts_samples


def test_models_without_tokens_say_so():
    with pytest.raises(ConfigError):
        parse_goal(target="1M tokens/s")
    with pytest.raises(ConfigError):
        dse.recommend("dlrm_tiny", target="1M tokens/s", platforms=["h100_sxm"])
    with pytest.raises(ConfigError):
        parse_goal(target="1M tokens", tokens_per_sample=8)


def test_throughput_is_told_as_it_was_asked_for():
    few = {"platforms": ["h100_sxm"], "world_sizes": [8], "batch_sizes": [128]}
    tokens = dse.recommend("llama3_8b", target="10k tokens/s", **few)
    samples = dse.recommend("llama3_8b", target="1 samples/s", **few)
    money = dse.recommend("llama3_8b", budget="100USD/h", **few)
    assert (tokens.tokens_per_sample, samples.tokens_per_sample) == (8192, 0)
    assert money.tokens_per_sample == 8192
    prediction = tokens.answer.prediction
    cost = prediction.price_usd_per_hour / 3600 / prediction.metric("throughput_tokens_per_s")
    assert prediction.cost_usd_per_billion == pytest.approx(1e9 * cost)


def test_the_command_and_the_function_take_the_same():
    function = set(signature(dse.recommend).parameters)
    assert {field.name for field in fields(RecommendOptions)} <= function
    command = set(signature(recommend_command).parameters)
    # What the command alone has is output: files, whether they are replaced, and JSON. All else is
    # an argument of the function, or a parameter of some kind of workload.
    command -= {"model", "export", "force", "as_json"}
    parameters = {
        name
        for workload in ("dlrm_tiny", "gpt_1_7b")
        for name in load_workload(workload).parameters.model_fields
    }
    assert command <= function | parameters


def test_precisions_go_by_name():
    few = {"platforms": ["h100_sxm"], "world_sizes": [8], "batch_sizes": [128]}
    found = dse.recommend("llama3_8b", budget="100USD/h", precisions=["fp8"], **few)
    assert found.answer.option.precision.value == "fp8"
    with pytest.raises(UnknownNameError):
        dse.recommend("llama3_8b", budget="100USD/h", precisions=["fp7"], **few)
