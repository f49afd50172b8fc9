"""Collectives between domains (nodes, or pods): traffic through the network cards, and its rate.

All-reduce is a double binary tree or a ring over all `N` ranks in `k` domains, the faster of both:

    bytes through a domain's cards, tree: S for k = 2, 2·S otherwise; ring: 2·(N − 1)/N · S
    messages one after the other, tree: 2·⌈log2 k⌉;                ring: 2·(k − 1)

A domain of a double binary tree is a leaf of one tree and inside the other: it sends half of the
message to its parent, once as a leaf and once from inside, and half to each of its two children.
Of two domains each is the root of one tree and the leaf of the other. That is why two have
nearly twice the bus bandwidth of three. All-gather and reduce-scatter are rings of
`(N − 1)/N · S`, broadcast is a pipeline of `S`.

An exchange is direct: a rank is bound by its own share of the cards, a domain by all its cards.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.collectives._groups import CollectiveOp, Group
from dse.machine.collectives._protocols import faster_protocol_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import Cluster


@dataclass(frozen=True, slots=True)
class _Efficiency:
    """Shares of the cards' line rate that large messages reach.

    Attributes:
        relayed: Rings and trees, where every message is received and sent on.
        direct: Exchanges between two ranks.
    """

    relayed: float
    direct: float


#: Fitted to published nccl-tests, one figure for each kind of network:
#: InfiniBand: 85–96 GB/s of bus bandwidth on 3 × 8 A100 with four HDR200 cards a node, and
#: 48 GB/s a rank on NDR400 for all-to-all; EFA: AWS p4d, 57.2, 31.8 and 29.6 GB/s on 2, 3 and 4
#: nodes; Ethernet: 9.3 GB/s of algorithm bandwidth on 2 × 8 A100 over 100 Gbit/s. Direct shares of
#: EFA and Ethernet are assumed.
_EFFICIENCY = {
    "infiniband": _Efficiency(relayed=0.92, direct=0.96),
    "efa": _Efficiency(relayed=0.62, direct=0.80),
    "ethernet": _Efficiency(relayed=0.75, direct=0.80),
}

#: For a network of any other kind: assumed, between the ones above.
_OTHER_EFFICIENCY = _Efficiency(relayed=0.70, direct=0.80)

#: Latency in one-way network latencies: fixed part (launch, first credit), and one for each
#: message that waits for another. Assumed.
_FIXED_HOPS = 1.0

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
    latency_s = cluster.network.latency_s
    efficiency = _efficiency(cluster)
    rank_bandwidth = _rank_bandwidth(cluster)
    bandwidth = min(
        _domain_bandwidth(cluster) / group.card_sharers, rank_bandwidth * group.ranks_per_domain
    )
    rate = efficiency.relayed * bandwidth
    if op is CollectiveOp.SEND_RECV:
        rate = efficiency.direct * min(bandwidth, rank_bandwidth)

    def algorithm_s(messages: float, volume: float) -> NDArray[np.float64]:
        return faster_protocol_s(nbytes, latency_s * (_FIXED_HOPS + messages), volume / rate)

    ring, tree = group.domains - 1, math.ceil(math.log2(group.domains))
    share = (group.size - 1) / group.size
    if op is CollectiveOp.ALL_REDUCE:
        in_tree_s = algorithm_s(2 * tree, 1.0 if group.domains == 2 else 2.0)
        return np.minimum(in_tree_s, algorithm_s(2 * ring, 2.0 * share))
    if op is CollectiveOp.BROADCAST:
        return algorithm_s(tree, 1.0)
    if op is CollectiveOp.SEND_RECV:
        return algorithm_s(1, 1.0)
    return algorithm_s(ring, share)


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
        domain_remote_bytes: The same summed over the ranks of a domain, largest over domains.
        group: Taking part.
    """
    network = cluster.network
    line_s = np.maximum(
        remote_bytes / _rank_bandwidth(cluster),
        domain_remote_bytes / _domain_bandwidth(cluster),
    )
    rounds = 1 + (group.size - group.ranks_per_domain) / _PEERS_AT_ONCE
    empty_s = network.latency_s * (_FIXED_HOPS + rounds)
    time_s = faster_protocol_s(line_s, empty_s, 1 / _efficiency(cluster).direct)
    return np.where(line_s > 0, time_s, 0.0)


def _efficiency(cluster: Cluster) -> _Efficiency:
    return _EFFICIENCY.get(cluster.network.kind.lower(), _OTHER_EFFICIENCY)


def _domain_bandwidth(cluster: Cluster) -> float:
    """Bandwidth of all cards of a domain."""
    return cluster.nodes_per_domain * cluster.network.node_bandwidth_bytes_per_s


def _rank_bandwidth(cluster: Cluster) -> float:
    """Bandwidth of one rank: its share of the node's cards, at least one card."""
    network = cluster.network
    share = network.node_bandwidth_bytes_per_s / cluster.devices_per_node
    return max(network.nic_bandwidth_bytes_per_s, share)
