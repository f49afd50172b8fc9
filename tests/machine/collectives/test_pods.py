"""Scale-up domains over several nodes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.machine import LinkSpec
from dse.machine.collectives import CollectiveOp, Group, collective_time_s
from dse.machine.platforms import load_platform
from tests.conftest import make_cluster

ops = st.sampled_from(list(CollectiveOp))
message_bytes = st.floats(1, 1e10)


def seconds(cluster, op, nbytes, group=None) -> float:
    return float(collective_time_s(cluster, op, nbytes, group))


@given(ops, message_bytes, st.sampled_from([2, 4, 8, 12, 24]))
def test_a_pod_of_one_node_is_the_node(op, size, ranks):
    node = make_cluster(ranks)
    pod = replace(node, nodes_per_pod=1)
    assert collective_time_s(pod, op, size) == collective_time_s(node, op, size)


def test_a_pod_needs_no_network_inside():
    within = make_cluster(16, 4, nodes_per_pod=4)
    slow = replace(within, network=replace(within.network, nic_bandwidth_bytes_per_s=1.0))
    for op in CollectiveOp:
        assert seconds(slow, op, 1e9) == seconds(within, op, 1e9)
        assert seconds(make_cluster(16), op, 1e9) > seconds(within, op, 1e9)


def test_pods_send_through_the_cards_of_all_their_nodes():
    # Two pods of two nodes with four cards each: half of the buffer leaves, a card a rank.
    took = seconds(make_cluster(16, 4, nodes_per_pod=2), "all_to_all", 8e9)
    assert took == pytest.approx(4e9 / (0.96 * 25e9), rel=0.05)


@given(
    ops,
    message_bytes,
    st.sampled_from([(8, 4), (16, 2), (24, 3), (32, 8)]),
    st.floats(1, 10),
)
def test_a_better_level_of_pods_is_never_slower(op, size, shape, factor):
    ranks, nodes = shape
    cluster = make_cluster(ranks, 2, nodes_per_pod=nodes)
    link, network = cluster.link, cluster.network
    better = (
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor),
        replace(link, latency_s=link.latency_s / factor),
        replace(network, nic_bandwidth_bytes_per_s=network.nic_bandwidth_bytes_per_s * factor),
        replace(network, latency_s=network.latency_s / factor),
        replace(network, nics_per_node=round(network.nics_per_node * factor)),
    )
    base = collective_time_s(cluster, op, size) * (1 + 1e-12)
    for level in better:
        kind = "link" if isinstance(level, LinkSpec) else "network"
        assert collective_time_s(replace(cluster, **{kind: level}), op, size) <= base


MEASURED = {name: load_platform(name) for name in ("gb200_nvl72", "h100_sxm")}


@given(ops, message_bytes, st.sampled_from([16, 32, 64, 128, 256]), st.sampled_from([2, 4, 8]))
def test_the_same_ranks_are_never_slower_in_larger_pods(op, size, ranks, per_node):
    node = make_cluster(ranks, per_node)
    measured = [platform.cluster(ranks) for platform in MEASURED.values()]
    for cluster in (node, *measured):
        nodes = ranks // cluster.devices_per_node
        pods = [2**power for power in range(nodes.bit_length())]
        took = [seconds(replace(cluster, nodes_per_pod=pod), op, size) for pod in pods]
        assert took == pytest.approx(sorted(took, reverse=True), rel=1e-9)


@given(
    ops.filter(lambda op: op is not CollectiveOp.ALL_TO_ALL),
    message_bytes,
    st.sampled_from([2, 8, 32]),
    st.sampled_from([2, 4, 8]),
)
def test_groups_with_ranks_apart_are_never_slower_in_larger_pods(op, size, members, stride):
    cluster = make_cluster(256, 4)
    took = []
    for pod in (1, 2, 4, 8, 16, 32, 64):
        pods = replace(cluster, nodes_per_pod=pod)
        took.append(seconds(pods, op, size, Group.of(pods, members, stride)))
    assert took == pytest.approx(sorted(took, reverse=True), rel=1e-9)


@given(message_bytes, st.sampled_from([16, 64]))
def test_a_ring_over_pods_takes_as_long_as_its_slower_part(size, ranks):
    pods = make_cluster(ranks, 4, nodes_per_pod=2)
    for op in ("all_gather", "reduce_scatter", "broadcast"):
        inside_s = seconds(make_cluster(ranks, 4, nodes_per_pod=ranks // 4), op, size)
        assert seconds(pods, op, size) >= inside_s
        network = replace(pods.network, nic_bandwidth_bytes_per_s=1e15, latency_s=1e-12)
        assert seconds(replace(pods, network=network), op, size) == pytest.approx(inside_s)


def test_an_all_reduce_over_a_pod_is_a_tree_for_small_messages():
    pod = make_cluster(64, 4, nodes_per_pod=16)
    node = make_cluster(64, 64)
    # 2 · (3 + 4) steps instead of 2 · 63.
    hops = 2.0 + 0.31 * 14
    assert seconds(pod, "all_reduce", 1) == pytest.approx(3e-6 * hops, rel=1e-3)
    assert seconds(pod, "all_reduce", 1) < 0.2 * seconds(node, "all_reduce", 1)
    assert seconds(pod, "all_gather", 1e6) == seconds(node, "all_gather", 1e6)
