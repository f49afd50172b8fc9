from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.collectives import CollectiveOp, Group, all_to_all_v_time_s, collective_time_s
from dse.hardware import LinkKind, LinkSpec
from tests.conftest import make_cluster

ops = st.sampled_from(list(CollectiveOp))
message_bytes = st.floats(1, 1e10)


def test_nothing_to_send_takes_no_time():
    assert collective_time_s(make_cluster(1), "all_reduce", 1e9) == 0.0
    for op in CollectiveOp:
        assert collective_time_s(make_cluster(8), op, 0) == 0.0


def test_large_all_reduce_reaches_the_bus_bandwidth():
    seconds = float(collective_time_s(make_cluster(4), "all_reduce", 4e9))
    bus = 4e9 * 2 * 3 / 4 / seconds
    assert bus == pytest.approx(0.82 * 300e9, rel=0.01)


def test_all_to_all_between_nodes_is_bound_by_one_card_a_rank():
    seconds = float(collective_time_s(make_cluster(8), "all_to_all", 8e9))
    # Half of the buffer leaves the node, at 0.9 of a 25 GB/s card.
    assert seconds == pytest.approx(4e9 / (0.9 * 25e9), rel=0.05)


def test_fewer_cards_than_ranks_share_their_bandwidth():
    cluster = make_cluster(8)
    one_card = replace(cluster, network=replace(cluster.network, nics_per_node=1))
    shared = float(collective_time_s(one_card, "all_to_all", 8e9))
    assert shared == pytest.approx(
        4 * float(collective_time_s(cluster, "all_to_all", 8e9)), rel=0.1
    )


def test_pairs_are_fast_inside_and_slow_outside():
    link = LinkSpec("pairs", LinkKind.NVLINK_PAIRS, 24e9, 4e-6, 300e9)
    two = collective_time_s(make_cluster(2, link=link), "all_reduce", 64 * 2**20)
    four = collective_time_s(make_cluster(4, link=link), "all_reduce", 64 * 2**20)
    assert four > 8 * two


def test_another_topology_changes_the_answer():
    pcie = LinkSpec("pcie", LinkKind.PCIE, 24e9, 4e-6)
    for op in CollectiveOp:
        fast = collective_time_s(make_cluster(4), op, 1e8)
        slow = collective_time_s(make_cluster(4, link=pcie), op, 1e8)
        assert slow > 2 * fast


@given(ops, message_bytes, st.floats(1, 10))
def test_a_longer_message_is_never_faster(op, size, factor):
    for ranks in (4, 8, 32):
        times = collective_time_s(make_cluster(ranks), op, np.array([size, size * factor]))
        assert times[1] >= times[0] * (1 - 1e-12)


@given(ops, message_bytes, st.floats(1, 10), st.sampled_from([2, 4, 8, 32]))
def test_more_bandwidth_is_never_slower(op, size, factor, ranks):
    cluster = make_cluster(ranks)
    link = replace(cluster.link, bandwidth_bytes_per_s=300e9 * factor)
    network = replace(cluster.network, nic_bandwidth_bytes_per_s=25e9 * factor)
    base = collective_time_s(cluster, op, size)
    assert collective_time_s(replace(cluster, link=link), op, size) <= base
    assert collective_time_s(replace(cluster, network=network), op, size) <= base


@given(ops, message_bytes, st.floats(1, 10), st.sampled_from([2, 8]))
def test_more_latency_is_never_faster(op, size, factor, ranks):
    cluster = make_cluster(ranks)
    slow = replace(cluster, link=replace(cluster.link, latency_s=3e-6 * factor))
    assert collective_time_s(slow, op, size) >= collective_time_s(cluster, op, size)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_the_largest_part_decides_an_unequal_all_to_all(local, remote):
    cluster = make_cluster(8)
    once = all_to_all_v_time_s(cluster, local, remote, remote)
    assert all_to_all_v_time_s(cluster, 2 * local, remote, remote) >= once
    assert all_to_all_v_time_s(cluster, local, 2 * remote, 2 * remote) >= once


def test_groups():
    cluster = make_cluster(8)
    assert Group.world(cluster).size == 8
    assert Group.node(cluster).size == 4
