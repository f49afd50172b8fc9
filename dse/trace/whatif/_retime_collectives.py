"""Transfers of collectives on other links, networks or numbers of ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.collectives import CollectiveOp, Group, collective_time_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import Cluster
    from dse.trace import CollectiveInfo
    from dse.trace.whatif._job import Job

_KNOWN = {operation.value: operation for operation in CollectiveOp}
#: Operations that move data as one with a model does.
_ALIKE = {
    "send": CollectiveOp.SEND_RECV,
    "recv": CollectiveOp.SEND_RECV,
    "reduce": CollectiveOp.BROADCAST,
    "gather": CollectiveOp.ALL_GATHER,
    "scatter": CollectiveOp.ALL_GATHER,
}


def collective_model_s(cluster: Cluster, info: CollectiveInfo, fallback_bytes: int = -1) -> float:
    """Returns the duration of a collective by the model of a cluster.

    Args:
        cluster: The cluster.
        info: The collective; its group, or the whole cluster.
        fallback_bytes: Its size where `info` has none.

    Returns:
        Seconds; NaN where neither operation nor size are known.
    """
    operation = _KNOWN.get(info.operation, _ALIKE.get(info.operation))
    size = info.message_bytes if info.message_bytes >= 0 else fallback_bytes
    if info.operation == "barrier":
        operation, size = CollectiveOp.ALL_REDUCE, 4
    if operation is None or size < 0:
        return float("nan")
    # The smallest messages still have to be exchanged.
    return float(collective_time_s(cluster, operation, max(size, 1), group_of(cluster, info)))


def group_of(cluster: Cluster, info: CollectiveInfo) -> Group:
    """Returns the ranks of a collective on a cluster: how many nodes, how many of each.

    Ranks are numbered node by node. A group that is not listed fills nodes one after the other; an
    uneven one counts with the nodes it touches and the most ranks that it has on one.
    """
    size = info.group_size or len(info.ranks) or cluster.world_size
    per_node = cluster.devices_per_node
    if info.ranks:
        nodes, counts = np.unique(np.array(info.ranks) // per_node, return_counts=True)
        return Group(len(nodes), int(counts.max()))
    inside = min(size, cluster.local_size)
    return Group(-(-size // inside), inside)


def retime_collectives(
    job: Job, collectives: Sequence[int], before: Cluster, after: Cluster
) -> None:
    """Scales measured transfers by the ratio of two models.

    The measured transfer stays the base, so what a model misses in absolute terms cancels out.
    Where operation or size are unknown the ratio of all others, weighted by time, is taken. Of a
    collective whose other ranks were not traced the model says how much of the measured time was
    transfer at most; the wait stays.

    Args:
        job: The job.
        collectives: Tasks.
        before: What the job ran on.
        after: What it shall run on.
    """
    ratios: dict[int, float] = {}
    transfers: dict[int, float] = {}
    alone = 0
    for members in job.meetings(collectives):
        infos = [info for task in members if (info := job.collective_of(task)) is not None]
        transfers.update((task, job.duration_of(task)) for task in members)
        if not infos:
            continue
        largest = max(infos, key=lambda info: info.message_bytes)
        old, new = collective_model_s(before, largest), collective_model_s(after, largest)
        if not (old > 0 and math.isfinite(new)):
            continue
        ratios.update(dict.fromkeys(members, new / old))
        if len(members) == 1 and (largest.group_size or before.world_size) > 1:
            alone += 1
            transfers[members[0]] = min(transfers[members[0]], old)
    if alone:
        job.notes.append(
            f"{alone} collectives were traced on one rank only: what the model does not explain "
            "of their time is taken for waiting, and stays"
        )
    unknown = [task for task in collectives if task not in ratios]
    if unknown:
        total = sum(transfers[task] for task in ratios)
        usual = (
            sum(ratios[task] * transfers[task] for task in ratios) / total
            if total
            else before.link.bandwidth_bytes_per_s / after.link.bandwidth_bytes_per_s
        )
        job.notes.append(
            f"{len(unknown)} collectives of unknown operation or size are scaled by {usual:.3g}, "
            + ("as the others are on average" if total else "the ratio of the links' bandwidths")
        )
        ratios.update(dict.fromkeys(unknown, usual))
    for task, ratio in ratios.items():
        transfer = transfers[task]
        job.set_duration(task, job.duration_of(task) + transfer * (ratio - 1.0))
