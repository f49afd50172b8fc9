"""Time in which the replicas of a sharding group average their tables (2D parallelism).

Every few iterations each shard is all-reduced over the ranks that hold it in all groups, after the
last update and before the next iteration. An iteration has its part of that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.collectives import CollectiveOp, Group, collective_time_s
from dse.workload.dlrm.scoring._features import (
    HOST_STORED_COLUMN,
    SYNCED_COLUMN,
    has_host_columns,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.workload.dlrm._problem import DlrmProblem


def synced_bytes(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the bytes that each rank averages with its peers.

    Args:
        features: Of a problem with replicas; shape `(features, ranks, candidates)`.

    Returns:
        Shape `(ranks, candidates)`.
    """
    return np.asarray(features[SYNCED_COLUMN])


def weight_sync_s(problem: DlrmProblem, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns an iteration's part of the time in which replicas average their tables.

    All shards are reduced at the same time. A rank has its own share of the network cards, and the
    ranks of a node have all cards together, so the fullest rank or the fullest node decides. The
    ranks of a sharding group go on together, with the exchange that comes next. Tables in host
    memory cross the path to it, in both directions at once.

    Args:
        problem: Everything but the plan, with replicas.
        features: Shape `(features, ranks, candidates)`.

    Returns:
        Seconds; shape `(candidates,)`.
    """
    assert problem.sync is not None
    cluster, synced = problem.cluster, synced_bytes(features)
    peers = Group.replicas(cluster)
    op, alone = CollectiveOp.ALL_REDUCE, replace(peers, card_sharers=1)
    sync_s = collective_time_s(cluster.whole, op, synced.max(axis=0), alone)
    if peers.card_sharers > 1:
        by_domain = synced.reshape(-1, cluster.domain_size, synced.shape[1])
        fullest = by_domain.mean(axis=1).max(axis=0)
        sync_s = np.maximum(sync_s, collective_time_s(cluster.whole, op, fullest, peers))
    if has_host_columns(features):
        host_bytes = features[HOST_STORED_COLUMN].max(axis=0)
        sync_s = sync_s + host_bytes / cluster.host_link_of_all.bandwidth_bytes_per_s
    return np.asarray(sync_s / problem.sync.interval)
