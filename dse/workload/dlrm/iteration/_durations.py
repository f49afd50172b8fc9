"""Durations of the plan-dependent tasks, for a batch of plans at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.machine.collectives import (
    CollectiveOp,
    Group,
    collective_estimate,
)
from dse.machine.kernels import (
    HOST_ROWS_SPREAD,
    LOOKUP_LAUNCHES,
    elementwise_time_s,
    embedding_time_s,
    host_rows_time_s,
    host_rows_waiting_s,
    streaming_estimate,
)
from dse.workload.dlrm.iteration._codec import fill_codec_spreads, fill_codecs
from dse.workload.dlrm.iteration._exchange_durations import (
    exchange_ways,
    fill_all_to_alls,
    fill_reductions,
)
from dse.workload.dlrm.iteration._exchanges import (
    all_reduce_s,
    node_group,
    once_if_alike,
)
from dse.workload.dlrm.iteration._weight_sync import synced_bytes, weight_sync_s
from dse.workload.dlrm.scoring._features import (
    HOST_PREFETCHED_COLUMN,
    RANK_BLOCK_START,
    ExchangeGroup,
    GroupFeature,
    RankFeature,
    group_column,
    has_host_columns,
    link_column,
    rank_column,
    waiting_column,
)
from dse.workload.dlrm.scoring._slots import Slot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.workload.dlrm._problem import DlrmProblem

#: Durations of one kind that are computed at once where calls are what costs.
_CACHED_VALUES = 30_000

#: Bytes of a gradient value of a replicated table on the device.
_GRADIENT_BYTES = 4


def slot_durations_s(
    problem: DlrmProblem,
    layout: int,
    features: NDArray[np.float64],
    node_counts: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Turns placement features into durations.

    Args:
        problem: Everything but the plan.
        layout: Exchange groups in use.
        features: Shape `(features, ranks, candidates)`.
        node_counts: Where `features` are those of the ranks of different nodes only: how many
            nodes are like each of them; shape `(nodes,)`. None if they are those of all ranks.

    Returns:
        Seconds; shape `(slots, ranks, candidates)`; rows of groups not in use are zero.
    """
    durations = np.zeros((len(Slot), *features.shape[1:]))
    _fill_all_lookups(problem, layout, features, durations)
    cluster = problem.cluster
    if has_host_columns(features):
        durations[Slot.ROW_PREFETCH] = host_rows_time_s(
            cluster.host_link, features[HOST_PREFETCHED_COLUMN]
        )
        _add_host_waiting(problem, layout, features, durations)
    if cluster.world_size == 1:
        _fill_replicated_update(problem, features, durations)
        return durations
    fill_all_to_alls(problem, layout, features, durations, node_counts)
    fill_reductions(problem, layout, features, durations, node_counts)
    fill_codecs(problem, layout, features, durations, node_counts)
    if layout >> ExchangeGroup.REPLICATED & 1:
        replicated = features[group_column(ExchangeGroup.REPLICATED, GroupFeature.EXCHANGED)]
        durations[Slot.REPLICATED_ALL_REDUCE] = all_reduce_s(
            problem, problem.software.replicated_gradient_bytes * once_if_alike(replicated)
        )
        _fill_replicated_update(problem, features, durations)
    if problem.sync is not None:
        durations[Slot.WEIGHT_SYNC] = weight_sync_s(problem, features)
    return durations


