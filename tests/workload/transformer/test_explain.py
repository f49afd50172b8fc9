"""Explanations of training steps: their parts, what they are for, and what binds them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.explanation import Resource, compare_explanations
from dse.machine.platforms import load_platform
from dse.model import AttentionKind, SlidingWindow, load_model
from dse.simulate import simulate
from dse.workload import compare_jobs, explain_job, predict_job, task_details
from dse.workload.transformer import (
    COMPOSER,
    MEGATRON,
    DataSharding,
    Parallelism,
    Recompute,
    TransformerJob,
)
from dse.workload.transformer.explain._kernels import ATTENTION, FEED_FORWARD, _layer_groups
from dse.workload.transformer.explain._parts import StepParts
from dse.workload.transformer.kernels._layer import LayerWork
from dse.workload.transformer.kernels._operators import Product
from dse.workload.transformer.step._costs import StepCosts, make_structure
from dse.workload.transformer.step._tasks import make_tasks

PLATFORM = load_platform("a100_sxm_80")
GPT = replace(load_model("gpt_22b"), layers=8)
EXPERTS = replace(load_model("qwen3_30b_a3b"), layers=4)
DEEPSEEK = replace(load_model("deepseek_v3"), layers=5, window=SlidingWindow(512, full_every=2))
MPT = replace(load_model("mpt_7b"), layers=4)


def problem(model=GPT, batch=8, software=None, **parallelism):
    spread = Parallelism(**parallelism)
    made = TransformerJob(
        model, PLATFORM.cluster(spread.world_size), batch, model.precision, spread
    )
    return made if software is None else replace(made, software=software)


PROBLEMS = {
    "one device": problem(),
    "tensor": problem(tensor=8, sequence_parallel=True, recompute=Recompute.SELECTIVE),
    "pipeline": problem(tensor=2, pipeline=4, interleave=2, recompute=Recompute.FULL),
    "megatron": problem(tensor=2, pipeline=2, data=2, software=MEGATRON),
    "context": problem(tensor=2, context=4, recompute=Recompute.FULL),
    "data": problem(data=8),
    "zero1": problem(pipeline=2, data=4, data_sharding=DataSharding.OPTIMIZER),
    "zero3": problem(MPT, 16, COMPOSER, data=8, data_sharding=DataSharding.PARAMETERS),
    "experts": problem(EXPERTS, data=8, expert=4, recompute=Recompute.FULL),
    "layers of four kinds": problem(DEEPSEEK, tensor=2, pipeline=2, data=2, expert=2),
    "the same sharded": problem(DEEPSEEK, 8, data=8, data_sharding=DataSharding.PARAMETERS),
    "two nodes": problem(tensor=4, context=2, data=2, micro_batch_size=2),
}

every_problem = pytest.mark.parametrize("asked", PROBLEMS.values(), ids=PROBLEMS.keys())


@every_problem
def test_parts_add_up_to_the_cost_of_each_kind_of_task(asked):
    parts, costs = StepParts(asked), StepCosts(asked)
    for kind in make_tasks(make_structure(asked)).kinds:
        total_s = sum(part.total_s for part in parts.of(kind))
        assert total_s == pytest.approx(costs.of(kind).device_s, rel=1e-12), kind
        assert all(seconds >= 0 for part in parts.of(kind) for _, seconds in part.seconds)


@every_problem
def test_an_explanation_is_of_the_predicted_step(asked):
    prediction, explanation = predict_job(asked), explain_job(asked)
    length_s = prediction.iteration_time_s
    assert explanation.iteration_time_s == pytest.approx(length_s, rel=1e-9)
    assert sum(one.seconds for one in explanation.path) == pytest.approx(length_s, rel=1e-9)
    assert sum(one.share for one in explanation.path) == pytest.approx(1.0)
    for stage, parts in zip(explanation.ranks, prediction.breakdown, strict=True):
        assert stage.compute_s == pytest.approx(parts.compute_s)
        assert stage.idle_s == pytest.approx(parts.idle_s, abs=1e-6 * length_s)


@every_problem
def test_dividing_passes_leaves_the_graph_as_long(asked):
    details, whole = asked.attributed().graph, asked.iteration().ranks.graph
    assert simulate(details).makespan_s == pytest.approx(simulate(whole).makespan_s, rel=1e-12)
    assert float(details.duration_s.sum()) == pytest.approx(float(whole.duration_s.sum()))


@every_problem
def test_the_model_says_what_takes_all_of_the_time(asked):
    assert Resource.OTHER not in {one.resource for one in explain_job(asked).path}


@every_problem
def test_details_of_a_time_line_add_up_to_its_slices(asked):
    attributed = asked.attributed()
    for entries, seconds in zip(
        task_details(attributed), attributed.graph.duration_s.tolist(), strict=True
    ):
        shown_us = sum(value for name, value in entries if name.endswith(" us"))
        assert shown_us == pytest.approx(1e6 * seconds, rel=1e-6, abs=0.01)


def test_the_matrices_of_a_layer_belong_to_the_block_that_applies_them():
    work = LayerWork(problem(tensor=2))
    inner = {GPT.ffn_hidden // 2}
    for kernels, core, each in (
        (work.layer_forward(), work.attention.core_forward(), 1),
        (work.layer_backward(), work.attention.core_backward(), 2),
    ):
        groups = _layer_groups(kernels, core, 2 * each)
        single = [
            (kernel, group)
            for kernel, group in zip(kernels, groups, strict=True)
            if isinstance(kernel, Product) and kernel.batch == 1
        ]
        assert len(single) == 4 * each
        for kernel, group in single:
            assert (group == FEED_FORWARD) == bool(inner & set(kernel))
        core_groups = Counter(
            group for kernel, group in zip(kernels, groups, strict=True) if kernel in core
        )
        assert set(core_groups) == {ATTENTION}


def groups_of(asked):
    return {one.group for one in explain_job(asked).path}


def test_purposes_follow_from_the_parallelism():
    one = groups_of(problem(batch=1))
    assert one == {
        "attention",
        "feed-forward",
        "norms and elementwise",
        "embedding",
        "head and loss",
        "optimizer",
    }
    assert groups_of(problem(batch=2)) - one == {"gradient accumulation"}
    assert groups_of(problem(batch=1, tensor=2)) - one == {"tensor-parallel collectives"}
    assert groups_of(problem(batch=1, recompute=Recompute.FULL)) - one == {"recomputation"}
    assert "pipeline transfers" in groups_of(problem(batch=1, pipeline=2))
    assert "gradient reduction" in groups_of(problem(data=8))
    assert "context-parallel exchange" in groups_of(problem(MPT, context=8))


def test_fused_attention_recomputes_nothing_selectively():
    assert MPT.attention is AttentionKind.FLASH
    assert "recomputation" not in groups_of(problem(MPT, recompute=Recompute.SELECTIVE))


def seconds(explanation, resource):
    return sum(one.seconds for one in explanation.path if one.resource is resource)


def test_transfers_between_nodes_are_of_the_network():
    inside, across = explain_job(problem(data=8)), explain_job(problem(data=16, batch=16))
    assert seconds(inside, Resource.NETWORK) == 0
    assert seconds(across, Resource.NETWORK) > seconds(across, Resource.LINK)


@every_problem
def test_faster_resources_never_make_the_step_longer_and_gain_at_most_their_share(asked):
    explanation = explain_job(asked)
    for one in explanation.sensitivities:
        most_s = seconds(explanation, one.resource) * (1 - 1 / one.factor)
        assert 0 <= one.gain_s <= most_s * (1 + 1e-9) + 1e-12


def test_stages_are_called_stages():
    assert " on stage" in explain_job(PROBLEMS["pipeline"]).sentence
    assert "rank" not in explain_job(PROBLEMS["pipeline"]).sentence
    assert "stage" not in explain_job(PROBLEMS["one device"]).sentence


def test_recomputation_explains_the_difference_it_makes():
    plain = problem(tensor=4)
    again = replace(plain, parallelism=replace(plain.parallelism, recompute=Recompute.FULL))
    difference = compare_explanations(explain_job(plain), explain_job(again))
    assert sum(step.change_s for step in difference.steps) == pytest.approx(difference.change_s)
    added = sum(step.change_s for step in difference.steps if step.group == "recomputation")
    sums = sum(
        step.change_s for step in difference.steps if step.group == "tensor-parallel collectives"
    )
    assert added > 0
    assert added + sums == pytest.approx(difference.change_s, rel=1e-6)


def test_an_impossible_configuration_is_no_explanation():
    with pytest.raises(ConfigError, match="does not divide"):
        explain_job(problem(tensor=7))


# --- comparisons ---------------------------------------------------------------------------------


def test_a_step_cannot_be_told_from_itself():
    found = compare_jobs(PROBLEMS["tensor"], PROBLEMS["tensor"])
    assert (found.ratio, found.ratio_p5, found.ratio_p95) == (1.0, 1.0, 1.0)
    assert found.tie


@pytest.mark.parametrize("possible_first", [True, False])
def test_what_is_impossible_is_not_compared(possible_first):
    # Three samples for two replicas.
    jobs = [PROBLEMS["data"], problem(data=2, batch=3)]
    with pytest.raises(ConfigError, match="no multiple of data 2"):
        compare_jobs(*(jobs if possible_first else jobs[::-1]))


def test_comparisons_are_of_throughput_and_have_two_directions():
    first, second = PROBLEMS["tensor"], PROBLEMS["data"]
    forth, back = compare_jobs(first, second), compare_jobs(second, first)
    expected = (
        predict_job(second).throughput_samples_per_s / predict_job(first).throughput_samples_per_s
    )
    assert forth.ratio == pytest.approx(expected)
    assert forth.ratio * back.ratio == pytest.approx(1.0)
    assert forth.ratio_p5 <= forth.ratio <= forth.ratio_p95
    assert forth.ratio_p5 * back.ratio_p95 == pytest.approx(1.0, rel=0.01)


def test_recomputing_everything_is_known_to_be_slower():
    plain = problem(tensor=4)
    again = replace(plain, parallelism=replace(plain.parallelism, recompute=Recompute.FULL))
    found = compare_jobs(plain, again)
    assert not found.tie
    assert found.ratio < 0.9
    assert found.faster_share < 0.05
