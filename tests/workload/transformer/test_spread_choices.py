"""Exchanges of context, schedules and groups of shards: times, memory and bounds."""

from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import assume, given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.collectives import CollectiveOp, Group, collective_time_s
from dse.machine.platforms import load_platform
from dse.model import MixtureOfExperts, load_model
from dse.workload import load_workload, predict_job
from dse.workload.transformer import (
    COMPOSER,
    DEPLOY_FORMATS,
    MEGATRON,
    MEGATRON_CORE,
    ContextExchange,
    DataSharding,
    Parallelism,
    Recompute,
    Schedule,
    TransformerJob,
    TransformerParameters,
    TransformerRuntime,
)
from dse.workload.transformer.kernels._layer import LayerWork
from dse.workload.transformer.memory._account import layer_operand_bytes
from dse.workload.transformer.step._groups import Groups
from dse.workload.transformer.step._layer_costs import accumulation
from dse.workload.transformer.step._transfers import Transfers
from tests.conftest import make_cluster

SMALL = replace(
    load_model("gpt_22b"),
    layers=8,
    hidden=1024,
    heads=16,
    kv_heads=16,
    head_dim=64,
    ffn_hidden=4096,
)
ZERO3 = DataSharding.PARAMETERS


def step(model=SMALL, batch=32, software=MEGATRON_CORE, local=8, **parallelism):
    spread = Parallelism(**parallelism)
    cluster = make_cluster(spread.world_size, min(local, spread.world_size))
    job = TransformerJob(model, cluster, batch, Precision.BF16, spread, software)
    job.check()
    return job


def time_of(job):
    return predict_job(job).iteration_time_s


def held(job, stage=0):
    return dict(job.memory()[stage].parts)


# --- context -------------------------------------------------------------------------------------


def transfers(**parallelism):
    job = step(**parallelism)
    tokens = job.parallelism.micro_batch_size * job.model.sequence_length // 4
    return job, Transfers(job), tokens


def test_keys_and_values_are_gathered_before_attention_by_hand():
    job, moved, tokens = transfers(context=4, context_exchange=ContextExchange.ALL_GATHER)
    size = 2 * (2 * SMALL.hidden) * tokens * 4  # two-byte keys and values of a whole sequence
    group = Group(1, 4)
    gather_s = float(collective_time_s(job.cluster, CollectiveOp.ALL_GATHER, size, group))
    scatter_s = float(collective_time_s(job.cluster, CollectiveOp.REDUCE_SCATTER, size, group))
    assert moved.context(1.0, backward=False).inside_s == pytest.approx(gather_s)
    assert moved.context(1.0, backward=True).inside_s == pytest.approx(gather_s + scatter_s)


def test_heads_are_exchanged_by_hand():
    job, moved, tokens = transfers(context=4, context_exchange=ContextExchange.ULYSSES)
    size = 2 * SMALL.hidden * tokens
    each_s = float(collective_time_s(job.cluster, CollectiveOp.ALL_TO_ALL, size, Group(1, 4)))
    # Queries, keys, values and outputs, as many in both directions.
    for backward in (False, True):
        found = moved.context(1.0, backward=backward)
        assert found.inside_s == pytest.approx(4 * each_s)


def test_a_ring_is_hidden_by_long_attention_and_seen_without_any():
    _, moved, _ = transfers(context=4)
    alone = moved.context(0.0, backward=False).transfer_s
    beside = moved.context(100 * alone, backward=False).transfer_s
    assert 0 < beside < 0.2 * alone
    assert moved.context(0.0, backward=True).transfer_s > alone


def test_a_rank_of_ulysses_has_whole_sequences_of_some_heads():
    plain, exchanged = (
        step(context=4, context_exchange=one)
        for one in (ContextExchange.RING, ContextExchange.ULYSSES)
    )
    flash = load_model("llama3_8b")
    for job in (plain, exchanged):
        kernel = LayerWork(replace(job, model=flash)).attention.core_forward()[0]
        whole = job is exchanged
        assert kernel.heads == (8 if whole else 32)
        assert kernel.kv_heads == (2 if whole else 8)
        assert kernel.queries == flash.sequence_length // (1 if whole else 4)
        assert kernel.keys == flash.sequence_length


def test_buffers_of_context_by_hand():
    ring, gathered, exchanged = (
        held(step(context=4, context_exchange=one))["buffers"] for one in ContextExchange
    )
    tokens, hidden = SMALL.sequence_length / 4, SMALL.hidden
    assert gathered - ring == 2 * 2 * (2 * hidden) * 4 * tokens
    assert exchanged - ring == 2 * 3 * hidden * tokens


