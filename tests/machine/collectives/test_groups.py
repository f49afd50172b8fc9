"""Which ranks of nodes and pods are in a group, and which groups share network cards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.machine import HostLinkSpec, rank_group
from dse.machine.collectives import Group, collective_time_s
from tests.conftest import make_cluster


@pytest.mark.parametrize(
    ("ranks", "stride", "expected"),
    [
        (8, 1, Group(1, 8)),  # tensor parallelism fills a node
        (2, 1, Group(1, 2)),
        (16, 1, Group(2, 8)),  # over two nodes, alone on the cards
        (4, 8, Group(4, 1, 8)),  # replicas of tensor 8: all eight ranks of a node share its cards
        (4, 4, Group(2, 2, 4)),
        (2, 4, Group(1, 2)),
        (8, 2, Group(2, 4, 2)),
        (3, 4, Group(3, 1, 4)),  # three do not fill nodes in pairs
        (1, 8, Group(1, 1)),
    ],
)
def test_groups_on_nodes_of_eight(ranks, stride, expected):
    assert Group.of(make_cluster(64, 8), ranks, stride) == expected


@pytest.mark.parametrize(
    ("replicas", "stride", "members", "peers"),
    [
        # 32 ranks on four nodes of eight. Spread: each node has a part of every group.
        (2, 2, Group(4, 4, 2), Group(1, 2)),
        (8, 8, Group(4, 1, 8), Group(1, 8)),
        # More groups than ranks of a node: every second node has one rank of a group.
        (16, 16, Group(2, 1, 8, 2), Group(2, 8)),
        # Whole nodes: alone on their cards; averages are between nodes, all ranks at once.
        (2, 1, Group(2, 8), Group(2, 1, 8, 2)),
        (4, 1, Group(1, 8), Group(4, 1, 8)),
        # Two groups on a node.
        (8, 1, Group(1, 4), Group(4, 2, 4)),
    ],
)
def test_groups_of_a_divided_cluster(replicas, stride, members, peers):
    whole = make_cluster(32, 8)
    part = rank_group(whole, 32 // replicas, stride)
    assert part.world_size == 32 // replicas
    assert part.replicas == replicas
    assert part.whole == whole
    assert (part.domain_count, part.domain_size) == (members.domains, members.ranks_per_domain)
    assert Group.world(part) == members
    assert Group.replicas(part) == peers


def test_a_group_has_its_part_of_pods():
    pods = make_cluster(32, 4, nodes_per_pod=4)  # two pods of sixteen
    assert Group.world(rank_group(pods, 8, 4)) == Group(2, 4, 4)
    assert Group.world(rank_group(pods, 16, 1)) == Group(1, 16)
    # Eight groups of four ranks: one of every second node's four.
    part = rank_group(pods, 4, 8)
    assert (part.devices_per_node, part.domain_size, part.domain_count) == (1, 2, 2)


def test_a_group_has_its_part_of_the_host():
    whole = make_cluster(
        32,
        8,
        host_memory_bytes=800e9,
        storage_bandwidth_bytes_per_s=8e9,
        host_link=HostLinkSpec(25e9, 1e-5, devices=2),
    )
    spread, nodes = rank_group(whole, 8, 4), rank_group(whole, 8, 1)
    assert (spread.local_size, nodes.local_size) == (2, 8)
    assert (spread.host_memory_bytes, nodes.host_memory_bytes) == (200e9, 800e9)
    assert spread.storage_bandwidth_bytes_per_s == 2e9
    assert nodes.storage_bandwidth_bytes_per_s == 8e9
    # A rank's copy of the batch takes as long as it does without groups.
    assert spread.host_link_of_all == nodes.host_link_of_all == whole.host_link_of_all


@pytest.mark.parametrize(("ranks", "stride"), [(12, 1), (8, 3), (5, 1)])
def test_groups_with_unequal_parts_are_refused(ranks, stride):
    with pytest.raises(ConfigError):
        rank_group(make_cluster(32, 8), ranks, stride)


@given(st.sampled_from([2, 4, 8, 16]), st.floats(1e4, 1e9))
def test_groups_that_share_cards_are_not_faster_than_alone(replicas, size_bytes):
    whole = make_cluster(32, 8)
    part = rank_group(whole, 32 // replicas, replicas)
    members = Group.world(part)
    alone = Group(members.domains, members.ranks_per_domain, 1, members.domain_stride)
    for op in ("all_to_all", "reduce_scatter"):
        together_s = collective_time_s(part, op, size_bytes)
        assert together_s >= collective_time_s(whole, op, size_bytes, alone)
