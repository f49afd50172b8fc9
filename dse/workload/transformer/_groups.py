"""Process groups of each kind of parallelism, and the links they use.

Ranks are numbered tensor first, then context, data and pipeline. So a group of `n` ranks that are
`stride` apart has `min(n, ⌊devices of a domain / stride⌋)` members in a scale-up domain (a node or
a pod), and as many groups of its kind share the domain's network cards as ranks of it are not in
the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.collectives import CollectiveOp, Group, collective_estimate
from dse.machine.fits import Estimate

if TYPE_CHECKING:
    from dse.machine import Cluster
    from dse.workload.transformer._types import Parallelism


def rank_group(cluster: Cluster, ranks: int, stride: int) -> Group:
    """Returns the group of `ranks` ranks that are `stride` apart.

    Args:
        cluster: The cluster.
        ranks: Members.
        stride: Distance of the rank numbers of neighbours.
    """
    per_node = max(1, min(ranks, cluster.domain_size // stride))
    while ranks % per_node:
        per_node -= 1
    nodes = ranks // per_node
    sharers = max(1, min(stride, cluster.domain_size // per_node)) if nodes > 1 else 1
    return Group(nodes, per_node, sharers, max(1, stride * per_node // cluster.domain_size))


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one rank.

    Attributes:
        tensor: Shares matrices.
        context: Shares sequences.
        replicas: Sums gradients: ranks of data and context parallelism.
        experts: Share the experts of a layer.
        expert_replicas: Sum gradients of the same experts.
        stages: Ranks of two pipeline stages, neighbours or both ends; on two nodes where any
            such pair is, as all stages wait for the slowest pair.
    """

    tensor: Group
    context: Group
    replicas: Group
    experts: Group
    expert_replicas: Group
    stages: Group

    @staticmethod
    def of(cluster: Cluster, parallelism: Parallelism) -> Groups:
        """Returns the groups of a configuration."""
        tensor, context = parallelism.tensor, parallelism.context
        stage_stride = tensor * parallelism.replicas
        stages = Group(1, 2)
        if parallelism.world_size > cluster.domain_size:
            # Of a domain only the ranks of its last stage send to the next one.
            apart = max(1, stage_stride // cluster.domain_size)
            stages = Group(2, 1, min(stage_stride, cluster.domain_size), apart)
        return Groups(
            tensor=rank_group(cluster, tensor, 1),
            context=rank_group(cluster, context, tensor),
            replicas=rank_group(cluster, parallelism.replicas, tensor),
            experts=rank_group(cluster, parallelism.expert, tensor),
            expert_replicas=rank_group(
                cluster, parallelism.replicas // parallelism.expert, tensor * parallelism.expert
            ),
            stages=stages,
        )


def estimate(cluster: Cluster, op: CollectiveOp, size_bytes: float, group: Group) -> Estimate:
    """Returns the duration of a collective of a group; zero for a group of one."""
    if group.size < 2 or size_bytes <= 0:
        return Estimate(np.zeros(()), np.zeros(()))
    return collective_estimate(cluster, op, size_bytes, group)
