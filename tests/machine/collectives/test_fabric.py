"""Leaves, rails and oversubscription of a network, and switches that add."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.machine import LinkKind, LinkSpec
from dse.machine.collectives import CollectiveOp, Group, all_to_all_v_time_s, collective_time_s
from tests.conftest import make_cluster

ops = st.sampled_from(list(CollectiveOp))
message_bytes = st.floats(1, 1e10)


def seconds(cluster, op, nbytes, group=None) -> float:
    return float(collective_time_s(cluster, op, nbytes, group))


def with_leaves(cluster, **figures):
    return replace(cluster, network=replace(cluster.network, **figures))


LEAVES = st.sampled_from([1, 2, 3, 4, 8, 100])
SHAPES = st.sampled_from([(8, 4, 1), (16, 4, 1), (32, 2, 4), (24, 4, 2), (64, 8, 1)])


@given(ops, message_bytes, SHAPES, LEAVES, st.booleans())
def test_leaves_without_bottleneck_make_no_difference(op, size, shape, nodes_per_leaf, rails):
    ranks, per_node, pod = shape
    flat = make_cluster(ranks, per_node, nodes_per_pod=pod)
    leaves = with_leaves(flat, nodes_per_leaf=nodes_per_leaf)
    assert collective_time_s(leaves, op, size) == collective_time_s(flat, op, size)
    # On rails the exchange also crosses the links.
    railed = collective_time_s(with_leaves(leaves, rails=rails), op, size)
    assert railed >= collective_time_s(flat, op, size)


@given(ops, message_bytes, SHAPES, LEAVES, st.floats(1, 8), st.floats(1, 8), st.booleans())
def test_more_oversubscription_is_never_faster(op, size, shape, leaf, first, factor, rails):
    ranks, per_node, pod = shape
    cluster = with_leaves(
        make_cluster(ranks, per_node, nodes_per_pod=pod), nodes_per_leaf=leaf, rails=rails
    )
    times = [
        collective_time_s(with_leaves(cluster, oversubscription=one), op, size)
        for one in (1.0, first, first * factor)
    ]
    assert times[0] <= times[1] <= times[2]
    slow = with_leaves(cluster, spine_latency_s=1e-6)
    assert collective_time_s(slow, op, size) >= times[0]


@given(ops, message_bytes, SHAPES, st.integers(1, 16), st.integers(1, 16), st.floats(1, 8))
def test_larger_leaves_are_never_slower(op, size, shape, first, more, oversubscription):
    ranks, per_node, pod = shape
    cluster = make_cluster(ranks, per_node, nodes_per_pod=pod)
    small, large = (
        with_leaves(cluster, nodes_per_leaf=leaf, oversubscription=oversubscription)
        for leaf in (first, first + more)
    )
    assert collective_time_s(large, op, size) <= collective_time_s(small, op, size) * (1 + 1e-12)


@given(message_bytes, SHAPES, LEAVES, st.booleans())
def test_an_equal_exchange_is_a_special_unequal_one_on_rails_too(size, shape, leaf, rails):
    ranks, per_node, pod = shape
    cluster = with_leaves(
        make_cluster(ranks, per_node, nodes_per_pod=pod),
        nodes_per_leaf=leaf,
        rails=rails,
        oversubscription=3.0,
    )
    local = cluster.domain_size
    remote = size * (ranks - local) / ranks
    unequal = all_to_all_v_time_s(cluster, size * (local - 1) / ranks, remote, remote * local)
    assert unequal == pytest.approx(seconds(cluster, "all_to_all", size), rel=1e-9)


def test_an_exchange_over_an_oversubscribed_spine_by_hand():
    cluster = with_leaves(make_cluster(32), nodes_per_leaf=2, oversubscription=3.0)
    took = seconds(cluster, "all_to_all", 8e9)
    # Of what a node sends to seven others, that to six leaves its leaf, at a third of the rate.
    node_bytes = 4 * 8e9 * 28 / 32
    assert took == pytest.approx(node_bytes * (6 / 7) * 3 / (0.96 * 4 * 25e9), rel=0.05)


def test_a_ring_leaves_a_leaf_once():
    sizes = {}
    for oversubscription in (1.0, 4.0, 8.0):
        cluster = with_leaves(
            make_cluster(32), nodes_per_leaf=4, oversubscription=oversubscription
        )
        sizes[oversubscription] = seconds(cluster, "all_gather", 1e10)
    # Four nodes share the uplinks, so four times the nodes' bandwidth is enough for one of them.
    assert sizes[4.0] == sizes[1.0]
    assert sizes[8.0] == pytest.approx(2 * sizes[1.0], rel=0.1)


def test_rails_forward_over_the_link_and_not_over_the_spine():
    nvswitch = make_cluster(8)
    pcie = replace(nvswitch, link=LinkSpec("pcie", LinkKind.PCIE, 24e9, 4e-6))
    for cluster, forwards in ((nvswitch, True), (pcie, False)):
        railed = with_leaves(cluster, nodes_per_leaf=2, rails=True, oversubscription=8.0)
        flat_s, railed_s = (seconds(one, "all_to_all", 8e9) for one in (cluster, railed))
        # Three quarters of the traffic go to another rail.
        if forwards:
            assert flat_s < railed_s < 1.2 * flat_s
        else:
            assert railed_s > 4 * flat_s


def test_groups_inside_a_leaf_do_not_pass_the_spine():
    cluster = with_leaves(make_cluster(32), nodes_per_leaf=4, oversubscription=8.0)
    flat = make_cluster(32)
    inside, apart = Group(2, 4), Group(2, 4, domain_stride=4)
    for op in ("all_reduce", "all_gather", "all_to_all"):
        assert seconds(cluster, op, 1e9, inside) == seconds(flat, op, 1e9, inside)
        assert seconds(cluster, op, 1e9, apart) > 4 * seconds(flat, op, 1e9, apart)
    # Of pairs of neighbours one sends over the spine.
    assert seconds(cluster, "send_recv", 1e9, Group(2, 1)) >= seconds(
        flat, "send_recv", 1e9, Group(2, 1)
    )


@given(ops, message_bytes, SHAPES)
def test_a_network_that_adds_is_never_slower(op, size, shape):
    ranks, per_node, pod = shape
    cluster = make_cluster(ranks, per_node, nodes_per_pod=pod)
    adding = with_leaves(cluster, in_network_reduction=True)
    assert collective_time_s(adding, op, size) <= collective_time_s(cluster, op, size)


def test_a_network_that_adds_halves_what_a_ring_moves():
    cluster = make_cluster(64)
    adding = with_leaves(cluster, in_network_reduction=True)
    took = seconds(adding, "all_reduce", 1e10)
    inside_s = seconds(make_cluster(64, nodes_per_pod=16), "all_reduce", 1e10)
    assert took == pytest.approx(1e10 / (0.92 * 100e9) + 0.1 * inside_s, rel=0.01)
    assert took < 0.6 * seconds(cluster, "all_reduce", 1e10)
