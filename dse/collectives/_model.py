"""Duration of a collective from volume, protocol regime and topology.

Inside a node a collective moves `volume = factor(op, n) · nbytes` through each device's link
(nccl-tests' definition of bus bandwidth). Two protocols compete, as in NCCL: one with little
latency and a part of the bandwidth, one with the full bandwidth and more latency; the faster is
taken, which makes the curve monotone and bends it where measured curves bend.

Between nodes all-reduce, all-gather and reduce-scatter are hierarchical: every node reduces or
gathers inside, and the nodes exchange through all their network cards. All-to-all is direct: a
rank is bound by its own card, a node by all its cards together. The two levels are pipelined, so
the slower one decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from dse.hardware import LinkKind

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from dse.hardware import Cluster


class CollectiveOp(StrEnum):
    """Collectives by the names of the public contract."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND_RECV = "send_recv"


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of one collective: `ranks_per_node` on each of `nodes` nodes.

    Attributes:
        nodes: Number of nodes.
        ranks_per_node: Members on each node.
        card_sharers: Groups of the same kind that use a node's network cards at the same time.
    """

    nodes: int
    ranks_per_node: int
    card_sharers: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    @staticmethod
    def world(cluster: Cluster) -> Group:
        """Returns the group of all ranks."""
        return Group(cluster.node_count, cluster.local_size)

    @staticmethod
    def node(cluster: Cluster) -> Group:
        """Returns the group of one node's ranks."""
        return Group(1, cluster.local_size)


@dataclass(frozen=True, slots=True)
class _Efficiency:
    """Shares of the link's nominal bandwidth that large messages reach."""

    all_reduce: float
    other: float


# NVSwitch: bus bandwidth over link rate in published nccl-tests of 8 A100 and 8 H100 (0.72-0.95
# for all-reduce, which can reduce in the switch; 0.64-0.72 otherwise). The others are assumptions
# of the same order; in a cube mesh half of the pairs are two hops apart.
_LINK_EFFICIENCY = {
    LinkKind.NVSWITCH: _Efficiency(0.82, 0.67),
    LinkKind.NVLINK_MESH: _Efficiency(0.80, 0.45),
    LinkKind.NVLINK_PAIRS: _Efficiency(0.65, 0.65),
    LinkKind.PCIE: _Efficiency(0.65, 0.60),
    LinkKind.SHARED_MEMORY: _Efficiency(0.80, 0.80),
}

# Between nodes: ring and tree collectives reach 0.6 of the cards' line rate in published runs on
# 4 × HDR200 and 4 × 100 Gbit/s EFA; direct all-to-all reaches nearly all of one card's rate.
_NETWORK_EFFICIENCY = _Efficiency(0.62, 0.90)

#: The low-latency protocol's share of the bandwidth, and the other one's multiple of the latency.
_LOW_LATENCY_BANDWIDTH_SHARE = 0.4
_FULL_BANDWIDTH_LATENCY_FACTOR = 3.0

#: Latency of an empty collective in hops: fixed part, and part per step of the algorithm.
_FIXED_HOPS = 2.5
_HOPS_PER_STEP = 0.35


def collective_time_s(
    cluster: Cluster, op: CollectiveOp | str, nbytes: ArrayLike, group: Group | None = None
) -> NDArray[np.float64]:
    """Returns the duration of one collective after its last rank has arrived.

    Args:
        cluster: The cluster.
        op: The operation.
        nbytes: Message size as nccl-tests counts it: for all-gather and reduce-scatter the total
            over ranks, otherwise the buffer of one rank. Any shape.
        group: Taking part; all ranks by default.

    Returns:
        Seconds, in the shape of `nbytes`; zero for an empty message or a group of one.
    """
    operation = CollectiveOp(op)
    members = group or Group.world(cluster)
    size = np.asarray(nbytes, dtype=np.float64)
    if operation is CollectiveOp.ALL_TO_ALL:
        per_peer = size / members.size
        local_bytes = per_peer * (members.ranks_per_node - 1)
        remote_bytes = per_peer * (members.size - members.ranks_per_node)
        node_remote_bytes = remote_bytes * members.ranks_per_node * members.card_sharers
        return all_to_all_v_time_s(cluster, local_bytes, remote_bytes, node_remote_bytes, members)
    inside_s = _inside_time_s(cluster, operation, size, members.ranks_per_node)
    between_s = _between_time_s(cluster, operation, size, members)
    return np.where(size > 0, _pipelined(inside_s, between_s), 0.0)


