from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.machine import LinkKind, LinkSpec
from dse.machine.collectives import (
    CollectiveOp,
    Group,
    all_to_all_v_time_s,
    collective_estimate,
    collective_time_s,
    deciding_bytes,
)
from tests.conftest import make_cluster

ops = st.sampled_from(list(CollectiveOp))
message_bytes = st.floats(1, 1e10)

LINKS = {
    LinkKind.NVSWITCH: LinkSpec("nvswitch", LinkKind.NVSWITCH, 300e9, 3e-6),
    LinkKind.NVLINK_MESH: LinkSpec("mesh", LinkKind.NVLINK_MESH, 150e9, 4e-6),
    LinkKind.NVLINK_PAIRS: LinkSpec("pairs", LinkKind.NVLINK_PAIRS, 24e9, 4e-6, 300e9),
    LinkKind.FULL_MESH: LinkSpec("mesh of eight", LinkKind.FULL_MESH, 448e9, 2e-6, 64e9),
    LinkKind.PCIE: LinkSpec("pcie", LinkKind.PCIE, 24e9, 4e-6),
    LinkKind.SHARED_MEMORY: LinkSpec("memory", LinkKind.SHARED_MEMORY, 6e9, 60e-6),
}


def on_link(kind: LinkKind, ranks: int):
    return make_cluster(ranks, devices_per_node=8, link=LINKS[kind])


def seconds(cluster, op, nbytes, group=None) -> float:
    return float(collective_time_s(cluster, op, nbytes, group))


def test_nothing_to_send_takes_no_time():
    assert collective_time_s(make_cluster(1), "all_reduce", 1e9) == 0.0
    for op in CollectiveOp:
        for ranks in (2, 4, 8):
            nothing = collective_estimate(make_cluster(ranks), op, 0)
            assert nothing.time_s == 0.0
            assert nothing.spread == 0.0
    assert all_to_all_v_time_s(make_cluster(8), 0, 0, 0) == 0.0


def test_large_all_reduce_reaches_the_line_rate_but_for_one_exposed_half():
    took = seconds(make_cluster(4), "all_reduce", 4e9)
    assert took == pytest.approx(4e9 * (2 * 3 / 4 + 0.5) / 300e9, rel=0.01)


def test_all_to_all_between_nodes_is_bound_by_one_card_a_rank():
    took = seconds(make_cluster(8), "all_to_all", 8e9)
    # Half of the buffer leaves the node, at 0.96 of a 25 GB/s card.
    assert took == pytest.approx(4e9 / (0.96 * 25e9), rel=0.05)


def test_fewer_cards_than_ranks_share_their_bandwidth():
    cluster = make_cluster(8)
    one_card = replace(cluster, network=replace(cluster.network, nics_per_node=1))
    shared = seconds(one_card, "all_to_all", 8e9)
    assert shared == pytest.approx(4 * seconds(cluster, "all_to_all", 8e9), rel=0.1)


def test_more_cards_than_ranks_serve_a_rank_together():
    cluster = make_cluster(8)
    many = replace(
        cluster,
        network=replace(cluster.network, nics_per_node=16, nic_bandwidth_bytes_per_s=25e9 / 4),
    )
    for op in CollectiveOp:
        assert seconds(many, op, 1e9) == pytest.approx(seconds(cluster, op, 1e9))


def test_groups_that_share_cards_wait_for_each_other():
    cluster = make_cluster(8)
    alone, shared = Group(2, 1), Group(2, 1, card_sharers=4)
    for op in CollectiveOp:
        assert seconds(cluster, op, 1e9, shared) >= seconds(cluster, op, 1e9, alone)
    one_card = replace(cluster, network=replace(cluster.network, nics_per_node=1))
    ratio = seconds(one_card, "all_reduce", 1e9, shared) / seconds(
        one_card, "all_reduce", 1e9, alone
    )
    assert ratio == pytest.approx(4, rel=0.01)


