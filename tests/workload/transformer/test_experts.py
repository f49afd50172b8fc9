"""Mixtures of experts: work, memory and exchanges by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.collectives import CollectiveOp, Group, collective_estimate
from dse.machine.platforms import load_platform
from dse.model import MixtureOfExperts, load_model
from dse.workload import predict_job
from dse.workload.transformer import (
    MEGATRON_CORE,
    DataSharding,
    Parallelism,
    TransformerJob,
    stage_memory,
)
from dse.workload.transformer._operators import Product
from dse.workload.transformer._transfers import Transfers
from dse.workload.transformer._work import LayerWork

MODEL = replace(load_model("mixtral_8x7b"), layers=2)
H100 = load_platform("h100_sxm")


def job(model=MODEL, gpus=8, batch=8, **spread):
    spread = {"data": gpus} | spread
    return TransformerJob(
        model, H100.cluster(gpus), batch, Precision.BF16, Parallelism(**spread), MEGATRON_CORE
    )


def time_s(*args, **kwargs):
    return predict_job(job(*args, **kwargs)).iteration_time_s


def memory(asked):
    return dict(stage_memory(asked, 0).parts)


def test_grouped_products_have_the_rows_of_all_experts_of_a_rank():
    # 4,096 tokens visit two experts each; a rank has one expert of eight ranks' tokens.
    for expert in (1, 8):
        products = [
            kernel
            for kernel in LayerWork(job(expert=expert)).layer_forward()
            if isinstance(kernel, Product)
        ]
        assert [tuple(p[:3]) for p in products[2:]] == [
            (4096, 8, 4096),
            (8192, 2 * 14336, 4096),
            (8192, 4096, 14336),
        ]


def test_rows_of_each_expert_fill_whole_tiles():
    many = replace(MODEL, experts=MixtureOfExperts(count=64, active=1, ffn_hidden=128))
    last = [k for k in LayerWork(job(many)).layer_forward() if isinstance(k, Product)][-1]
    assert last[:3] == (64 * 128, 4096, 128)  # 64 rows an expert, in a tile of 128


def test_experts_are_shared_by_ranks():
    alone, shared = memory(job()), memory(job(expert=8))
    experts = 2 * MODEL.layer_expert_parameters
    assert alone["weights"] - shared["weights"] == pytest.approx(2 * experts * 7 / 8)
    # Shards of the optimizer are as large either way: every replica of a weight has a part.
    sharded = [
        memory(job(expert=expert, data_sharding=DataSharding.OPTIMIZER))["optimizer state"]
        for expert in (1, 8)
    ]
    assert sharded[0] == pytest.approx(sharded[1])


def test_experts_elsewhere_cost_two_exchanges_a_layer_and_direction():
    asked, rows = job(expert=8), 2 * 4096
    exchange = Transfers(asked, 4096).experts(rows)
    once = collective_estimate(
        asked.cluster, CollectiveOp.ALL_TO_ALL, 2.0 * rows * MODEL.hidden, Group(1, 8)
    )
    assert exchange.inside_s == pytest.approx(2 * float(once.time_s))
    assert Transfers(job(), 4096).experts(rows).transfer_s == 0


def test_uneven_routing_is_never_faster():
    times = [
        time_s(
            replace(MODEL, experts=MixtureOfExperts(8, 2, 14336, imbalance=imbalance)), expert=8
        )
        for imbalance in (1.0, 1.2, 2.0)
    ]
    assert times == sorted(times)
    assert times[2] > times[0]


@pytest.mark.parametrize(
    ("model", "expert", "expected"),
    [("llama3_8b", 2, "has no experts"), (MODEL, 3, "2 does"), (MODEL, 16, "8 does")],
)
def test_degrees_that_cannot_be(model, expert, expected):
    found = load_model(model) if isinstance(model, str) else model
    with pytest.raises(ConfigError) as caught:
        job(found, expert=expert).check()
    assert expected in str(caught.value)
