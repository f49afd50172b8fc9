"""Process groups of each kind of parallelism, and the links they use.

Ranks are numbered tensor first, then context, data and pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.machine.collectives import Group

if TYPE_CHECKING:
    from dse.machine import Cluster
    from dse.workload.transformer._types import Parallelism


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one rank.

    Attributes:
        tensor: Shares matrices.
        context: Shares sequences.
        replicas: Sums gradients: ranks of data and context parallelism.
        shards: Share one copy of what is sharded over replicas.
        copies: Have the same part of it, in different copies.
        experts: Share the experts of a layer.
        expert_shards: Share the matrices of every expert.
        expert_replicas: Sum gradients of the same experts.
        expert_zero: Share one copy of what is sharded of the same experts.
        stages: Ranks of two pipeline stages, neighbours or both ends; on two nodes where any
            such pair is, as all stages wait for the slowest pair.
    """

    tensor: Group
    context: Group
    replicas: Group
    shards: Group
    copies: Group
    experts: Group
    expert_shards: Group
    expert_replicas: Group
    expert_zero: Group
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
        shards, ranks = parallelism.expert_shards, parallelism.expert_ranks
        return Groups(
            tensor=Group.of(cluster, tensor, 1),
            context=Group.of(cluster, context, tensor),
            replicas=Group.of(cluster, parallelism.replicas, tensor),
            shards=Group.of(cluster, parallelism.shards, tensor),
            copies=Group.of(
                cluster, parallelism.replicas // parallelism.shards, tensor * parallelism.shards
            ),
            experts=Group.of(cluster, parallelism.expert, shards),
            expert_shards=Group.of(cluster, shards, 1),
            expert_replicas=Group.of(cluster, parallelism.expert_replicas, ranks),
            expert_zero=Group.of(cluster, parallelism.expert_zero, ranks),
            stages=stages,
        )