def test_many_nodes_use_a_tree_for_small_messages_and_a_ring_for_large_ones():
    small = [seconds(make_cluster(4 * nodes), "all_reduce", 1024) for nodes in (4, 64)]
    # Messages one after the other: 4 against 12 in a tree, 6 against 126 in a ring.
    assert small[1] < 3 * small[0]
    large = seconds(make_cluster(16), "all_reduce", 1e10)
    ring_s = 2 * 15 / 16 * 1e10 / (0.92 * 100e9)
    assert ring_s < large < 1.1 * ring_s + 0.1 * 1e10 * 2 / 300e9


def test_a_pair_is_fast_inside_and_bound_by_pcie_outside():
    size = 256 * 2**20
    pairs = {n: seconds(on_link(LinkKind.NVLINK_PAIRS, n), "all_reduce", size) for n in (2, 4, 8)}
    pcie = {n: seconds(on_link(LinkKind.PCIE, n), "all_reduce", size) for n in (2, 4, 8)}
    assert pairs[4] > 8 * pairs[2]
    assert pairs[2] < pcie[2] / 5
    for n in (4, 8):
        # Half of the cards leave the bridge to the others.
        assert 0.7 * pcie[n] < pairs[n] < pcie[n]


def test_devices_on_pcie_share_the_host_bridge():
    size = 256 * 2**20
    bus = []
    for ranks in (2, 4, 8):
        took = seconds(on_link(LinkKind.PCIE, ranks), "all_reduce", size)
        bus.append(2 * (ranks - 1) / ranks * size / took)
    assert 24e9 > bus[0] > bus[1] > bus[2] > 0.5 * 24e9


def test_devices_on_a_pcie_switch_share_its_way_up():
    size = 1e10
    plain = on_link(LinkKind.PCIE, 8)
    switches = {
        count: replace(plain, link=replace(plain.link, devices_per_switch=count))
        for count in (1, 2, 4, 8)
    }
    for op in CollectiveOp:
        assert seconds(switches[1], op, size) == seconds(plain, op, size)
    # Four devices send half of their buffers to the other switch, at 0.97 of one device's way up.
    exchanged = seconds(switches[4], "all_to_all", size)
    assert exchanged == pytest.approx(4 * size / 2 / (0.97 * 24e9), rel=0.01)
    assert exchanged > seconds(plain, "all_to_all", size)
    # A ring leaves each switch once, so fewer streams pass the bridge.
    rings = [seconds(switches[count], "all_reduce", size) for count in (1, 2, 4, 8)]
    assert rings == sorted(rings, reverse=True)
    assert rings[-1] == pytest.approx(2 * 7 / 8 * size / (0.97 * 24e9), rel=0.01)


def test_an_exchange_keeps_the_partners_part_off_pcie():
    size = 1e9
    pairs = seconds(on_link(LinkKind.NVLINK_PAIRS, 4), "all_to_all", size)
    pcie = seconds(on_link(LinkKind.PCIE, 4), "all_to_all", size)
    assert pairs / pcie == pytest.approx((2 / 4) / (3 / 4), rel=0.02)


