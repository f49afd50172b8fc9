"""Networks with calibrations of their own."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.machine import NetworkSpec
from dse.machine.collectives import CollectiveOp, collective_estimate, collective_time_s
from dse.machine.fits import HeldOut, NetworkCalibration, NetworkModel, Provenance
from dse.machine.platforms import load_platform

MIB = 2**20
H100 = load_platform("h100_sxm")
MODEL = NetworkModel(relayed_share=0.5, branched_share=0.4, direct_share=0.6, message_hops=2.0)


def calibration(model: NetworkModel = MODEL, *ops: str, spread: float = 0.1) -> NetworkCalibration:
    return NetworkCalibration(
        model=model,
        ops=ops or ("all_reduce",),
        size_bytes=(MIB, 1024 * MIB),
        nodes=(2, 4),
        spread=spread,
        provenance=Provenance("made_up", "made-up device", "a law", "unknown", 20),
        held_out=HeldOut(10, 0.05, 0.06, 0.1, "every other size"),
    )


def nodes_with(nodes: int, *calibrations: NetworkCalibration, **figures: float):
    """Nodes of eight over one card each, so that nothing inside the nodes matters."""
    network = NetworkSpec("made up", "infiniband", 1, 1e9, 1e-5, calibrations)
    return replace(H100.cluster(8), network=replace(network, **figures), world_size=8 * nodes)


def test_shares_of_the_line_rate_decide_large_messages():
    size = 16e9
    cluster = nodes_with(2, calibration())
    inside_s = float(collective_time_s(H100.cluster(8), "all_reduce", size))
    took_s = float(collective_time_s(cluster, "all_reduce", size))
    # S through a node's card at half its rate; three messages of two hops, times three.
    assert took_s == pytest.approx(size / 0.5e9 + 18 * 1e-5 + 0.1 * inside_s, rel=1e-6)


def test_a_calibration_counts_for_its_network_only():
    one, other = nodes_with(2), nodes_with(2, calibration())
    slower_s = collective_time_s(other, "all_reduce", 64 * MIB)
    assert slower_s > 1.5 * collective_time_s(one, "all_reduce", 64 * MIB)
    for op in CollectiveOp:
        alone = collective_time_s(nodes_with(1, calibration()), op, 64 * MIB)
        assert alone == collective_time_s(nodes_with(1), op, 64 * MIB)


def test_the_first_calibration_of_an_operation_counts():
    fast = replace(MODEL, relayed_share=1.0, branched_share=1.0)
    first, second = calibration(MODEL, "all_gather"), calibration(fast, "all_gather", "all_reduce")

    def took_s(op: str, *calibrations: NetworkCalibration) -> float:
        return float(collective_time_s(nodes_with(4, *calibrations), op, 1e9))

    assert took_s("all_gather", first, second) == took_s("all_gather", first)
    assert took_s("all_reduce", first, second) == took_s("all_reduce", second)
    assert took_s("reduce_scatter", first, second) == took_s("reduce_scatter", first)


def test_the_spread_is_the_fit_s_and_grows_outside_what_was_measured():
    def spread(op: str, nodes: int, size: float) -> float:
        return float(collective_estimate(nodes_with(nodes, calibration()), op, size).spread)

    inside = spread("all_reduce", 4, 512 * MIB)
    assert inside == pytest.approx(0.1, rel=0.05)
    assert spread("all_reduce", 64, 512 * MIB) > 2 * inside
    assert spread("all_reduce", 4, 64 * 1024 * MIB) > 2 * inside
    assert spread("all_to_all", 4, 512 * MIB) > 2 * inside


@given(
    st.sampled_from(CollectiveOp),
    st.floats(1.0, 1e10),
    st.sampled_from([2, 3, 8, 32]),
    st.sampled_from(["nic_bandwidth_bytes_per_s", "latency_s", "share", "bytes"]),
    st.floats(1.0, 10.0),
)
def test_a_better_network_is_never_slower(op, size, nodes, what, factor):
    before = nodes_with(nodes, calibration())
    after, less = before, size
    if what == "nic_bandwidth_bytes_per_s":
        after = nodes_with(nodes, calibration(), nic_bandwidth_bytes_per_s=1e9 * factor)
    elif what == "latency_s":
        after = nodes_with(nodes, calibration(), latency_s=1e-5 / factor)
    elif what == "share":
        better = replace(
            MODEL,
            relayed_share=MODEL.relayed_share * factor,
            branched_share=MODEL.branched_share * factor,
            direct_share=MODEL.direct_share * factor,
        )
        after = nodes_with(nodes, calibration(better))
    else:
        less = size / factor
    slow_s, fast_s = collective_time_s(before, op, size), collective_time_s(after, op, less)
    assert fast_s <= slow_s * (1 + 1e-12)
    assert np.isfinite(slow_s)
