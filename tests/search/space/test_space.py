from __future__ import annotations

import math

import pytest

from dse.config import parse_document
from dse.errors import ConfigError, UnknownNameError
from dse.machine.platforms import load_platform
from dse.search.space import (
    Constraint,
    SamplerName,
    SpaceDocument,
    list_spaces,
    load_space,
)
from dse.workload import load_workload, workload_kind
from tests.conftest import SMALL_SPACE


def parse(text: str):
    return parse_document(text, SpaceDocument, file="s.yaml").to_space()


def test_a_space_expands():
    space = parse(SMALL_SPACE)
    assert space.choices("world_size") == (2, 8, 12)
    assert space.choices("sharding_types") == ("table_wise", "table_wise+row_wise")
    assert space.choices("network") == ("default",)
    assert space.size == 3 * 3 * 2 * 2
    assert [axis.maximize for axis in space.objectives] == [True, False]
    with pytest.raises(KeyError):
        space.choices("flavour")


@pytest.mark.parametrize("name", list_spaces())
def test_shipped_spaces_name_what_exists(name):
    space = load_space(name)
    assert load_workload(space.workload.name).kind == space.workload.kind
    priced = any("usd" in axis.metric for axis in space.objectives)
    for platform in space.choices("platform"):
        assert load_platform(str(platform)).offers or not priced


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{low: 2, high: 32, factor: 2}", (2, 4, 8, 16, 32)),
        ("{low: 2, high: 9, step: 3}", (2, 5, 8)),
        ("{low: 8, high: 8, step: 3}", (8,)),
        ("8", (8,)),
        ("[8, 2, 8]", (2, 8)),
    ],
)
def test_ranges(text, values):
    space = parse(SMALL_SPACE.replace("[2, 8, 12]", text))
    assert space.choices("world_size") == values


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[2, 8, 12]", "{low: 8, high: 2, step: 1}", "expected high ≥ low"),
        ("[2, 8, 12]", "{low: 1, high: 2}", "exactly one of `step` and `factor`"),
        ("[2, 8, 12]", "[]", "world_size"),
        ("[2, 8, 12]", "[0]", "at least 1, found `0`"),
        ("platform: [a100_sxm_80, h100_sxm, v100_dgx2]", "platform: []", "at least 1"),
        ("[table_wise, row_wise]", "[table_wise, row_wize]", "did you mean `row_wise`"),
        ("global_batch_size:", "local_batch: 1\n  global_batch_size:", "unknown key"),
        ("global_batch_size:", "local_batch_size: 1\n  global_batch_size:", "exactly one of"),
        ("direction: minimize", "direction: down", "expected one of"),
        ("cost_usd_per_million_samples", "throughput_samples_per_s", "different metrics"),
        ("cost_usd_per_million_samples", "cost", "did you mean"),
        ("[size_greedy, dim_greedy]", "[greedy]", "expected planners out of"),
        ("search:", "constraints: [{metric: iteration_time_s, at_most: 5}]\nsearch:", "no unit"),
        ("search:", "constraints: [{metric: iteration_time_s}]\nsearch:", "`at_most`, `at_least`"),
        (
            "search:",
            "constraints: [{metric: memory_headroom_fraction, at_most: much}]\nsearch:",
            "found `much`",
        ),
        (
            "search:",
            "constraints: [{metric: throughput_samples_per_s, at_least: much}]\nsearch:",
            "found `much`",
        ),
        (
            "search:",
            "constraints: [{metric: price_usd_per_hour, at_most: 5 ms}]\nsearch:",
            "which is a time",
        ),
    ],
)
def test_wrong_spaces(old, new, words):
    assert old in SMALL_SPACE
    with pytest.raises(ConfigError, match=r"s\.yaml") as caught:
        parse(SMALL_SPACE.replace(old, new))
    assert words in str(caught.value)


def test_limits_in_si_units():
    space = parse(
        SMALL_SPACE.replace(
            "search:",
            "constraints:\n  - {metric: iteration_time_s, at_most: 20 ms}\n"
            "  - {metric: memory_headroom_fraction, at_least: 5 %}\nsearch:",
        )
    )
    assert space.constraints[0] == Constraint("iteration_time_s", pytest.approx(0.02), None)
    assert space.constraints[1].at_least == pytest.approx(0.05)


def test_violations_have_a_sign_and_words():
    both = Constraint("price_usd_per_hour", 10.0, 2.0)
    assert both.violation(12.0) == 2.0
    assert both.violation(1.0) == 1.0
    assert both.violation(5.0) <= 0
    price = workload_kind("dlrm").metric("price_usd_per_hour")
    assert both.reason(12.0, price) == "price: 12.00 USD/h, above the limit of 10.00 USD/h"
    assert both.reason(1.0, price) == "price: 1.00 USD/h, below the limit of 2.00 USD/h"
    assert math.isnan(both.violation(math.nan))
    assert "not known" in both.reason(math.nan, price)


def test_broken_limits_are_told_in_the_units_that_people_see():
    left = workload_kind("dlrm").metric("memory_headroom_fraction")
    limit = Constraint(left.name, None, 0.05)
    assert limit.reason(0.0324, left) == "memory left: 3.2 %, below the limit of 5.0 %"
    assert limit.reason(0.04996, left) == "memory left: 4.996 %, below the limit of 5 %"
    devices = workload_kind("dlrm").metric("world_size")
    assert Constraint(devices.name, 8.0, None).reason(16.0, devices) == (
        "devices: 16, above the limit of 8"
    )


def test_unknown_space():
    with pytest.raises(UnknownNameError, match="did you mean `dlrm_sharding`"):
        load_space("dlrm_shading")


def test_samplers_by_name():
    names = {"auto", "nsga2", "tpe", "gp", "random", "grid"}
    assert {name.value for name in SamplerName} == names


def test_parts_to_recompute_have_one_form(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(
        """
schema_version: 1
name: parts
workload: {model: gpt_22b}
parameters:
  platform: a100_sxm_80
  world_size: 8
  global_batch_size: 16
  recompute: selective
  recompute_modules: [mlp+layernorm, layernorm+mlp, core_attn]
  recompute_layers: [0, 4]
objectives:
  - {metric: throughput_tokens_per_s, direction: maximize}
constraints:
  - {metric: fit_probability, at_least: 90 %}
"""
    )
    space = load_space(path)
    choices = {parameter.name: parameter.choices for parameter in space.parameters}
    assert choices["recompute_modules"] == ("layernorm+mlp", "core_attn")
    assert choices["recompute_layers"] == (0, 4)
    assert space.constraints[0].at_least == 0.9


def test_a_parameter_may_have_very_many_values():
    values = list(range(100_000, 0, -1))
    parameters = load_workload("dlrm_tiny").parameters
    assert parameters.choices_of([*values, *values]) == tuple(reversed(values))
