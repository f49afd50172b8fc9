"""Files of torchtitan: what each key says of a job, and what has no key."""

from __future__ import annotations

from dataclasses import replace
import tomllib

import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.workload.transformer import (
    COMPOSER,
    DEPLOY_FORMATS,
    MEGATRON,
    MEGATRON_CORE,
    TRANSFORMER_PROGRAMS,
    ContextExchange,
    DataSharding,
    Parallelism,
    Recompute,
    RecomputeModule,
    Schedule,
    TransformerJob,
)

ZERO1, ZERO2, ZERO3 = DataSharding.OPTIMIZER, DataSharding.GRADIENTS, DataSharding.PARAMETERS
SELECTIVE = {"recompute": Recompute.SELECTIVE}
CLUSTER = load_platform("h100_sxm").cluster(8)


def text(model="llama3_8b", software=MEGATRON_CORE, precision=Precision.BF16, batch=64, **spread):
    found = load_model(model) if isinstance(model, str) else model
    job = TransformerJob(found, CLUSTER, batch, precision, Parallelism(**spread), software)
    return DEPLOY_FORMATS["torchtitan"].write(job)


def titan(*args, **kwargs):
    return tomllib.loads(text(*args, **kwargs))


def head(*args, **kwargs):
    return {line for line in text(*args, **kwargs).splitlines() if line.startswith("#")}


@pytest.mark.parametrize(
    ("model", "name", "flavor"),
    [
        ("llama3_8b", "llama3", "8B"),
        ("llama3_70b", "llama3", "70B"),
        ("llama31_405b", "llama3", "405B"),
        ("qwen3_30b_a3b", "qwen3", "30B-A3B"),
        ("qwen3_235b_a22b", "qwen3", "235B-A22B"),
        ("gpt_oss_120b", "gpt_oss", "120b"),
    ],
)
def test_models_are_flavours_by_their_sizes(model, name, flavor):
    found = titan(model, data=8, data_sharding=ZERO3)
    assert found["model"] == {"name": name, "flavor": flavor}
    assert found["training"]["seq_len"] == load_model(model).sequence_length


def test_a_model_of_other_sizes_is_refused():
    longer = replace(load_model("llama3_8b"), layers=33)
    with pytest.raises(ConfigError):
        titan(longer)
    with pytest.raises(ConfigError):
        titan("gpt_22b")
    # The length of samples is no part of a flavour.
    assert titan(replace(load_model("llama3_8b"), sequence_length=4096))


@pytest.mark.parametrize(
    ("sharding", "replicate", "shard", "reshard"),
    [
        (DataSharding.NONE, 8, 1, None),
        (ZERO1, 1, 8, "never"),
        (ZERO2, 1, 8, "never"),
        (ZERO3, 1, 8, "always"),
    ],
)
def test_replicas(sharding, replicate, shard, reshard):
    found = titan(data=8, data_sharding=sharding)["parallelism"]
    assert found["data_parallel_replicate_degree"] == replicate
    assert found["data_parallel_shard_degree"] == shard
    assert found.get("fsdp_reshard_after_forward") == reshard


def test_groups_of_shards_are_replicated():
    found = titan(data=8, context=2, data_sharding=ZERO3, sharding_degree=4)["parallelism"]
    assert found["data_parallel_replicate_degree"] == 4
    # Of the ranks that share a copy, those of context parallelism are counted apart.
    assert found["data_parallel_shard_degree"] == 2
    stays = titan(data=8, data_sharding=ZERO3, reshard_after_forward=False)["parallelism"]
    assert stays["fsdp_reshard_after_forward"] == "never"


@pytest.mark.parametrize(
    ("schedule", "interleave", "name"),
    [
        (Schedule.GPIPE, 1, "GPipe"),
        (Schedule.ONE_F_ONE_B, 1, "1F1B"),
        (Schedule.ONE_F_ONE_B, 2, "Interleaved1F1B"),
        (Schedule.ZERO_BUBBLE, 2, "InterleavedZeroBubble"),
    ],
)
def test_schedules(schedule, interleave, name):
    found = titan(
        "llama3_70b",
        pipeline=4,
        data=2,
        data_sharding=ZERO1,
        schedule=schedule,
        interleave=interleave,
    )
    assert found["parallelism"]["pipeline_parallel_schedule"] == name


