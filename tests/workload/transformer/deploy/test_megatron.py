"""Jobs written as arguments of Megatron-LM."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import MixtureOfExperts, load_model
from dse.workload import LaunchMode
from dse.workload.transformer import (
    DEPLOY_FORMATS,
    MEGATRON,
    MEGATRON_CORE,
    ContextExchange,
    DataSharding,
    ExpertDispatch,
    Offload,
    Parallelism,
    Recompute,
    RecomputeModule,
    Schedule,
    TransformerJob,
)
from tests.workload.transformer.deploy.megatron_arguments import TABLE

CLUSTER = load_platform("h100_sxm").cluster(8)


def job(model, software=MEGATRON_CORE, precision=Precision.BF16, batch=64, **spread):
    found = load_model(model) if isinstance(model, str) else model
    return TransformerJob(found, CLUSTER, batch, precision, Parallelism(**spread), software)


def arguments(*args, **kwargs):
    lines = DEPLOY_FORMATS["megatron"].write(job(*args, **kwargs)).splitlines()
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


QWEN = load_model("qwen3_30b_a3b")
SHARED = replace(
    QWEN, ffn_hidden=512, experts=replace(QWEN.experts, shared_ffn_hidden=512, imbalance=1.2)
)
PADDED = replace(
    load_model("mixtral_8x7b"),
    experts=MixtureOfExperts(8, 2, 14336, capacity_factor=1.5, pads_to_capacity=True),
)
DEEPSEEK = replace(load_model("deepseek_v3"), layers=7)
OVERLAPPED = {"data": 8, "expert": 8, "expert_overlap": True}
CAPTURED = replace(MEGATRON_CORE, launch=LaunchMode.CUDA_GRAPHS)
JOBS = {
    "llama": job("llama3_8b", tensor=2, context=2, sequence_parallel=True, data=2),
    "fsdp": job("llama3_8b", data=8, data_sharding=DataSharding.PARAMETERS),
    "zero2": job(
        "llama3_8b", data=8, data_sharding=DataSharding.GRADIENTS, recompute=Recompute.FULL
    ),
    "zero3 that stays": job(
        "llama3_8b", data=8, data_sharding=DataSharding.PARAMETERS, reshard_after_forward=False
    ),
    "groups of shards": job(
        "llama3_8b",
        context=2,
        context_exchange=ContextExchange.ULYSSES,
        data=4,
        data_sharding=DataSharding.OPTIMIZER,
        sharding_degree=2,
    ),
    "gathered context": job(
        "llama3_8b", context=2, context_exchange=ContextExchange.ALL_GATHER, data=4
    ),
    "wide gradients": job("gpt_22b", replace(MEGATRON, gradient_bytes=4), Precision.FP16, data=8),
    "405b": job("llama31_405b", tensor=8, pipeline=8, interleave=8, sequence_parallel=True),
    "gpt of 2020": job("gpt_22b", MEGATRON, Precision.FP16, tensor=8, sequence_parallel=True),
    "gpt_175b": job(
        "gpt_175b", MEGATRON, tensor=8, pipeline=8, interleave=3, recompute=Recompute.SELECTIVE
    ),
    "first layers": job("llama3_8b", recompute=Recompute.FULL, recompute_layers=3, data=8),
    "parts": job(
        "mixtral_8x7b",
        data=8,
        recompute=Recompute.SELECTIVE,
        recompute_modules=(RecomputeModule.NORMS, RecomputeModule.EXPERT_ACTIVATION),
    ),
    "offloaded": job(
        "llama3_8b",
        data=8,
        offload=Offload.ALL,
        offload_layers=4,
        data_sharding=DataSharding.OPTIMIZER,
    ),
    "zero1": job("gpt_7_5b", MEGATRON, data=8, data_sharding=DataSharding.OPTIMIZER),
    "overlapped zero1": job("nemotron4_15b", data=8, data_sharding=DataSharding.OPTIMIZER),
    "gelu without bias": job(replace(load_model("gpt_22b"), biases=False), data=8),
    "biases of queries, keys and values": job(
        replace(load_model("qwen3_32b"), qkv_bias=True), tensor=4, data=2
    ),
    "biases of attention and experts": job(
        replace(load_model("gpt_oss_120b"), qkv_bias=True, attention_output_bias=True), data=8
    ),
    "bert": job("bert_large", data=8),
    "experts": job("qwen3_30b_a3b", precision=Precision.FP8, data=8, expert=8, micro_batch_size=2),
    "folded": job(
        PADDED,
        tensor=2,
        data=4,
        sequence_parallel=True,
        expert=8,
        expert_tensor=1,
        expert_dispatch=ExpertDispatch.ALL_TO_ALL,
    ),
    "hidden exchanges": job("mixtral_8x7b", data=8, expert=8, expert_overlap=True),
    "blocks": job("mixtral_8x7b", precision=Precision.FP8_BLOCK, data=8, expert=4),
    "mxfp8": job(SHARED, CAPTURED, Precision.MXFP8, data=8),
    "sharded mxfp8": job(
        "llama3_8b", precision=Precision.MXFP8, data=8, data_sharding=DataSharding.OPTIMIZER
    ),
    "sharded fp8": job(
        "llama3_8b", precision=Precision.FP8, data=8, data_sharding=DataSharding.OPTIMIZER
    ),
    "one replica": job(
        "llama3_8b",
        tensor=8,
        sequence_parallel=True,
        data_sharding=DataSharding.OPTIMIZER,
    ),
    "squared relu with biases": job(replace(load_model("nemotron4_15b"), biases=True), data=8),
    "one expert a token": job("llama4_maverick", data=8, expert=8),
    "stages of equal work": job(
        "llama31_405b",
        replace(MEGATRON_CORE, balances_stages=True),
        pipeline=4,
        data=2,
    ),
    "captured": job("llama3_8b", CAPTURED, data=8),
    "deepseek": job(
        DEEPSEEK,
        CAPTURED,
        tensor=2,
        pipeline=2,
        expert=2,
        data=2,
        sequence_parallel=True,
    ),
    "windows": job("gpt_oss_120b", data=8, expert=8),
    "nvfp4": job("nemotron4_340b", precision=Precision.NVFP4, pipeline=2),
}


@pytest.mark.parametrize("name", JOBS)
def test_each_argument_says_what_its_documentation_says(name):
    values = {argument: value(JOBS[name]) for argument, _, value in TABLE}
    expected = {
        argument: "" if value is True else str(value)
        for argument, value in values.items()
        if value is not None and value is not False
    }
    lines = DEPLOY_FORMATS["megatron"].write(JOBS[name]).splitlines()
    assert len(lines) == len(set(lines))
    found = dict((*line.split(" ", 1), "")[:2] for line in lines)
    assert found == expected


def test_the_table_has_an_example_of_every_argument():
    for argument, _, value in TABLE:
        used = [value(found) for found in JOBS.values()]
        assert [one for one in used if one is not None and one is not False], argument


def test_a_gate_that_megatron_does_not_have_is_refused():
    with pytest.raises(ConfigError):
        arguments("grok1_314b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": replace(load_model("llama3_8b"), attention_output_bias=True), "data": 8},
        {"model": "gpt_7_5b", "data": 8, "data_sharding": DataSharding.PARAMETERS},
        {
            "model": "qwen3_30b_a3b",
            "data": 8,
            "expert": 2,
            "data_sharding": DataSharding.GRADIENTS,
        },
        {
            "model": "llama3_8b",
            "data": 8,
            "recompute": Recompute.SELECTIVE,
            "recompute_layers": 2,
        },
        {
            "model": "llama3_8b",
            "data": 8,
            "recompute": Recompute.SELECTIVE,
            "recompute_modules": (RecomputeModule.OPERATORS,),
        },
        {"model": "llama3_8b", "data": 8, "offload": Offload.ACTIVATIONS},
        {"model": "llama3_8b", "data": 8, "offload": Offload.OPTIMIZER},
        {
            "model": "llama3_8b",
            "data": 8,
            "offload": Offload.ACTIVATIONS,
            "offload_layers": 32,
        },
        {
            "model": "llama3_8b",
            "data": 8,
            "offload": Offload.ACTIVATIONS,
            "offload_layers": 4,
            "recompute": Recompute.FULL,
        },
        {"model": "llama3_8b", "precision": Precision.FP16, "data_sharding": "zero3", "data": 8},
        {"model": "llama3_8b", "pipeline": 2, "schedule": Schedule.ZERO_BUBBLE},
        {"model": "llama3_8b", "data": 8, "data_sharding": "zero3", "sharding_degree": 2},
        {"model": "llama3_8b", "data": 8, "data_sharding": "zero3", "no_sync": True},
        {"model": "llama3_8b", "precision": Precision.FP8, "data_sharding": "zero3", "data": 8},
        {"model": "llama3_8b", "precision": Precision.MXFP8, "data_sharding": "zero3", "data": 8},
        {
            "model": "llama3_8b",
            "precision": Precision.MXFP8,
            "data": 8,
            "data_sharding": "zero1",
            "offload": Offload.OPTIMIZER,
        },
        {
            "model": "llama3_8b",
            "precision": Precision.FP8,
            "data": 8,
            "recompute": Recompute.SELECTIVE,
            "recompute_modules": (RecomputeModule.NORMS,),
        },
        {"model": "mixtral_8x7b", "tensor": 2, "data": 4},
        {"model": "gpt_oss_120b", "tensor": 2, "data": 4, "sequence_parallel": True},
        {"model": "mixtral_8x7b", "precision": Precision.FP32, **OVERLAPPED},
        {"model": replace(DEEPSEEK, mtp_modules=2), **OVERLAPPED},
        {
            "model": PADDED,
            "data": 8,
            "expert": 8,
            "expert_dispatch": ExpertDispatch.DEDUPLICATED,
        },
    ],
)
def test_what_megatron_does_not_combine_is_refused(wrong):
    wrong = {**wrong, "data_sharding": DataSharding(wrong.get("data_sharding", "none"))}
    with pytest.raises(ConfigError):
        arguments(**wrong)