def test_exchanges_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="same as ring"):
        step(data=4, context_exchange=ContextExchange.ALL_GATHER)
    grouped = replace(SMALL, kv_heads=4)
    with pytest.raises(ConfigError, match=r"does not divide the 2 heads .* 2 does, or use ring"):
        step(grouped, tensor=2, context=4, context_exchange=ContextExchange.ULYSSES)
    step(grouped, tensor=2, context=2, context_exchange=ContextExchange.ULYSSES)


#: Eight ranks can share it, but not with equal parts from both ends for each of them.
ODD = replace(load_model("llama3_8b"), sequence_length=8200)


def of_odd_length(model=ODD, **parallelism):
    return step(model, **parallelism).parallelism


@pytest.mark.parametrize("exchange", [ContextExchange.RING, ContextExchange.ALL_GATHER])
def test_ranks_that_take_both_ends_of_a_sequence_divide_it_twice(exchange):
    with pytest.raises(ConfigError) as caught:
        of_odd_length(context=8, context_exchange=exchange)
    message = str(caught.value)
    assert "context 8" in message
    assert "8200 tokens" in message
    assert message.endswith("; use context 4, or ulysses")
    # Both of what it says can be done.
    assert of_odd_length(context=4, data=2, context_exchange=exchange).context == 4
    assert of_odd_length(context=8, context_exchange=ContextExchange.ULYSSES).context == 8
    # Twice as many tokens have such parts.
    whole = replace(ODD, sequence_length=16400)
    assert of_odd_length(whole, context=8, context_exchange=exchange).context == 8


@pytest.mark.parametrize("exchange", [ContextExchange.RING, ContextExchange.ALL_GATHER])
def test_one_rank_needs_no_parts_of_a_sequence(exchange):
    assert of_odd_length(replace(ODD, sequence_length=8199), data=8).context == 1
    model = replace(ODD, sequence_length=8198)
    with pytest.raises(ConfigError) as caught:
        of_odd_length(model, context=2, data=4, context_exchange=exchange)
    kept = "" if exchange is ContextExchange.RING else " and ring"
    assert str(caught.value).endswith(f"; use context 1{kept}, or ulysses")


def test_a_ring_is_proposed_only_where_it_can_be():
    grouped = replace(ODD, kv_heads=4)
    with pytest.raises(ConfigError) as caught:
        of_odd_length(grouped, context=8, context_exchange=ContextExchange.ULYSSES)
    assert str(caught.value).endswith("; 4 does")
    with pytest.raises(ConfigError) as caught:
        of_odd_length(grouped, context=8)
    assert str(caught.value).endswith("; use context 4")


# --- schedules -----------------------------------------------------------------------------------


def test_zero_bubble_is_faster_where_bubbles_matter_and_never_does_less():
    plain, split = (
        predict_job(step(batch=8, pipeline=4, schedule=one))
        for one in (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE)
    )
    assert split.iteration_time_s < plain.iteration_time_s
    assert split.breakdown[0].compute_s == pytest.approx(plain.breakdown[0].compute_s)
    assert split.breakdown[0].idle_s < plain.breakdown[0].idle_s


def test_what_gradients_of_weights_wait_with_by_hand():
    # Qi et al., table 1: 32 s b h; with tensor parallelism what is on all ranks counts in full.
    s, h = SMALL.sequence_length, SMALL.hidden
    assert layer_operand_bytes(step()) == 32 * s * h
    assert layer_operand_bytes(step(tensor=4)) == (8 + 24 / 4) * s * h
    assert layer_operand_bytes(step(tensor=4, sequence_parallel=True)) == 8 * s * h


def test_activations_of_schedules_by_hand():
    def kept(schedule, stage, **more):
        return held(step(batch=32, pipeline=4, schedule=schedule, **more), stage)["activations"]

    # Logits and embeddings are the same in all; two layers a stage.
    plain = [kept(Schedule.ONE_F_ONE_B, stage) for stage in range(4)]
    each = plain[1] - plain[2]
    zero = [kept(Schedule.ZERO_BUBBLE, stage) for stage in range(4)]
    operands = 2 * layer_operand_bytes(step(pipeline=4))
    assert [a - b for a, b in zip(zero, plain, strict=True)] == pytest.approx(
        [stage * operands for stage in range(4)]
    )
    assert kept(Schedule.GPIPE, 2) - plain[2] == pytest.approx((32 - 2) * each)


def test_schedules_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="same as 1f1b"):
        step(data=4, schedule=Schedule.ZERO_BUBBLE)
    with pytest.raises(ConfigError, match="gpipe with interleave 2"):
        step(pipeline=4, interleave=2, schedule=Schedule.GPIPE)