def all_to_all_v_time_s(
    cluster: Cluster,
    local_bytes: ArrayLike,
    remote_bytes: ArrayLike,
    node_remote_bytes: ArrayLike,
    group: Group | None = None,
) -> NDArray[np.float64]:
    """Returns the duration of an all-to-all with unequal parts.

    The size that matters is the largest that any rank sends or receives (TPDS'24: 5.4 % error
    against 6.7 % with totals), here separately for the link, the rank's card and the node's cards.

    Args:
        cluster: The cluster.
        local_bytes: Largest send or receive of any rank inside its node, own part excluded.
        remote_bytes: Largest send or receive of any rank to or from other nodes.
        node_remote_bytes: The same summed over the ranks of a node, largest over nodes.
        group: Taking part; all ranks by default.

    Returns:
        Seconds, in the broadcast shape.
    """
    members = group or Group.world(cluster)
    local, remote, node_remote = (
        np.asarray(size, dtype=np.float64)
        for size in (local_bytes, remote_bytes, node_remote_bytes)
    )
    bandwidth = _link_bandwidth(cluster, members.ranks_per_node)
    efficiency = _LINK_EFFICIENCY[cluster.link.kind].other
    inside_s = np.where(
        local > 0, _protocols(cluster.link.latency_s, 1, local, bandwidth * efficiency), 0.0
    )
    network = cluster.network
    seconds_on_wire = np.maximum(
        remote / network.nic_bandwidth_bytes_per_s,
        node_remote / network.node_bandwidth_bytes_per_s,
    )
    # Peers are served one after the other, a small software cost each.
    steps = 1 + (members.size - members.ranks_per_node) / 8
    between_s = np.where(
        seconds_on_wire > 0,
        _protocols(network.latency_s, steps, seconds_on_wire, _NETWORK_EFFICIENCY.other),
        0.0,
    )
    return _pipelined(inside_s, between_s)


def _inside_time_s(
    cluster: Cluster, op: CollectiveOp, size: NDArray[np.float64], ranks: int
) -> NDArray[np.float64]:
    if ranks < 2:
        return np.zeros_like(size)
    steps, factor = _steps_and_volume(op, ranks)
    efficiency = _LINK_EFFICIENCY[cluster.link.kind]
    share = efficiency.all_reduce if op is CollectiveOp.ALL_REDUCE else efficiency.other
    bandwidth = share * _link_bandwidth(cluster, ranks)
    return _protocols(cluster.link.latency_s, steps, factor * size, bandwidth)


def _between_time_s(
    cluster: Cluster, op: CollectiveOp, size: NDArray[np.float64], group: Group
) -> NDArray[np.float64]:
    if group.nodes < 2:
        return np.zeros_like(size)
    steps, factor = _steps_and_volume(op, group.nodes)
    network = cluster.network
    node_bandwidth = network.node_bandwidth_bytes_per_s / group.card_sharers
    if op is CollectiveOp.SEND_RECV:
        node_bandwidth = min(node_bandwidth, network.nic_bandwidth_bytes_per_s)
    bandwidth = _NETWORK_EFFICIENCY.all_reduce * node_bandwidth
    return _protocols(network.latency_s, steps, factor * size, bandwidth)


def _steps_and_volume(op: CollectiveOp, members: int) -> tuple[float, float]:
    """Steps of the ring (or tree) algorithm, and bytes through a link per byte of message."""
    if op is CollectiveOp.ALL_REDUCE:
        return 2 * (members - 1), 2 * (members - 1) / members
    if op in (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER):
        return members - 1, (members - 1) / members
    if op is CollectiveOp.BROADCAST:
        return members - 1, 1.0
    return 1, 1.0


def _protocols(
    latency_s: float, steps: float, volume: NDArray[np.float64], rate: float
) -> NDArray[np.float64]:
    empty_s = latency_s * (_FIXED_HOPS + _HOPS_PER_STEP * steps)
    low_latency_s = empty_s + volume / (_LOW_LATENCY_BANDWIDTH_SHARE * rate)
    full_bandwidth_s = _FULL_BANDWIDTH_LATENCY_FACTOR * empty_s + volume / rate
    return np.minimum(low_latency_s, full_bandwidth_s)


def _pipelined(
    inside_s: NDArray[np.float64], between_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    # Chunks of one level overlap chunks of the other; a tenth of the shorter one stays visible.
    return np.maximum(inside_s, between_s) + 0.1 * np.minimum(inside_s, between_s)


def _link_bandwidth(cluster: Cluster, ranks: int) -> float:
    link = cluster.link
    if ranks == 2 and link.pair_bandwidth_bytes_per_s is not None:
        return link.pair_bandwidth_bytes_per_s
    return link.bandwidth_bytes_per_s
