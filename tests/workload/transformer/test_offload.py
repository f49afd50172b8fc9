"""Activations and optimizer state in host memory, by hand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.kernels import HOST_COPY_EFFICIENCY
from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.workload import predict_job
from dse.workload.transformer import (
    MEGATRON_CORE,
    DataSharding,
    Offload,
    Parallelism,
    Recompute,
    TransformerJob,
    layer_activation_bytes,
    stage_parameters,
)

MODEL = replace(load_model("llama3_8b"), layers=8, sequence_length=2048)
CLUSTER = load_platform("h100_sxm").cluster(8)


def job(cluster=CLUSTER, batch=16, **parallelism):
    spread = Parallelism(**{"data": 8, **parallelism})
    return TransformerJob(MODEL, cluster, batch, Precision.BF16, spread, MEGATRON_CORE)


def test_activations_of_layers_that_wait_are_in_host_memory():
    none = job()
    layer = layer_activation_bytes(none, Recompute.NONE)
    before = none.memory()[0]
    for layers, gone in ((0, 6), (5, 3), (2, 0)):
        # Two offloaded layers are on the device: the one at work and the one on its way.
        after = job(offload=Offload.ACTIVATIONS, offload_layers=layers).memory()[0]
        assert after.host_bytes == pytest.approx(gone * layer)
        assert before.total_bytes - after.total_bytes == pytest.approx(gone * layer)


def test_copies_are_exposed_where_they_take_longer_than_the_layer():
    slow = replace(
        CLUSTER, host_link=replace(CLUSTER.host_link, bandwidth_bytes_per_s=1e9, latency_s=0.0)
    )
    copy_s = layer_activation_bytes(job(), Recompute.NONE) / (HOST_COPY_EFFICIENCY * 1e9)
    found = predict_job(job(slow, offload=Offload.ACTIVATIONS))
    plain = predict_job(job(slow))
    # Both directions of 8 layers and 2 micro-batches; kernels of layers are hidden behind them.
    assert plain.iteration_time_s < 2 * 2 * 8 * copy_s < found.iteration_time_s
    assert found.iteration_time_s < 2 * 2 * 8 * copy_s + plain.iteration_time_s
    fast = replace(
        slow,
        host_link=replace(slow.host_link, bandwidth_bytes_per_s=1e15),
        host_memory_bandwidth_bytes_per_s=None,
    )
    hidden = predict_job(job(fast, offload=Offload.ACTIVATIONS))
    assert hidden.iteration_time_s == pytest.approx(plain.iteration_time_s)


def test_the_host_updates_an_offloaded_optimizer():
    cluster = replace(
        CLUSTER,
        host_link=replace(CLUSTER.host_link, bandwidth_bytes_per_s=50e9, latency_s=0.0, devices=1),
        host_memory_bandwidth_bytes_per_s=800e9,
    )
    spread = {"data_sharding": DataSharding.OPTIMIZER}
    here, there = job(cluster, **spread), job(cluster, offload=Offload.OPTIMIZER, **spread)
    parameters = stage_parameters(here, 0) / 8
    account = there.memory()[0]
    assert account.bytes_for("optimizer state") == 0.0
    # Master weight and two moments of four bytes, and gradients of two.
    assert account.host_bytes == pytest.approx(14 * parameters)
    # Gradients there and weights back, two bytes each; 2 + 12 read and 12 + 2 written by the host,
    # at 0.8 of an eighth of its memory's bandwidth.
    copies_s = 4 * parameters / (HOST_COPY_EFFICIENCY * 50e9)
    update_s = 28 * parameters / (0.8 * 100e9)
    times = [predict_job(one).iteration_time_s for one in (here, there)]
    on_device_s = parameters * MEGATRON_CORE.optimizer_traffic_bytes / 2e12
    assert times[1] - times[0] == pytest.approx(copies_s + update_s - on_device_s, rel=0.05)


def test_all_ranks_of_a_node_share_its_host_memory():
    small = replace(CLUSTER, host_memory_bytes=8 * 2**30)
    found = predict_job(job(small, offload=Offload.ALL))
    assert not found.feasible
    assert "host memory" in found.infeasible_reason
    enough = 8 * job(offload=Offload.ALL).memory()[0].host_bytes
    assert predict_job(
        job(replace(CLUSTER, host_memory_bytes=enough), offload=Offload.ALL)
    ).feasible


@settings(max_examples=25, deadline=None)
@given(
    layers=st.integers(0, 8),
    pipeline=st.sampled_from([1, 2]),
    recompute=st.sampled_from([Recompute.NONE, Recompute.FULL]),
    offload=st.sampled_from([Offload.ACTIVATIONS, Offload.OPTIMIZER, Offload.ALL]),
)
def test_offload_needs_no_more_memory_and_no_less_time(layers, pipeline, recompute, offload):
    if not offload.activations:
        layers = 0
    spread = {"pipeline": pipeline, "data": 8 // pipeline, "recompute": recompute}
    before = job(**spread)
    after = job(offload=offload, offload_layers=layers, **spread)
    for less, more in zip(after.memory(), before.memory(), strict=True):
        assert less.total_bytes <= more.total_bytes * (1 + 1e-12)
        assert less.host_bytes >= more.host_bytes
    assert after.optimistic_time_s(closer=True) >= before.optimistic_time_s(closer=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offload_layers": 2},
        {"offload": Offload.OPTIMIZER, "offload_layers": 2},
        {"offload": Offload.ACTIVATIONS, "offload_layers": -1},
        {"offload": Offload.ACTIVATIONS, "offload_layers": MODEL.layers + 1},
    ],
)
def test_a_number_of_layers_needs_activations_to_offload(wrong):
    with pytest.raises(ConfigError):
        job(**wrong).check()