# --- shards --------------------------------------------------------------------------------------


def test_groups_of_shards_are_neighbours():
    spread = Parallelism(tensor=2, data=16, expert=2, data_sharding=ZERO3, sharding_degree=4)
    groups = Groups.of(make_cluster(32, 8), spread)
    assert groups.shards == Group(1, 4)
    assert groups.copies == Group(4, 1, 8)
    assert groups.expert_shards == Group(1, 2)
    assert groups.replicas == Group(4, 4, 2)


def test_shards_of_a_node_divide_by_its_ranks_and_gather_inside():
    whole, node = (
        step(data=32, data_sharding=ZERO3, sharding_degree=degree) for degree in (None, 8)
    )
    for name in ("weights", "optimizer state", "gradients"):
        assert held(node)[name] == pytest.approx(4 * held(whole)[name])
    assert held(node)["buffers"] == held(whole)["buffers"]
    moved = Transfers(node)
    size = 1e9
    assert moved.gathered(size).network_s == 0
    found = moved.reduced(size)
    sums_s = collective_time_s(node.cluster, CollectiveOp.ALL_REDUCE, 2 * size / 8, Group(4, 1, 8))
    scatter_s = collective_time_s(node.cluster, CollectiveOp.REDUCE_SCATTER, 2 * size, Group(1, 8))
    assert found.network_s == pytest.approx(float(sums_s))
    assert found.inside_s == pytest.approx(float(scatter_s))


def test_a_degree_of_all_replicas_is_what_there_is_without():
    for sharding in (DataSharding.OPTIMIZER, DataSharding.GRADIENTS, ZERO3):
        plain, stated = (
            step(data=8, data_sharding=sharding, sharding_degree=degree) for degree in (None, 8)
        )
        assert time_of(plain) == time_of(stated)
        assert held(plain) == held(stated)


def test_gathered_parameters_may_stay_until_the_backward_pass():
    freed, kept = (
        step(data=8, data_sharding=ZERO3, reshard_after_forward=again) for again in (True, False)
    )
    layer = 2 * SMALL.layer_parameters
    assert held(kept)["buffers"] - held(freed)["buffers"] == pytest.approx(6 * layer)
    assert time_of(kept) <= time_of(freed)


def test_gradients_that_are_reduced_once_stay_whole():
    each, once = (step(data=8, data_sharding=ZERO3, no_sync=wait) for wait in (False, True))
    assert held(once)["gradients"] == pytest.approx(8 * held(each)["gradients"])
    slow = step(data=16, local=2, batch=64, data_sharding=DataSharding.GRADIENTS)
    waits = replace(slow, parallelism=replace(slow.parallelism, no_sync=True))
    assert time_of(waits) < time_of(slow)


def test_a_pipeline_of_sharded_stages_by_hand():
    spread = {"pipeline": 2, "data": 4, "data_sharding": ZERO3}
    job = step(**spread)
    # Half of the layers and the embedding: a quarter in four bytes, and Adam's eight.
    parameters = 4 * SMALL.layer_parameters + SMALL.embedding_parameters
    assert held(job)["weights"] == pytest.approx(parameters)
    assert held(job)["optimizer state"] == pytest.approx(2 * parameters)
    freed, kept = (
        time_of(step(**spread, local=2, reshard_after_forward=r)) for r in (True, False)
    )
    assert kept < freed


def test_shards_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="nothing is sharded"):
        step(data=8, sharding_degree=4)
    with pytest.raises(ConfigError, match=r"sharding degree 3 .* 8 ranks .*; 2 does"):
        step(data=8, data_sharding=ZERO3, sharding_degree=3)
    with pytest.raises(ConfigError, match="only zero3 gathers"):
        step(data=8, data_sharding=DataSharding.GRADIENTS, reshard_after_forward=False)
    with pytest.raises(ConfigError, match="no_sync"):
        step(data=8, no_sync=True)


def test_gradients_are_reduced_in_the_precision_that_is_asked_for():
    workload, platform = load_workload("gpt_22b"), load_platform("h100_sxm")

    def gradient_bytes(precision, **more):
        given = {"world_size": 8, "global_batch_size": 8, "precision": precision, **more}
        return workload.job(platform, given).gradient_bytes

    assert gradient_bytes("bf16", program="megatron") == 4
    assert gradient_bytes("bf16", program="nemo") == 2
    for program in ("megatron", "nemo"):
        given = {"program": program, "gradient_reduction_precision": "bf16"}
        assert gradient_bytes("bf16", **given) == 2
        given["gradient_reduction_precision"] = "fp32"
        assert gradient_bytes("bf16", **given) == gradient_bytes("fp16", **given) == 4
    with pytest.raises(ConfigError, match="fp16"):
        gradient_bytes("fp16", gradient_reduction_precision="bf16")


