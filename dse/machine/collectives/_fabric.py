"""Switches of a network: what leaves the leaf switches, and how much that slows a collective.

Nodes under the same leaf switches have the full bandwidth among one another; what leaves them
passes the spine, where `oversubscription` times as much bandwidth is attached as there is. It is
one more wire that a message passes on its way, so the slowest wire decides, and nothing is added:
a network without oversubscription is the same with and without leaves.

A ring or a tree follows the order of the domains, so it leaves a leaf once: of `m` domains under a
leaf one at a time sends over the spine. In an exchange of `D` domains the share
`(D − m) / (D − 1)` of what domains send to others leaves the leaf.

On *rails* card `i` of every node under a leaf group has a leaf switch of its own. A message to
another rail first crosses the link to the device whose card has it (NCCL: PXN). Where devices do
not reach each other's cards over the link, it passes the spine even within a leaf group.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse.machine import LinkKind
from dse.machine.collectives._groups import CollectiveOp

if TYPE_CHECKING:
    from dse.machine import Cluster
    from dse.machine.collectives._groups import Group

#: Links over which a device reaches the cards of another one.
_FORWARDING = (LinkKind.NVSWITCH, LinkKind.NVLINK_MESH, LinkKind.FULL_MESH)


def spine_bandwidth(cluster: Cluster, op: CollectiveOp, group: Group) -> float:
    """Returns what the spine leaves of a domain's cards for a ring, a tree or a pair.

    Args:
        cluster: The cluster.
        op: Any operation but all-to-all.
        group: Taking part, in two domains at least.

    Returns:
        Bytes a second for all groups of the kind that share a domain; infinite within a leaf.
    """
    if not _leaves(cluster, op, group):
        return math.inf
    under_leaf = _domains_per_leaf(cluster)
    # As many rings as there are sets of groups between one another leave the leaf side by side.
    leaving = min(group.domain_stride, under_leaf)
    cards = cluster.nodes_per_domain * cluster.network.node_bandwidth_bytes_per_s
    return cards * under_leaf / (leaving * cluster.network.oversubscription)


def spine_share(cluster: Cluster, group: Group) -> float:
    """Returns how long the spine takes for an exchange, as a multiple of a domain's cards.

    Args:
        cluster: The cluster.
        group: Taking part, in two domains at least.
    """
    if cluster.network.nodes_per_leaf is None:
        return 0.0
    domains, mates = group.domains, _mates(cluster, group)
    leaving = (domains - mates) / (domains - 1)
    staying = 1.0 - leaving
    return cluster.network.oversubscription * (leaving + _other_rails(cluster, group) * staying)


def message_latency_s(cluster: Cluster, op: CollectiveOp, group: Group) -> float:
    """Returns the latency of one message between two domains, over the spine if any passes it."""
    network = cluster.network
    over_spine = _leaves(cluster, op, group) or (
        op is CollectiveOp.ALL_TO_ALL and _other_rails(cluster, group) > 0
    )
    return network.latency_s + (network.spine_latency_s if over_spine else 0.0)


def forwarded_share(cluster: Cluster, group: Group) -> float:
    """Returns which share of what a rank sends to other domains first crosses the link.

    Args:
        cluster: The cluster.
        group: Taking part.
    """
    if not cluster.network.rails or cluster.link.kind not in _FORWARDING or group.domains == 1:
        return 0.0
    return _on_other_rails(cluster, group)


def _other_rails(cluster: Cluster, group: Group) -> float:
    """Share of an exchange within a leaf group that passes the spine to reach another rail."""
    if not cluster.network.rails or cluster.link.kind in _FORWARDING:
        return 0.0
    return _on_other_rails(cluster, group)


def _on_other_rails(cluster: Cluster, group: Group) -> float:
    return 1.0 - 1.0 / min(group.ranks_per_domain, cluster.devices_per_node)


def _leaves(cluster: Cluster, op: CollectiveOp, group: Group) -> bool:
    """Returns whether messages of some group of the kind pass the spine."""
    if cluster.network.nodes_per_leaf is None:
        return False
    under_leaf = _domains_per_leaf(cluster)
    if cluster.domain_count <= under_leaf:
        return False
    # Of pairs of neighbours some are always under different leaves.
    return op is CollectiveOp.SEND_RECV or _mates(cluster, group) < group.domains


def _mates(cluster: Cluster, group: Group) -> float:
    """Domains of a group under one leaf, where they are fewest."""
    under_leaf = _domains_per_leaf(cluster)
    span = group.domains * group.domain_stride
    if cluster.domain_count <= under_leaf or under_leaf % span == 0:
        return group.domains
    if span < under_leaf:
        # Groups do not fill leaves, so a leaf's edge divides some of them.
        return max(1.0, group.domains / 2)
    return max(1.0, under_leaf / group.domain_stride)


def _domains_per_leaf(cluster: Cluster) -> int:
    assert cluster.network.nodes_per_leaf is not None
    return max(1, cluster.network.nodes_per_leaf // cluster.nodes_per_domain)