def slot_spreads(
    problem: DlrmProblem, features: NDArray[np.float64], lookup_spreads: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns how far off the duration of each slot of one plan may be.

    Collectives are evaluated at the size that decides: the largest of any rank.

    Args:
        problem: Everything but the plan.
        features: The plan's placement features; shape `(features, ranks, 1)`.
        lookup_spreads: Of lookups and updates; shape `(groups, 2)`.

    Returns:
        Standard deviation of the logarithm of actual over expected duration; shape `(slots,)`.
    """
    cluster = problem.cluster
    wire, samples = problem.software.wire, problem.global_batch_size
    spreads = np.zeros(len(Slot))
    for group in ExchangeGroup:
        spreads[Slot.POOLED_LOOKUP + group] = lookup_spreads[group, 0]
        spreads[Slot.POOLED_UPDATE + group] = lookup_spreads[group, 1]

    def most(group: ExchangeGroup) -> float:
        return float(features[group_column(group, GroupFeature.EXCHANGED)].max())

    if has_host_columns(features) and features[HOST_PREFETCHED_COLUMN].any():
        spreads[Slot.ROW_PREFETCH] = HOST_ROWS_SPREAD
    replicated = most(ExchangeGroup.REPLICATED)
    replicated_bytes = problem.software.replicated_gradient_bytes * replicated
    traffic_bytes = np.array(4.0 * _GRADIENT_BYTES * replicated)
    update = streaming_estimate(cluster.device, "elementwise", {"traffic_bytes": traffic_bytes})
    spreads[Slot.REPLICATED_UPDATE] = update.spread
    input_bytes = float(features[rank_column(RankFeature.INPUT)].max())
    scatter, exchange = CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_TO_ALL
    node, between = Group.domain(cluster), node_group(cluster)
    collectives: dict[Slot, tuple[CollectiveOp, float, Group | None]] = {
        Slot.INPUT_EXCHANGE: (exchange, input_bytes, None),
        Slot.REPLICATED_ALL_REDUCE: (
            CollectiveOp.ALL_REDUCE,
            replicated_bytes,
            Group.world(cluster.whole),
        ),
    }
    for slot, op, group, formats, members in (
        (Slot.POOLED_EXCHANGE, exchange, ExchangeGroup.POOLED, wire.whole, None),
        (Slot.ROW_EXCHANGE, scatter, ExchangeGroup.ROW, wire.reduced, None),
        (Slot.NODE_EXCHANGE_INSIDE, scatter, ExchangeGroup.NODE, wire.reduced, node),
        (Slot.NODE_EXCHANGE_BETWEEN, exchange, ExchangeGroup.NODE, wire.whole, between),
    ):
        for way, value_bytes in exchange_ways(wire, slot, formats):
            collectives[way] = (op, value_bytes * samples * most(group), members)
    if problem.sync is not None:
        collectives[Slot.WEIGHT_SYNC] = (
            CollectiveOp.ALL_REDUCE,
            float(synced_bytes(features).max()),
            Group.replicas(cluster),
        )
    fill_codec_spreads(problem, features, spreads)
    for slot, (op, size_bytes, members) in collectives.items():
        # What is not sent cannot be off.
        if size_bytes > 0:
            spreads[slot] = collective_estimate(cluster, op, size_bytes, members).spread
    return spreads


def lookup_durations_s(
    problem: DlrmProblem, layout: int, features: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the first rows of :func:`slot_durations_s`, lookups and updates, alone.

    Without what ranks of a node wait for one another's rows from host memory.

    Args:
        problem: Everything but the plan.
        layout: Exchange groups in use.
        features: Shape `(features, ...)`; each point is evaluated independently of the others.

    Returns:
        Seconds; shape `(slots of kernels, ...)`.
    """
    durations = np.zeros((int(Slot.INPUT_EXCHANGE), *features.shape[1:]))
    _fill_all_lookups(problem, layout, features, durations)
    return durations


def _fill_all_lookups(
    problem: DlrmProblem,
    layout: int,
    features: NDArray[np.float64],
    durations: NDArray[np.float64],
) -> None:
    used = [group for group in ExchangeGroup if layout >> group & 1]
    blocks = features[:RANK_BLOCK_START].reshape(len(ExchangeGroup), -1, *features.shape[1:])
    # Small batches spend their time in calls, so all groups are one; large ones would only leave
    # the cache.
    together = len(used) * features[0].size <= _CACHED_VALUES
    for groups in (used,) if together else [[group] for group in used]:
        _fill_lookups(problem, groups, blocks, durations)
    if not has_host_columns(features):
        return
    # Rows in host memory come on top: a cache is filled before the lookup starts, and warps that
    # wait for the link keep the places of those that have their rows on the device.
    host_link = problem.cluster.host_link
    for group in used:
        if group is ExchangeGroup.REPLICATED:
            continue
        for direction, slot in enumerate((Slot.POOLED_LOOKUP, Slot.POOLED_UPDATE)):
            durations[slot + group] += host_rows_time_s(
                host_link, features[link_column(group, direction)]
            )


def _add_host_waiting(
    problem: DlrmProblem,
    layout: int,
    features: NDArray[np.float64],
    durations: NDArray[np.float64],
) -> None:
    """Adds what the ranks of a node wait for one another's rows from host memory.

    All of them look up, and update, at the same time. An update reads and writes each row, while
    rows that a cache evicts during a lookup are left out. What the device does while it waits for
    the link goes on while it waits for others.
    """
    cluster = problem.cluster
    shared = cluster.host_link.devices > 1 or cluster.host_memory_bandwidth_bytes_per_s
    if not shared:
        return
    durations[Slot.ROW_PREFETCH] += host_rows_waiting_s(
        cluster, features[HOST_PREFETCHED_COLUMN], accesses=1
    )
    for group in ExchangeGroup:
        if not layout >> group & 1 or group is ExchangeGroup.REPLICATED:
            continue
        for direction, slot in enumerate((Slot.POOLED_LOOKUP, Slot.POOLED_UPDATE)):
            waiting_s = host_rows_waiting_s(
                cluster, features[link_column(group, direction)], accesses=1 + direction
            )
            meanwhile = features[waiting_column(group, direction)]
            busy_s = meanwhile / cluster.device.memory_bandwidth_bytes_per_s
            durations[slot + group] += np.maximum(0.0, waiting_s - busy_s)


def _fill_lookups(
    problem: DlrmProblem,
    groups: list[ExchangeGroup],
    blocks: NDArray[np.float64],
    durations: NDArray[np.float64],
) -> None:
    """Fills lookups and updates of some groups.

    Args:
        problem: Everything but the plan.
        groups: Exchange groups, ascending.
        blocks: Features by group; shape `(groups, features, ...)`.
        durations: Seconds, to fill; shape `(slots, ...)`.
    """
    if not groups:
        return
    device = problem.cluster.device
    # Adjacent groups need no copy.
    first, end = int(groups[0]), int(groups[-1]) + 1
    side_by_side = end - first == len(groups)
    chosen = slice(first, end) if side_by_side else np.array(groups)
    lookups = durations[Slot.POOLED_LOOKUP : Slot.POOLED_UPDATE]
    lookups[chosen] = embedding_time_s(
        device,
        blocks[chosen, GroupFeature.FORWARD_MEMORY],
        blocks[chosen, GroupFeature.FORWARD_CACHE],
        LOOKUP_LAUNCHES,
    )
    updates = durations[Slot.POOLED_UPDATE : Slot.INPUT_EXCHANGE]
    updates[chosen] = embedding_time_s(
        device,
        blocks[chosen, GroupFeature.BACKWARD_MEMORY],
        blocks[chosen, GroupFeature.BACKWARD_CACHE],
        problem.software.embedding.update_launches(device),
    )


def _fill_replicated_update(
    problem: DlrmProblem, features: NDArray[np.float64], durations: NDArray[np.float64]
) -> None:
    """A dense optimizer step over every row of the replicated tables.

    Zeroing the gradient, reading it, and reading and writing weights and state.
    """
    parameters = features[group_column(ExchangeGroup.REPLICATED, GroupFeature.EXCHANGED)]
    state_values = problem.model.sparse_optimizer.state_values_per_parameter
    traffic_bytes = _GRADIENT_BYTES * parameters * (4 + 2 * state_values)
    durations[Slot.REPLICATED_UPDATE] = elementwise_time_s(problem.cluster.device, traffic_bytes)