def test_parallel_ranks_alone_train_in_fp32():
    found = titan(tensor=8, sequence_parallel=True, precision=Precision.FP32)
    assert found["parallelism"]["tensor_parallel_degree"] == 8
    assert found["training"]["mixed_precision_param"] == "float32"


def test_gathered_context():
    exchange = ContextExchange.ALL_GATHER
    found = titan(data=4, context=2, data_sharding=ZERO3, context_exchange=exchange)
    assert found["parallelism"]["context_parallel_rotate_method"] == "allgather"


def test_gradients_accumulate_without_a_pipeline():
    found = titan(batch=64, data=8, data_sharding=ZERO3, micro_batch_size=2)["training"]
    assert found["local_batch_size"] == 2
    assert found["global_batch_size"] == 64
    assert found["mixed_precision_param"] == "bfloat16"


def test_a_pipeline_divides_the_batch_of_a_replica():
    # 126 layers, embedding and loss on 16 chunks: eight each, the first and last with seven.
    found = titan(
        "llama31_405b",
        batch=64,
        pipeline=8,
        interleave=2,
        data=2,
        data_sharding=ZERO1,
        micro_batch_size=2,
    )
    assert found["training"]["local_batch_size"] == 32
    spread = found["parallelism"]
    assert spread["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert spread["pipeline_parallel_degree"] == 8
    assert spread["pipeline_parallel_microbatch_size"] == 2
    assert spread["pipeline_parallel_layers_per_stage"] == 8
    assert spread["pipeline_parallel_first_stage_less_layers"] == 1
    assert spread["pipeline_parallel_last_stage_less_layers"] == 1
    # 80 layers on four stages are even.
    even = titan("llama3_70b", pipeline=4, data=2, data_sharding=ZERO1)["parallelism"]
    assert even["pipeline_parallel_schedule"] == "1F1B"
    assert even["pipeline_parallel_layers_per_stage"] == 20
    assert even["pipeline_parallel_first_stage_less_layers"] == 0


def test_tensor_context_and_experts():
    spread = titan(tensor=2, sequence_parallel=True, context=2, data=2, data_sharding=ZERO3)[
        "parallelism"
    ]
    assert spread["tensor_parallel_degree"] == 2
    assert spread["enable_async_tensor_parallel"] is True
    assert spread["context_parallel_degree"] == 2
    assert spread["context_parallel_rotate_method"] == "alltoall"
    experts = titan("qwen3_30b_a3b", data=8, expert=8, data_sharding=ZERO3)["parallelism"]
    assert experts["expert_parallel_degree"] == 8
    assert experts["expert_tensor_parallel_degree"] == 1
    plain = titan(software=MEGATRON, tensor=2, sequence_parallel=True, data=4, data_sharding=ZERO3)
    assert plain["parallelism"]["enable_async_tensor_parallel"] is False


def test_kernels_are_those_of_the_program():
    fused = titan(recompute=Recompute.FULL)
    assert fused["compile"] == {"enable": True, "components": ["model", "loss"]}
    assert fused["activation_checkpoint"] == {"mode": "full", "early_stop": False}
    own = titan(software=TRANSFORMER_PROGRAMS["torchtitan"].software, recompute=Recompute.FULL)
    assert own["activation_checkpoint"] == {"mode": "full", "early_stop": True}
    eager = titan(software=COMPOSER)
    assert eager["compile"]["enable"] is False
    assert eager["activation_checkpoint"]["mode"] == "none"


def test_products_of_fewer_bits_are_conversions():
    dense = titan(precision=Precision.FP8)
    assert dense["model"]["converters"] == ["quantize.linear.float8"]
    assert dense["quantize"]["linear"]["float8"]["filter_fqns"] == ["output"]
    assert "enable_fsdp_float8_all_gather" not in dense["quantize"]["linear"]["float8"]
    sharded = titan(precision=Precision.FP8, data=8, data_sharding=ZERO3)
    assert sharded["quantize"]["linear"]["float8"]["enable_fsdp_float8_all_gather"]
    experts = titan("qwen3_30b_a3b", precision=Precision.MXFP8)
    assert experts["model"]["converters"] == ["quantize.linear.mx", "quantize.grouped_mm.mx"]
    assert titan(precision=Precision.FP32)["training"]["mixed_precision_param"] == "float32"


def test_differences_are_stated_in_the_head():
    plain = head(software=COMPOSER, data=8, data_sharding=ZERO3)
    assert len(head(software=COMPOSER, data=8, data_sharding=ZERO1) - plain) == 1
    assert len(head(data=8, data_sharding=ZERO3) - plain) == 1  # gradients of two bytes


@pytest.mark.parametrize(
    "wrong",
    [
        {"recompute": Recompute.SELECTIVE},
        {"recompute_modules": (RecomputeModule.OPERATORS,), "recompute_layers": 4} | SELECTIVE,
        {"model": replace(load_model("llama3_8b"), qkv_bias=True)},
        {"precision": Precision.NVFP4},
        {"precision": Precision.FP16},
        {"precision": Precision.MXFP8, "tensor": 2, "sequence_parallel": True},
        {"tensor": 2},
        {"tensor": 2, "sequence_parallel": True, "data": 4},
        # Mixed precision is FSDP's beside tensor parallelism and pipeline stages.
        {"tensor": 8, "sequence_parallel": True},
        {"tensor": 8, "sequence_parallel": True, "data_sharding": ZERO1},
        {"pipeline": 8, "precision": Precision.FP8},
        {
            "tensor": 2,
            "sequence_parallel": True,
            "data": 4,
            "data_sharding": ZERO3,
            "sharding_degree": 1,
            "precision": Precision.FP32,
        },
        {"model": "qwen3_30b_a3b", "data": 8, "expert": 8},
        # Its schedule without bubbles takes several stages of a rank.
        {"pipeline": 4, "data": 2, "data_sharding": ZERO1, "schedule": Schedule.ZERO_BUBBLE},
        {"context": 2},
        {"context": 2, "data_sharding": ZERO3, "context_exchange": ContextExchange.ULYSSES},
        {"context": 2, "data": 4, "data_sharding": ZERO3, "sharding_degree": 1},
        {"data": 8, "data_sharding": ZERO3, "no_sync": True},
        {"model": "qwen3_30b_a3b", "pipeline": 2},
        {"model": "gpt_oss_120b", "context": 2, "data_sharding": ZERO3},
        {"model": "qwen3_30b_a3b", "data": 8, "expert": 2, "expert_tensor": 2},
        {
            "model": "qwen3_30b_a3b",
            "tensor": 4,
            "sequence_parallel": True,
            "expert": 2,
            "expert_tensor": 2,
        },
        {"model": "qwen3_30b_a3b", "tensor": 4, "sequence_parallel": True, "expert_tensor": 1},
    ],
)
def test_what_torchtitan_does_not_have_is_refused(wrong):
    with pytest.raises(ConfigError):
        titan(**wrong)


def test_every_other_product_is_recomputed():
    found = titan(recompute_modules=(RecomputeModule.OPERATORS,), **SELECTIVE)
    chosen = found["activation_checkpoint"]
    assert (chosen["mode"], chosen["selective_ac_option"]) == ("selective", "op")


def test_every_nth_layer_is_recomputed():
    # Llama 3 8B has 32 layers: 8 of them are every fourth.
    chosen = {"recompute": Recompute.FULL, "recompute_layers": 8}
    found = titan(data=8, data_sharding=ZERO3, **chosen)["activation_checkpoint"]
    assert (found["mode"], found["selective_ac_option"]) == ("selective", "4")
    with pytest.raises(ConfigError):
        titan(data=8, data_sharding=ZERO3, **(chosen | {"recompute_layers": 5}))
