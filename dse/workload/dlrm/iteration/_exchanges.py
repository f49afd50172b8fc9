"""Durations of exchanges between ranks that hold different amounts, in one step or in two.

In one step every rank sends to every other one, and partial sums go round in a ring. In two steps
(HugeCTR's hierarchical exchange) the ranks of each node first exchange inside, so that each has
what its node holds for the ranks of its own place in all nodes; then these exchange. Every rank
sends one message to each node instead of one to each rank, and the cards of a node send the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.collectives import (
    CollectiveOp,
    Group,
    all_to_all_v_time_s,
    collective_time_s,
    deciding_bytes,
)
from dse.workload.dlrm.iteration._operators import dense_buckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.workload.dlrm._problem import DlrmProblem


def node_group(cluster: Cluster) -> Group:
    """Returns the group of one exchange between nodes: one rank of every node, all at once."""
    world = Group.world(cluster)
    return replace(world, ranks_per_domain=1, card_sharers=cluster.whole.domain_size)


def over_nodes(
    values: NDArray[np.float64], node_counts: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Returns sums over nodes, of which some may stand for several.

    Args:
        values: Shape `(nodes, candidates)`.
        node_counts: How many nodes each one stands for; shape `(nodes,)`. None if each is one.

    Returns:
        Shape `(candidates,)`.
    """
    return values.sum(axis=0) if node_counts is None else np.asarray(node_counts @ values)


