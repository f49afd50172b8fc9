"""Collectives between domains (nodes, or pods): traffic through the network cards, and its rate.

All-reduce is a double binary tree or a ring over all `N` ranks in `k` domains, the faster of both:

    bytes through a domain's cards, tree: S for k = 2, 2·S otherwise; ring: 2·(N − 1)/N · S
    messages one after the other, tree: 2·⌈log2 k⌉;                ring: 2·(k − 1)
    and steps inside domains,                                       ring: 2·(N − k)

A domain of a double binary tree is a leaf of one tree and inside the other: it sends half of the
message to its parent, once as a leaf and once from inside, and half to each of its two children.
Of two nodes each is the root of one tree and the leaf of the other. That is why two nodes have
nearly twice the bus bandwidth of three. In larger trees two children send at the same time, which
may cost a part of the rate. All-gather and reduce-scatter are rings of `(N − 1)/N · S`, broadcast
is a ring of `S`.

An exchange is direct: a rank is bound by its own share of the cards, a domain by all its cards.
Where switches add (SHARP), an all-reduce sends `S` to them and receives `S`, in two messages.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.collectives._fabric import message_latency_s, spine_bandwidth, spine_share
from dse.machine.collectives._groups import CollectiveOp, Group
from dse.machine.collectives._inside import step_time_s
from dse.machine.collectives._network_models import network_model
from dse.machine.collectives._protocols import faster_protocol_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.machine.fits import NetworkModel

#: Peers that a rank serves at the same time in an exchange; assumed.
_PEERS_AT_ONCE = 8


def between_time_s(
    cluster: Cluster, op: CollectiveOp, nbytes: NDArray[np.float64], group: Group
) -> NDArray[np.float64]:
    """Returns seconds that a collective other than all-to-all spends between domains.

    Args:
        cluster: The cluster.
        op: The operation.
        nbytes: Message sizes as nccl-tests counts them, any shape.
        group: Taking part, in two domains at least.
    """
    model = network_model(cluster.network, op)
    rank_bandwidth = _rank_bandwidth(cluster)
    bandwidth = min(
        _domain_bandwidth(cluster) / group.card_sharers,
        spine_bandwidth(cluster, op, group) / group.card_sharers,
        rank_bandwidth * group.ranks_per_domain,
    )
    latency_s = message_latency_s(cluster, op, group)
    relayed = model.relayed_share * bandwidth

    def algorithm_s(
        messages: float, volume: float, rate: float, relays: float = 0.0
    ) -> NDArray[np.float64]:
        relayed_s = relays * step_time_s(cluster.link)
        return _protocols_s(latency_s, model, nbytes, messages, volume / rate, relayed_s)

    ring, tree = group.domains - 1, math.ceil(math.log2(group.domains))
    inside = group.size - group.domains
    share = (group.size - 1) / group.size
    if op is CollectiveOp.ALL_REDUCE:
        if group.domains == 2:
            in_tree_s = algorithm_s(2, 1.0, relayed)
        else:
            in_tree_s = algorithm_s(2 * tree, 2.0, model.branched_share * bandwidth)
        in_ring_s = algorithm_s(2 * ring, 2.0 * share, relayed, 2 * inside)
        time_s = np.minimum(in_tree_s, in_ring_s)
        if cluster.network.in_network_reduction:
            time_s = np.minimum(time_s, algorithm_s(2, 1.0, relayed))
        return time_s
    if op is CollectiveOp.BROADCAST:
        return algorithm_s(ring, 1.0, relayed, inside)
    if op is CollectiveOp.SEND_RECV:
        return algorithm_s(1, 1.0, model.direct_share * min(bandwidth, rank_bandwidth))
    return algorithm_s(ring, share, relayed, inside)


def exchange_time_s(
    cluster: Cluster,
    remote_bytes: NDArray[np.float64],
    domain_remote_bytes: NDArray[np.float64],
    group: Group,
) -> NDArray[np.float64]:
    """Returns seconds that an all-to-all spends between domains; zero where nothing is sent.

    Args:
        cluster: The cluster.
        remote_bytes: Largest send or receive of any rank to or from other domains.
        domain_remote_bytes: The same summed over all ranks of a domain, also those of other groups
            that exchange at the same time; largest over domains.
        group: Taking part.
    """
    line_s = np.maximum(
        remote_bytes / _rank_bandwidth(cluster),
        domain_remote_bytes * max(1.0, spine_share(cluster, group)) / _domain_bandwidth(cluster),
    )
    op = CollectiveOp.ALL_TO_ALL
    model = network_model(cluster.network, op)
    rounds = 1 + (group.size - group.ranks_per_domain) / _PEERS_AT_ONCE
    latency_s = message_latency_s(cluster, op, group)
    time_s = _protocols_s(latency_s, model, line_s, rounds, 1 / model.direct_share)
    return np.where(line_s > 0, time_s, 0.0)


def _protocols_s(
    latency_s: float,
    model: NetworkModel,
    amount: NDArray[np.float64],
    messages: float,
    seconds_each: float,
    relayed_s: float = 0.0,
) -> NDArray[np.float64]:
    """Seconds of the faster protocol for a launch and `messages` that wait for one another.

    Messages that pass devices of a domain on their way take `relayed_s` longer altogether.
    """
    hops = model.message_hops * (1.0 + messages)
    return faster_protocol_s(
        amount,
        latency_s * hops + relayed_s,
        seconds_each,
        low_latency_share=model.low_latency_share,
        full_rate_factor=model.full_rate_factor,
    )


def _domain_bandwidth(cluster: Cluster) -> float:
    """Bandwidth of all cards of a domain."""
    return cluster.nodes_per_domain * cluster.network.node_bandwidth_bytes_per_s


def _rank_bandwidth(cluster: Cluster) -> float:
    """Bandwidth of one rank: its share of the node's cards, at least one card."""
    network = cluster.network
    share = network.node_bandwidth_bytes_per_s / cluster.devices_per_node
    return max(network.nic_bandwidth_bytes_per_s, share)