# --- weights in FP8 ----------------------------------------------------------------------------


def fp8_job(platform, precision="fp8", **more):
    given = {"world_size": 8, "global_batch_size": 8, "data_sharding": "zero1", **more}
    return load_workload("gpt_7_5b").job(
        load_platform(platform), {"precision": precision, "program": "nemo", **given}
    )


def weight_bytes(job):
    return dict(job.memory()[0].parts)["weights"]


@pytest.mark.parametrize(
    ("platform", "precision", "copies"),
    [("h100_sxm", "fp8", 2), ("b200_sxm", "fp8", 1), ("b200_sxm", "mxfp8", 2)],
)
def test_weights_are_kept_as_products_read_them(platform, precision, copies):
    """As they are and transposed; Blackwell needs no transpose with one factor a tensor."""
    kept, beside = (
        fp8_job(platform, precision, fp8_param_gather=narrow) for narrow in (True, False)
    )
    model = kept.model
    matrices = model.layers * model.layer_matrix_parameters
    operand = kept.precision.operand_bytes
    # In BF16: all parameters, or those that no product in FP8 reads.
    assert weight_bytes(beside) == pytest.approx(
        2 * model.parameter_count + copies * operand * matrices
    )
    assert weight_bytes(beside) - weight_bytes(kept) == pytest.approx(2 * matrices)
    assert kept.simulated().time_s <= beside.simulated().time_s


def test_one_factor_a_tensor_halves_what_is_gathered():
    def gathered_s(precision, narrow):
        job = fp8_job("b200_sxm", precision, data_sharding="zero3", fp8_param_gather=narrow)
        slow = replace(job.cluster.link, bandwidth_bytes_per_s=1e6, calibrations=())
        return replace(job, cluster=replace(job.cluster, link=slow)).simulated().time_s

    # Two gathers and a sum of gradients in two bytes: 2 + 2 + 2 bytes become 1 + 1 + 2.
    assert gathered_s("fp8", True) / gathered_s("fp8", False) == pytest.approx(4 / 6, abs=0.02)
    assert gathered_s("mxfp8", True) == pytest.approx(gathered_s("mxfp8", False))


def test_weights_are_in_fp8_where_the_program_has_them_so():
    assert fp8_job("h100_sxm").fp8_parameters
    assert not fp8_job("h100_sxm", program="torchtitan").fp8_parameters
    assert fp8_job("h100_sxm", program="torchtitan", fp8_param_gather=True).fp8_parameters
    assert not fp8_job("h100_sxm", "bf16").fp8_parameters
    assert not fp8_job("h100_sxm", data_sharding="none").fp8_parameters
    with pytest.raises(ConfigError, match="fp8_param_gather with precision bf16"):
        fp8_job("h100_sxm", "bf16", fp8_param_gather=True)
    with pytest.raises(ConfigError, match="data sharding none"):
        fp8_job("h100_sxm", data_sharding="none", fp8_param_gather=True)


# --- sequence parallelism ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "shares"),
    [("megatron_bridge", True), ("torchtitan", True), ("megatron", False), ("nanotron", False)],
)
def test_sequences_are_shared_as_recipes_of_the_program_do(program, shares):
    def shared(**more):
        given = {"world_size": 8, "global_batch_size": 8, "program": program, **more}
        return load_workload("gpt_7_5b").job(load_platform("h100_sxm"), given).parallelism

    assert shared(tensor=2).sequence_parallel is shares
    assert not shared(tensor=1).sequence_parallel
    assert not shared(tensor=2, sequence_parallel=False).sequence_parallel
    assert shared(tensor=2, sequence_parallel=True).sequence_parallel


# --- spaces --------------------------------------------------------------------------------------


def test_spaces_say_all_choices_and_have_none_by_default():
    given = {"platform": "h100_sxm", "world_size": 8, "global_batch_size": 8}
    chosen = {
        "context_exchange": ("ring", "ulysses"),
        "schedule": ("1f1b", "zero_bubble"),
        "sharding_degree": (4, 8),
        "reshard_after_forward": (True, False),
        "no_sync": (False, True),
        "gradient_reduction_precision": ("bf16", "fp32"),
        "fp8_param_gather": (True, False),
    }
    plain = {one.name for one in TransformerParameters.model_validate(given).expand()}
    assert not plain & set(chosen)
    lists = {name: list(values) for name, values in chosen.items()}
    block = TransformerParameters.model_validate({**given, **lists})
    found = {one.name: one.choices for one in block.expand()}
    assert {name: found[name] for name in chosen} == chosen