def all_to_all_s(
    problem: DlrmProblem,
    held_bytes: NDArray[np.float64],
    node_counts: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Returns the time of an all-to-all in which rank `r` distributes `held_bytes[r]` evenly.

    The same volumes flow in the input exchange, only backwards, so one formula serves both.

    Args:
        problem: Everything but the plan.
        held_bytes: Shape `(ranks, candidates)`.
        node_counts: As in :func:`over_nodes`.

    Returns:
        Seconds; shape `(candidates,)`.
    """
    cluster = problem.cluster
    local = cluster.domain_size
    by_node = held_bytes.reshape(-1, local, held_bytes.shape[1])
    if not _has_two_steps(problem):
        return _direct_s(cluster, held_bytes, by_node, node_counts)
    between_s = between_nodes_s(cluster, by_node.sum(axis=1) / local, node_counts)
    return first_step_s(problem, held_bytes) + between_s


def first_step_s(problem: DlrmProblem, held_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the first step of an all-to-all in two, among the ranks of each node.

    Args:
        problem: Everything but the plan.
        held_bytes: As in :func:`all_to_all_s`.

    Returns:
        Seconds; shape `(candidates,)`. Zero where the exchange has one step.
    """
    cluster = problem.cluster
    local = cluster.domain_size
    if not _has_two_steps(problem):
        return np.zeros(held_bytes.shape[1])
    by_node = held_bytes.reshape(-1, local, held_bytes.shape[1])
    local_bytes = deciding_bytes(cluster.link, by_node, local)
    nothing = np.zeros_like(local_bytes)
    return all_to_all_v_time_s(cluster, local_bytes, nothing, nothing, Group.domain(cluster))


def _direct_s(
    cluster: Cluster,
    held_bytes: NDArray[np.float64],
    by_node: NDArray[np.float64],
    node_counts: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Time of an all-to-all in one step.

    Args:
        cluster: The cluster.
        held_bytes: Shape `(ranks, candidates)`.
        by_node: The same of shape `(nodes, ranks of a node, candidates)`.
        node_counts: As in :func:`over_nodes`.
    """
    ranks, local = cluster.world_size, cluster.domain_size
    node_total = by_node.sum(axis=1)
    total = over_nodes(node_total, node_counts)
    local_bytes = deciding_bytes(cluster.link, by_node, ranks)
    remote_ranks = ranks - local
    if not remote_ranks:
        nothing = np.zeros_like(total)
        return all_to_all_v_time_s(cluster, local_bytes, nothing, nothing)
    most_held = held_bytes.max(axis=0)
    received_remote = (total - node_total).max(axis=0) / ranks
    remote_bytes = np.maximum(most_held * remote_ranks / ranks, received_remote)
    node_remote_bytes = np.maximum(
        node_total.max(axis=0) * remote_ranks / ranks, local * received_remote
    )
    return all_to_all_v_time_s(cluster, local_bytes, remote_bytes, node_remote_bytes)


def once_if_alike(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the values of the first rank if all ranks have the same: times are looked up once.

    Args:
        values: Shape `(ranks, candidates)`.

    Returns:
        Shape `(1, candidates)` or as given.
    """
    return values[:1] if (values == values[:1]).all() else values


def all_reduce_s(problem: DlrmProblem, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the time of reducing gradients of replicated tables and hot rows over all ranks.

    Where they share the buffer of the dense gradients, it is what they add to its all-reduce.

    Args:
        problem: Everything but the plan.
        nbytes: Bytes of the gradients, any shape.

    Returns:
        Seconds, in the same shape.
    """
    cluster = problem.cluster.whole
    dense = 0
    if problem.software.joint_all_reduce:
        dense = sum(size for size, _ in dense_buckets(problem))
    together_s, dense_s = (
        collective_time_s(cluster, CollectiveOp.ALL_REDUCE, size)
        for size in (dense + nbytes, dense)
    )
    return np.where(nbytes > 0, together_s - dense_s, 0.0)


def reduce_scatter_s(
    problem: DlrmProblem,
    held_bytes: NDArray[np.float64],
    node_counts: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Returns the time of reducing and scattering partial sums that all ranks hold.

    In two steps the sums of a node are sent to all nodes, and added up where they arrive.

    Args:
        problem: Everything but the plan.
        held_bytes: Partial sums of the whole batch, the same on all ranks; shape
            `(ranks, candidates)`.
        node_counts: As in :func:`over_nodes`.

    Returns:
        Seconds; shape `(ranks, candidates)`, or `(1, candidates)` for all ranks.
    """
    cluster = problem.cluster
    if not _has_two_steps(problem):
        once = once_if_alike(held_bytes)
        return collective_time_s(cluster, CollectiveOp.REDUCE_SCATTER, once)
    local = cluster.domain_size
    between_s = between_nodes_s(cluster, held_bytes[::local] / local, node_counts)
    return reduce_inside_s(cluster, held_bytes) + between_s


def reduce_inside_s(cluster: Cluster, held_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the time of reducing and scattering partial sums among the ranks of each node.

    Args:
        cluster: The cluster.
        held_bytes: Partial sums of the whole batch on each rank; shape `(ranks, candidates)`.

    Returns:
        Seconds, in the same shape.
    """
    by_node = held_bytes.reshape(-1, cluster.domain_size, held_bytes.shape[1])
    if (by_node == by_node[:, :1]).all():
        # All ranks of a node have the same, so times are looked up once for each node.
        by_node = by_node[:, :1]
    group = Group.domain(cluster)
    lasts_s = collective_time_s(cluster, CollectiveOp.REDUCE_SCATTER, by_node, group)
    return np.repeat(lasts_s, cluster.domain_size // by_node.shape[1], axis=1).reshape(
        held_bytes.shape
    )


def between_nodes_s(
    cluster: Cluster,
    held_bytes: NDArray[np.float64],
    node_counts: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Returns the time of the second step: each rank sends its part to its peers in all nodes.

    Args:
        cluster: The cluster.
        held_bytes: What each rank of a node holds for the whole batch; shape
            `(nodes, candidates)`.
        node_counts: As in :func:`over_nodes`.

    Returns:
        Seconds; shape `(candidates,)`.
    """
    nodes = cluster.domain_count
    if nodes == 1:
        return np.zeros(held_bytes.shape[1])
    sent = held_bytes.max(axis=0) * (nodes - 1) / nodes
    received = (over_nodes(held_bytes, node_counts) - held_bytes).max(axis=0) / nodes
    remote_bytes = np.maximum(sent, received)
    return all_to_all_v_time_s(
        cluster,
        np.zeros_like(remote_bytes),
        remote_bytes,
        remote_bytes,
        node_group(cluster),
    )


def _has_two_steps(problem: DlrmProblem) -> bool:
    return problem.software.hierarchical_exchange and problem.cluster.domain_count > 1
