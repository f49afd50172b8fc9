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