def test_a_full_mesh_uses_the_links_to_those_that_take_part():
    size = 1e10
    for ranks, links in ((2, 1), (4, 3), (8, 7)):
        for op in ("all_reduce", "all_to_all"):
            volume = (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks
            took = seconds(on_link(LinkKind.FULL_MESH, ranks), op, size)
            # 0.71 of 64 GB/s for each link, and latency.
            assert took == pytest.approx(volume * size / (0.71 * links * 64e9), rel=1e-3)
        sent = seconds(on_link(LinkKind.FULL_MESH, ranks), "send_recv", size)
        assert sent == pytest.approx(size / (0.71 * 64e9), rel=1e-3)


def test_a_cube_mesh_has_all_links_only_among_eight():
    size = 1e9
    bus = {}
    for ranks in (2, 4, 8):
        took = seconds(on_link(LinkKind.NVLINK_MESH, ranks), "all_reduce", size)
        bus[ranks] = 2 * (ranks - 1) / ranks * size / took
    assert bus[4] == pytest.approx(4 * bus[2], rel=0.01)
    assert bus[8] == pytest.approx(6 * bus[2], rel=0.01)
    eight = on_link(LinkKind.NVLINK_MESH, 8)
    assert seconds(eight, "all_to_all", size) > 1.5 * seconds(eight, "all_gather", size)


def test_another_topology_changes_the_answer():
    for op in CollectiveOp:
        fast = seconds(on_link(LinkKind.NVSWITCH, 4), op, 1e8)
        assert seconds(on_link(LinkKind.PCIE, 4), op, 1e8) > 2 * fast


def test_switches_that_add_make_large_all_reduces_faster():
    plain = make_cluster(8, 8)
    adding = replace(plain, link=replace(plain.link, in_switch_share=0.6))
    # The message crosses a link once, at 0.6 of its bandwidth.
    assert seconds(adding, "all_reduce", 1e10) == pytest.approx(1e10 / (0.6 * 300e9), rel=0.01)
    # Small messages, other operations and four devices stay as they are.
    assert seconds(adding, "all_reduce", 1024) == seconds(plain, "all_reduce", 1024)
    assert seconds(adding, "all_gather", 1e9) == seconds(plain, "all_gather", 1e9)
    four = Group(1, 4)
    assert seconds(adding, "all_reduce", 1e9, four) == seconds(plain, "all_reduce", 1e9, four)


@given(ops, message_bytes, st.floats(0.05, 1), st.floats(1, 10), st.sampled_from([2, 8, 16]))
def test_better_switches_are_never_slower(op, size, share, factor, ranks):
    plain = make_cluster(ranks, 4, nodes_per_pod=2)

    def took(in_switch_share):
        link = replace(plain.link, in_switch_share=in_switch_share)
        return collective_time_s(replace(plain, link=link), op, size)

    assert took(min(1.0, share * factor)) <= took(share) <= took(None)


def test_an_unknown_kind_of_network_lies_between_the_known_ones():
    cluster = make_cluster(16)
    took = {
        kind: seconds(
            replace(cluster, network=replace(cluster.network, kind=kind)), "all_reduce", 1e9
        )
        for kind in ("infiniband", "InfiniBand", "efa", "carrier pigeons")
    }
    assert took["InfiniBand"] == took["infiniband"]
    assert took["infiniband"] < took["carrier pigeons"] < took["efa"]


def test_formulas_are_a_quarter_off():
    for ranks in (2, 4):
        assert collective_estimate(make_cluster(ranks), "all_gather", 1e6).spread == 0.25
    both = float(collective_estimate(make_cluster(8), "all_reduce", 1e9).spread)
    # The errors of two levels are independent, so their sum is a little surer.
    assert 0.2 < both < 0.25


@given(ops, message_bytes, st.sampled_from([1, 2, 4, 8, 24]))
def test_the_estimate_holds_the_time(op, size, ranks):
    cluster = make_cluster(ranks)
    sizes = np.array([[size, 0.0], [2 * size, 3 * size]])
    estimate = collective_estimate(cluster, op, sizes)
    assert estimate.spread.shape == sizes.shape
    np.testing.assert_allclose(estimate.time_s, collective_time_s(cluster, op, sizes))


@given(ops, message_bytes, st.floats(1, 10), st.sampled_from(list(LinkKind)))
def test_a_longer_message_is_never_faster(op, size, factor, kind):
    for ranks in (2, 4, 8, 32):
        times = collective_time_s(on_link(kind, ranks), op, np.array([size, size * factor]))
        assert times[1] >= times[0] * (1 - 1e-12)


@given(
    ops,
    message_bytes,
    st.floats(1, 10),
    st.sampled_from([2, 4, 8, 32]),
    st.sampled_from(list(LinkKind)),
)
def test_more_bandwidth_is_never_slower(op, size, factor, ranks, kind):
    cluster = on_link(kind, ranks)
    link, network = cluster.link, cluster.network
    wider = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
    if link.pair_bandwidth_bytes_per_s is not None:
        bridge = link.pair_bandwidth_bytes_per_s * factor
        wider = replace(wider, pair_bandwidth_bytes_per_s=bridge)
    faster = replace(network, nic_bandwidth_bytes_per_s=25e9 * factor)
    more = replace(network, nics_per_node=round(8 * factor))
    base = collective_time_s(cluster, op, size) * (1 + 1e-12)
    assert collective_time_s(replace(cluster, link=wider), op, size) <= base
    assert collective_time_s(replace(cluster, network=faster), op, size) <= base
    assert collective_time_s(replace(cluster, network=more), op, size) <= base


@given(ops, message_bytes, st.floats(1, 10), st.sampled_from([2, 8]))
def test_more_latency_is_never_faster(op, size, factor, ranks):
    cluster = make_cluster(ranks)
    slow = replace(cluster, link=replace(cluster.link, latency_s=3e-6 * factor))
    assert collective_time_s(slow, op, size) >= collective_time_s(cluster, op, size)


@given(message_bytes, st.sampled_from([2, 4, 8, 16]))
def test_an_equal_exchange_is_a_special_unequal_one(size, ranks):
    cluster = make_cluster(ranks)
    local = cluster.local_size
    remote = size * (ranks - local) / ranks
    unequal = all_to_all_v_time_s(cluster, size * (local - 1) / ranks, remote, remote * local)
    assert unequal == pytest.approx(seconds(cluster, "all_to_all", size), rel=1e-9)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_the_largest_part_decides_an_unequal_all_to_all(local, remote):
    cluster = make_cluster(8)
    once = all_to_all_v_time_s(cluster, local, remote, remote)
    assert all_to_all_v_time_s(cluster, 2 * local, remote, remote) >= once
    assert all_to_all_v_time_s(cluster, local, 2 * remote, 2 * remote) >= once


def test_links_carry_both_directions_at_once_and_shared_memory_does_not():
    held = np.array([[[6.0], [2.0]]])
    on_link, in_memory = (
        deciding_bytes(LINKS[kind], held, 2) for kind in (LinkKind.PCIE, LinkKind.SHARED_MEMORY)
    )
    # The first sends 3 and receives 1; the second the other way round.
    assert (on_link[0], in_memory[0]) == (3.0, 2.0)
    held = np.array([[[9.0], [0.0], [0.0], [3.0]]])
    # Of four ranks the first sends 27/4 and receives 3/4.
    on_link, in_memory = (
        deciding_bytes(LINKS[kind], held, 4) for kind in (LinkKind.PCIE, LinkKind.SHARED_MEMORY)
    )
    assert (on_link[0], in_memory[0]) == (27 / 4, 30 / 8)


@given(
    st.lists(st.floats(0, 1e9), min_size=2, max_size=8),
    st.sampled_from(list(LINKS)),
)
def test_uneven_parts_never_decide_by_less_than_even_ones(held, kind):
    ranks = len(held)
    uneven, even = (
        deciding_bytes(LINKS[kind], np.reshape(values, (1, ranks, 1)), ranks)[0]
        for values in (held, [np.mean(held)] * ranks)
    )
    assert even == pytest.approx(np.mean(held) * (ranks - 1) / ranks)
    assert uneven >= even * (1 - 1e-9)


def test_groups():
    cluster = make_cluster(8)
    assert Group.world(cluster) == Group(2, 4)
    assert Group.domain(cluster) == Group(1, 4)
    in_pods = make_cluster(16, 2, nodes_per_pod=4)
    assert Group.world(in_pods) == Group(2, 8)
    assert Group.domain(in_pods) == Group(1, 8)
