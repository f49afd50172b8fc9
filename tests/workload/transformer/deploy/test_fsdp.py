"""The module that spreads a model with PyTorch; tests of the trainer `pytorch` train with it."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.workload.transformer import (
    COMPOSER,
    DEPLOY_FORMATS,
    MEGATRON_CORE,
    DataSharding,
    Parallelism,
    Recompute,
    TransformerJob,
)

CLUSTER = load_platform("h100_sxm").cluster(8)
ZERO1, ZERO2, ZERO3 = DataSharding.OPTIMIZER, DataSharding.GRADIENTS, DataSharding.PARAMETERS


def text(model="llama3_8b", software=COMPOSER, precision=Precision.BF16, batch=64, **spread):
    found = load_model(model) if isinstance(model, str) else model
    job = TransformerJob(found, CLUSTER, batch, precision, Parallelism(**spread), software)
    return DEPLOY_FORMATS["fsdp"].write(job)


@pytest.mark.parametrize("sharding", DataSharding)
@pytest.mark.parametrize("tensor", [1, 2])
def test_it_is_python(sharding, tensor):
    compile(text(data=8, tensor=tensor, data_sharding=sharding), "snippet", "exec")


def test_it_says_what_the_job_says():
    lines = text(batch=64, data=4, micro_batch_size=2, tensor=2, data_sharding=ZERO3).splitlines()
    assert {"MICRO_BATCH_SIZE = 2", "MICRO_BATCHES = 8", "REPLICATE = 1", "SHARD = 4"} <= set(
        lines
    )
    assert {"TENSOR = 2", "SEQUENCE_PARALLEL = False"} <= set(lines)
    replicated = text(data=4).splitlines()
    assert {"REPLICATE = 4", "SHARD = 1"} <= set(replicated)
    two_bytes = text(software=MEGATRON_CORE, data=4)
    assert "reduce_dtype=torch.bfloat16" in two_bytes
    assert "reduce_dtype=torch.float32" in text(data=4)


def test_groups_of_shards_and_what_stays():
    found = text(data=8, data_sharding=ZERO3, sharding_degree=4).splitlines()
    assert {"REPLICATE = 2", "SHARD = 4"} <= set(found)
    stays = text(data=8, data_sharding=ZERO3, reshard_after_forward=False)
    assert '"reshard_after_forward": False' in stays
    once = text(data=8, data_sharding=ZERO3, no_sync=True)
    assert "set_requires_gradient_sync(last)" in once
    assert "set_reshard_after_backward" not in once


def test_compiled_and_recomputed_layers():
    assert ".compile()" in text(software=MEGATRON_CORE)
    assert ".compile()" not in text()
    assert "checkpoint_wrapper(layer, early_stop=True)" in text(recompute=Recompute.FULL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pipeline": 2},
        {"context": 2},
        {"model": "qwen3_30b_a3b", "data": 8, "expert": 2},
        {"recompute": Recompute.SELECTIVE},
        {"precision": Precision.FP8},
    ],
)
def test_what_fsdp_does_not_have_is_refused(wrong):
    with pytest.raises(ConfigError):
        text(**wrong)


def test_whole_replicas_in_fp32_are_ddp():
    assert "DistributedDataParallel" in text(data=8, precision=Precision.FP32)
    for other in (
        text(data=8),
        text(data=8, precision=Precision.FP32, data_sharding=ZERO3),
        text(data=4, tensor=2, precision=Precision.FP32),
    ):
        assert "DistributedDataParallel" not in other
        assert "fully_shard" in other


def test_a_single_replica_in_fp32_is_not_wrapped():
    found = text(tensor=8, precision=Precision.FP32)
    assert "fully_shard" not in found
    assert "set_requires_gradient_sync" not in found
    assert "fully_shard" in text(tensor=8)


def test_the_parts_of_the_vocabulary_stay_apart():
    assert "with loss_parallel():" in text(tensor=8)
    assert "loss_parallel" not in text(data=8)


@pytest.mark.parametrize(("model", "inputs"), [("llama3_8b", 2), ("gpt_1_7b", 1)])
def test_gates_are_divided_where_there_are_any(model, inputs):
    module: dict = {}
    constants = [
        line for line in text(model, tensor=2).splitlines() if "FEED_FORWARD_INPUTS =" in line
    ]
    exec(constants[0], module)
    assert len(module["FEED_FORWARD_INPUTS"]) == inputs
