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
    def world(cluster: Cluster) -> Group:
        """Returns the group of all ranks."""
        return Group(cluster.domain_count, cluster.domain_size)

    @staticmethod
    def domain(cluster: Cluster) -> Group:
        """Returns the group of one domain's ranks."""
        return Group(1, cluster.domain_size)
