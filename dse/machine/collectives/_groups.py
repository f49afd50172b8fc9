"""Names of the collectives, and the ranks that take part."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.machine import Cluster


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
    """The ranks of one collective: `ranks_per_domain` in each of `domains` scale-up domains.

    A scale-up domain is what the link joins: a node, or a pod.

    Attributes:
        domains: Number of domains.
        ranks_per_domain: Members in each domain.
        card_sharers: Groups of the same kind that use a domain's network cards at the same time.
        domain_stride: Distance of neighbouring domains of the group in the order of all domains.
    """

    domains: int
    ranks_per_domain: int
    card_sharers: int = 1
    domain_stride: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.domains * self.ranks_per_domain

    @staticmethod
    def of(cluster: Cluster, ranks: int, stride: int) -> Group:
        """Returns the group of `ranks` ranks that are `stride` apart, as all ranks are in one.

        Such a group has `min(n, ⌊ranks of a domain / stride⌋)` of its `n` members in a domain, and
        as many groups of its kind share the domain's network cards as ranks of it are not in the
        group.

        Args:
            cluster: The cluster with all ranks.
            ranks: Members.
            stride: Distance of the rank numbers of neighbours.
        """
        per_domain = max(1, min(ranks, cluster.domain_size // stride))
        while ranks % per_domain:
            per_domain -= 1
        domains = ranks // per_domain
        sharers = max(1, min(stride, cluster.domain_size // per_domain)) if domains > 1 else 1
        apart = max(1, stride * per_domain // cluster.domain_size)
        return Group(domains, per_domain, sharers, apart)

    @staticmethod
    def world(cluster: Cluster) -> Group:
        """Returns the group of all ranks; of a part of a larger cluster, of the part's ranks."""
        if cluster.part_of is None:
            return Group(cluster.domain_count, cluster.domain_size)
        return Group.of(cluster.whole, cluster.world_size, cluster.rank_stride)

    @staticmethod
    def replicas(cluster: Cluster) -> Group:
        """Returns the group of one rank of each part that a larger cluster is divided into.

        Args:
            cluster: One of the parts.
        """
        stride = cluster.world_size if cluster.rank_stride == 1 else 1
        return Group.of(cluster.whole, cluster.replicas, stride)

    @staticmethod
    def domain(cluster: Cluster) -> Group:
        """Returns the group of one domain's ranks."""
        return Group(1, cluster.domain_size)
