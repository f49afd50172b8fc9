"""Arguments of Megatron-LM, with what its documentation says that they mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import Activation, load_model
from dse.workload.transformer import (
    MEGATRON,
    MEGATRON_CORE,
    ContextExchange,
    DataSharding,
    Parallelism,
    Schedule,
)
from dse.workload.transformer._deploy import megatron_arguments


def arguments(model, software=MEGATRON_CORE, precision=Precision.BF16, batch=64, **spread):
    found = load_model(model)
    return megatron_arguments(found, Parallelism(**spread), batch, precision, software).split("\n")


def test_a_llama_is_a_llama():
    lines = arguments("llama3_8b")
    assert {
        "--num-layers 32",
        "--hidden-size 4096",
        "--ffn-hidden-size 14336",
        "--num-attention-heads 32",
        "--group-query-attention",
        "--num-query-groups 8",
        "--vocab-size 128256",
        "--seq-length 8192",
        "--position-embedding-type rope",
        "--normalization RMSNorm",
        "--swiglu",
        "--disable-bias-linear",
        "--untie-embeddings-and-output-weights",
        # Megatron-LM drops out a tenth by default.
        "--attention-dropout 0",
        "--hidden-dropout 0",
        "--bf16",
    } <= set(lines)
    assert "--no-bias-gelu-fusion" not in lines
    assert "--squared-relu" in arguments("nemotron4_15b")


def test_a_gpt_of_2020_needs_none_of_that():
    lines = arguments("gpt_22b", MEGATRON, Precision.FP16)
    assert {"--num-layers 48", "--fp16"} <= set(lines)
    words = ("norm", "rope", "dropout", "bias", "swiglu", "untie")
    assert not [line for line in lines if any(word in line for word in words)]


@pytest.mark.parametrize(
    ("software", "sharding", "expected"),
    [
        (MEGATRON, DataSharding.NONE, set()),
        (MEGATRON, DataSharding.OPTIMIZER, {"--use-distributed-optimizer"}),
        (MEGATRON_CORE, DataSharding.NONE, {"--overlap-grad-reduce", "--grad-reduce-in-bf16"}),
        (
            MEGATRON_CORE,
            DataSharding.OPTIMIZER,
            {
                "--use-distributed-optimizer",
                "--overlap-grad-reduce",
                "--overlap-param-gather",
                "--grad-reduce-in-bf16",
            },
        ),
        (
            MEGATRON_CORE,
            DataSharding.PARAMETERS,
            {
                "--use-torch-fsdp2",
                "--no-gradient-accumulation-fusion",
                "--ckpt-format torch_dist",
            },
        ),
    ],
)
def test_flags_of_replicas_are_those_of_the_program(software, sharding, expected):
    alone = set(arguments("llama3_8b", software))
    found = set(arguments("llama3_8b", software, data=8, data_sharding=sharding))
    assert found - alone == expected - {"--grad-reduce-in-bf16"}
    assert expected <= found


def test_a_gate_that_megatron_does_not_have_is_refused():
    gemma = replace(load_model("llama3_8b"), activation=Activation.GELU)
    with pytest.raises(ConfigError):
        megatron_arguments(gemma, Parallelism(), 8, Precision.BF16, MEGATRON_CORE)


def test_uneven_stages_count_embedding_and_loss():
    lines = arguments("llama31_405b", tensor=8, pipeline=8, interleave=8, sequence_parallel=True)
    assert {
        "--num-layers-per-virtual-pipeline-stage 2",
        "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split",
        "--sequence-parallel",
        "--tp-comm-overlap",
        "--transformer-impl transformer_engine",
    } <= set(lines)


def test_choices_of_schedule_and_shards_have_their_arguments():
    found = arguments(
        "llama3_8b",
        context=2,
        context_exchange=ContextExchange.ULYSSES,
        data=8,
        data_sharding=DataSharding.OPTIMIZER,
        sharding_degree=4,
    )
    assert {"--cp-comm-type a2a", "--num-distributed-optimizer-instances 4"} <= set(found)
    # The ring is Megatron-LM's own default.
    assert not [line for line in arguments("llama3_8b", context=2) if "comm-type" in line]
    with pytest.raises(ConfigError):
        arguments("llama3_8b", pipeline=2, schedule=Schedule.ZERO_BUBBLE)
    with pytest.raises(ConfigError):
        arguments("llama3_8b", pipeline=2, data=2, data_sharding=DataSharding.PARAMETERS)


def test_gradients_in_four_bytes_have_their_argument():
    wide = replace(MEGATRON, gradient_bytes=4)
    assert "--accumulate-allreduce-grads-in-fp32" in arguments("gpt_22b", wide, Precision.FP16)
    assert "--grad-reduce-in-bf16" not in arguments("llama3_8b", wide)
