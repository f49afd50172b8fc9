"""Cluster: the devices of a job, with what joins them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
import math
from typing import TYPE_CHECKING

from dse.machine._hardware import HostLinkSpec

if TYPE_CHECKING:
    from dse.machine._hardware import DeviceSpec, HostSpec, LinkSpec, NetworkSpec


@dataclass(frozen=True, slots=True)
class Cluster:
    """`world_size` devices on as few nodes as hold them; what the performance model predicts for.

    Ranks are numbered node by node: rank ``r`` sits on node ``r // devices_per_node``. The ranks
    that the link joins are a *scale-up domain*: those of a node, or of a pod, whose link reaches
    over several nodes. Host memory, host link and network cards are those of a node; collectives
    and sharding plans see domains.

    Attributes:
        name: Platform name.
        device: The device, the same on every rank.
        link: Interconnect inside a domain.
        network: Interconnect between domains.
        host_link: Path between host memory and a device.
        host: Host overheads.
        devices_per_node: Devices that a full node holds.
        world_size: Number of ranks.
        host_memory_bytes: Host memory of one node, or None when it is not known; then nothing
            limits what is kept there.
        nodes_per_pod: Nodes that the link reaches over; one without pods.
        host_memory_bandwidth_bytes_per_s: Bandwidth of one node's host memory, which its devices
            share; None when it is not known, then nothing limits their sum.
        storage_bandwidth_bytes_per_s: Rate at which one node reads samples from its storage, for
            all of its ranks; None when it is not known, then nothing limits it.
        part_of: The whole cluster, if this is one of several equal groups of its ranks, see
            :func:`rank_group`; None for a whole one.
        rank_stride: Distance of the numbers that neighbouring ranks have in the whole cluster.
    """

    name: str
    device: DeviceSpec
    link: LinkSpec
    network: NetworkSpec
    host_link: HostLinkSpec
    host: HostSpec
    devices_per_node: int
    world_size: int
    host_memory_bytes: float | None = None
    nodes_per_pod: int = 1
    host_memory_bandwidth_bytes_per_s: float | None = None
    storage_bandwidth_bytes_per_s: float | None = None
    part_of: Cluster | None = None
    rank_stride: int = 1

    @property
    def whole(self) -> Cluster:
        """The cluster with the ranks of all groups; itself if it is not a group of another."""
        return self.part_of or self

    @property
    def replicas(self) -> int:
        """Groups like this one that the whole cluster consists of."""
        return self.whole.world_size // self.world_size

    @property
    def host_link_of_all(self) -> HostLinkSpec:
        """A device's path to host memory while all devices of the node use theirs alike."""
        link, memory = self.host_link, self.host_memory_bandwidth_bytes_per_s
        bandwidth = link.bandwidth_bytes_per_s / min(link.devices, self.local_size)
        if memory is not None:
            bandwidth = min(bandwidth, memory / self.local_size)
        return HostLinkSpec(bandwidth, link.latency_s)

    @property
    def local_size(self) -> int:
        """Ranks on one node (all nodes are equally full)."""
        return min(self.world_size, self.devices_per_node)

    @property
    def node_count(self) -> int:
        """Number of nodes that the ranks occupy."""
        return math.ceil(self.world_size / self.devices_per_node)

    def node_of(self, rank: int) -> int:
        """Returns the node that `rank` sits on."""
        return rank // self.devices_per_node

    @property
    def devices_per_domain(self) -> int:
        """Devices that a full scale-up domain holds; of several pods the ranks that each has."""
        return devices_per_domain(self.world_size, self.devices_per_node, self.nodes_per_pod)

    @property
    def domain_size(self) -> int:
        """Ranks of one scale-up domain (all are equally full)."""
        return min(self.world_size, self.devices_per_domain)

    @property
    def domain_count(self) -> int:
        """Number of scale-up domains that the ranks occupy."""
        return math.ceil(self.world_size / self.devices_per_domain)

    @property
    def evenly_filled(self) -> bool:
        """Whether all nodes and all domains are equally full."""
        return not (self.world_size % self.local_size or self.world_size % self.domain_size)

    @property
    def nodes_per_domain(self) -> int:
        """Nodes of one scale-up domain."""
        return math.ceil(self.domain_size / self.devices_per_node)


@cache
def devices_per_domain(world_size: int, devices_per_node: int, nodes_per_pod: int = 1) -> int:
    """Returns how many devices a full scale-up domain holds.

    Ranks that need several pods fill as few as hold them equally: 128 ranks on pods of 72 are two
    domains of 64, 1,024 ranks sixteen. Each pod is more than half full. Where that cannot be, the
    fewest pods are filled unequally.

    Args:
        world_size: Number of ranks.
        devices_per_node: Devices that a full node holds.
        nodes_per_pod: Nodes that the link reaches over; one without pods.
    """
    nodes = math.ceil(world_size / devices_per_node)
    fewest = math.ceil(nodes / nodes_per_pod)
    if fewest <= 1:
        return devices_per_node * nodes_per_pod
    more_than_half_full = range(fewest, math.ceil(2 * nodes / nodes_per_pod))
    pods = next((pods for pods in more_than_half_full if nodes % pods == 0), fewest)
    return devices_per_node * math.ceil(nodes / pods)