def test_stages_without_a_layer_are_reached_from_parameters():
    # Llama 3 405B as it was trained: chunks of a layer, with embedding and loss as two more.
    parameters = {
        "world_size": 128,
        "global_batch_size": 16,
        "tensor": 8,
        "pipeline": 16,
        "interleave": 8,
        "sequence_parallel": True,
    }
    job = load_workload("llama31_405b").job(load_platform("h100_sxm"), parameters)
    job.check()
    assert job.layers_by_chunk == (0, *[1] * 126, 0)
    words = DEPLOY_FORMATS["megatron"].write(job).splitlines()
    assert {
        "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split",
    } <= set(words)


# --- all of them ---------------------------------------------------------------------------------

spreads = st.builds(
    Parallelism,
    tensor=st.sampled_from([1, 2]),
    pipeline=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2]),
    interleave=st.sampled_from([1, 2]),
    schedule=st.sampled_from(Schedule),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(Recompute),
    data_sharding=st.sampled_from(DataSharding),
    sharding_degree=st.sampled_from([None, 1, 2]),
    reshard_after_forward=st.booleans(),
    no_sync=st.booleans(),
    context_exchange=st.sampled_from(ContextExchange),
)
softwares = st.sampled_from([MEGATRON, MEGATRON_CORE, COMPOSER, TransformerRuntime()])


def possible(spread):
    """Turns off what the rest of a draw excludes."""
    changes = {}
    if spread.tensor == 1:
        changes["sequence_parallel"] = False
    if spread.pipeline == 1:
        changes |= {"schedule": Schedule.ONE_F_ONE_B, "interleave": 1}
    elif spread.schedule is Schedule.GPIPE:
        changes["interleave"] = 1
    if spread.context == 1:
        changes["context_exchange"] = ContextExchange.RING
    if spread.replicas == 1:
        changes["data_sharding"] = DataSharding.NONE
    sharding = changes.get("data_sharding", spread.data_sharding)
    if sharding is DataSharding.NONE or spread.replicas % (spread.sharding_degree or 1):
        changes["sharding_degree"] = None
    if sharding is not ZERO3:
        changes["reshard_after_forward"] = True
    if not sharding.shards_gradients:
        changes["no_sync"] = False
    return replace(spread, **changes)


@given(spreads, softwares, st.sampled_from([2, 8]))
def test_the_lower_bound_stays_below_the_step(drawn, software, local):
    job = step(software=software, local=local, **_fields(possible(drawn)))
    assert job.optimistic_time_s(closer=True) <= time_of(job) * (1 + 1e-9)
    assert job.optimistic_time_s() <= time_of(job)


@given(spreads, softwares)
def test_every_part_of_a_step_is_explained(drawn, software):
    job = step(software=software, **_fields(possible(drawn)))
    assume(job.micro_batches > 1)
    found = job.attributed()
    took_s = float(found.graph.duration_s.sum())
    assert took_s == pytest.approx(float(job.iteration().ranks.graph.duration_s.sum()))


@given(spreads)
def test_more_shards_never_hold_more(drawn):
    spread = replace(possible(drawn), data=4, data_sharding=ZERO3, no_sync=False)
    kept = [
        sum(held(step(**_fields(replace(spread, sharding_degree=degree)))).values())
        for degree in (1, 2, 4, None)
    ]
    assert kept == sorted(kept, reverse=True)


def _fields(spread):
    return {field.name: getattr(spread, field.name) for field in fields(spread)}


def test_gradients_that_are_reduced_each_time_are_added_shard_by_shard():
    # Two passes of 16 samples on eight replicas, whose experts are whole on each.
    mixture = replace(SMALL, experts=MixtureOfExperts(8, 2, 4096))
    spread = {"data": 8, "expert": 8, "micro_batch_size": 2}
    job = step(mixture, data_sharding=DataSharding.GRADIENTS, **spread)
    shared, experts = 1e6, 1e5
    (sums,) = accumulation(job, shared, experts)
    value = job.precision.value_bytes
    assert job.parallelism.expert_zero == 1
    added = shared / job.parallelism.shards + experts
    assert sums.traffic_bytes == pytest.approx(added * (2 * job.gradient_bytes + value))
    whole = replace(job, parallelism=replace(job.parallelism, no_sync=True))
    (sums,) = accumulation(whole, shared, experts)
    assert sums.traffic_bytes == pytest.approx((shared + experts) * job.gradient_bytes)
