"""Collectives on other links, with other groups, sizes or types of values."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.machine import Precision
from dse.machine.collectives import CollectiveOp, Group, collective_time_s
from dse.trace import TaskRole
from dse.trace.whatif.core import Selector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine import Cluster
    from dse.trace import CollectiveInfo
    from dse.trace.whatif.core import StepEditor

_KNOWN = {operation.value: operation for operation in CollectiveOp}
#: Operations that move data as one with a model does.
_ALIKE = {
    "send": CollectiveOp.SEND_RECV,
    "recv": CollectiveOp.SEND_RECV,
    "reduce": CollectiveOp.BROADCAST,
    "gather": CollectiveOp.ALL_GATHER,
    "scatter": CollectiveOp.ALL_GATHER,
}


def collective_model_s(cluster: Cluster, info: CollectiveInfo) -> float:
    """Returns the duration of a collective by the model of a cluster.

    Args:
        cluster: The cluster.
        info: The collective; without a group it spans the whole cluster.

    Returns:
        Seconds; NaN if operation or size are not known.
    """
    operation = _KNOWN.get(info.operation, _ALIKE.get(info.operation))
    size = info.message_bytes
    if info.operation == "barrier":
        operation, size = CollectiveOp.ALL_REDUCE, 4
    if operation is None or size < 0:
        return float("nan")
    # Even the smallest message has a latency.
    return float(collective_time_s(cluster, operation, max(size, 1), group_of(cluster, info)))


def group_of(cluster: Cluster, info: CollectiveInfo) -> Group:
    """Returns the ranks of a collective on a cluster: how many nodes, how many of each.

    Ranks are numbered node by node. A group that is not listed fills nodes one after the other; an
    uneven one counts with the nodes it touches and the most ranks that it has on one.
    """
    size = info.group_size or len(info.ranks) or cluster.world_size
    per_node = cluster.devices_per_domain
    if info.ranks:
        nodes, counts = np.unique(np.array(info.ranks) // per_node, return_counts=True)
        return Group(len(nodes), int(counts.max()))
    inside = min(size, cluster.domain_size)
    return Group(-(-size // inside), inside)


def strided_group(cluster: Cluster, stride: int, size: int) -> Group:
    """Returns a group of ranks that are `stride` apart, as the levels of a network have them."""
    per_node = cluster.devices_per_domain
    nodes = len({place * stride // per_node for place in range(size)})
    # All groups of the level that have members on a node send through its cards at once.
    sharers = min(stride, per_node) if nodes > 1 else 1
    return Group(nodes, -(-size // nodes), sharers, max(1, stride // per_node))


def without_measurements(cluster: Cluster) -> Cluster:
    """Returns a cluster whose collectives are computed from its links' figures alone."""
    return replace(cluster, link=replace(cluster.link, calibrations=()))


def scaled_links(cluster: Cluster, bandwidth: float, latency: float) -> Cluster:
    """Returns a cluster with scaled links and network.

    Measured curves are of one link only, so the result is computed from formulas.

    Args:
        cluster: The cluster.
        bandwidth: Factor on all bandwidths.
        latency: Factor on all latencies.
    """
    plain = without_measurements(cluster)
    pair = plain.link.pair_bandwidth_bytes_per_s
    link = replace(
        plain.link,
        bandwidth_bytes_per_s=plain.link.bandwidth_bytes_per_s * bandwidth,
        latency_s=plain.link.latency_s * latency,
        pair_bandwidth_bytes_per_s=None if pair is None else pair * bandwidth,
    )
    network = replace(
        plain.network,
        nic_bandwidth_bytes_per_s=plain.network.nic_bandwidth_bytes_per_s * bandwidth,
        latency_s=plain.network.latency_s * latency,
        spine_latency_s=plain.network.spine_latency_s * latency,
    )
    return replace(plain, link=link, network=network)


def retime_collectives(
    editor: StepEditor, collectives: Sequence[int], before: Cluster, after: Cluster
) -> None:
    """Scales measured transfers by the ratio of two clusters' models.

    The measured transfer stays the base, so what a model misses in absolute terms cancels out.
    Collectives of unknown operation or size get the ratio of all others, weighted by time.

    Args:
        editor: The captured step.
        collectives: Tasks.
        before: Cluster that the step was captured on.
        after: Cluster that it moves to.
    """
    ratios: dict[int, float] = {}
    transfers = {task: editor.duration_of(task) for task in collectives}
    alone = 0
    for members in editor.by_collective(collectives):
        infos = [info for task in members if (info := editor.collective_of(task)) is not None]
        if not infos:
            continue
        largest = max(infos, key=lambda info: info.message_bytes)
        old_s, new_s = collective_model_s(before, largest), collective_model_s(after, largest)
        if old_s > 0 and math.isfinite(new_s):
            ratios.update(dict.fromkeys(members, new_s / old_s))
            transfers.update(_transfers_s(editor, members, largest, before, old_s))
            alone += _is_alone(members, largest, before)
    if alone:
        editor.notes.append(
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
        editor.notes.append(
            f"{len(unknown)} collectives of unknown operation or size are scaled by {usual:.3g}, "
            + ("as the others are on average" if total else "the ratio of the links' bandwidths")
        )
        ratios.update(dict.fromkeys(unknown, usual))
    for task, ratio in ratios.items():
        _scale(editor, task, transfers[task], ratio)


def resize_collectives(
    editor: StepEditor, after: Mapping[int, CollectiveInfo], cluster: Cluster
) -> None:
    """Scales measured transfers by the model's ratio of new to old size, and updates their sizes.

    An uneven all-to-all takes as long as its largest message: the maximum over its ranks of what
    is sent and what is received (METHOD: TPDS 2024, arXiv 2404.12674). Collectives whose size or
    operation is unknown stay.

    Args:
        editor: The captured step.
        after: The collectives that change, by task.
        cluster: Cluster that the step runs on.
    """
    for members in editor.by_collective(after):
        old = _largest([info for task in members if (info := editor.collective_of(task))])
        new = _largest([after[task] for task in members])
        if old is None or new is None:
            continue
        old_s, new_s = collective_model_s(cluster, old), collective_model_s(cluster, new)
        if not (old_s > 0 and math.isfinite(new_s)):
            continue
        transfers = _transfers_s(editor, members, old, cluster, old_s)
        for task in members:
            _scale(editor, task, transfers[task], new_s / old_s)
            editor.describe(task, collective=after[task])


def _is_alone(members: Sequence[int], info: CollectiveInfo, cluster: Cluster) -> bool:
    """Returns whether the other ranks of a collective were not traced."""
    return len(members) == 1 and (info.group_size or cluster.world_size) > 1


def _transfers_s(
    editor: StepEditor,
    members: Sequence[int],
    info: CollectiveInfo,
    cluster: Cluster,
    model_s: float,
) -> dict[int, float]:
    """Returns the measured transfers of a collective; of a rank alone at most the model's."""
    limit_s = model_s if _is_alone(members, info, cluster) else math.inf
    return {task: min(editor.duration_of(task), limit_s) for task in members}


def _scale(editor: StepEditor, task: int, transfer_s: float, ratio: float) -> None:
    """Scales the transfer of a collective; its wait stays."""
    editor.set_duration(task, editor.duration_of(task) + transfer_s * (ratio - 1.0))


def _largest(infos: Sequence[CollectiveInfo]) -> CollectiveInfo | None:
    """Returns the member with the largest message; of an all-to-all sent or received."""
    sized = [_with_larger_side(info) for info in infos]
    return max(sized, key=lambda info: info.message_bytes, default=None)


def _with_larger_side(info: CollectiveInfo) -> CollectiveInfo:
    if info.operation != "all_to_all" or info.input_elements <= 0 or info.message_bytes < 0:
        return info
    value_bytes = info.message_bytes / info.input_elements
    elements = max(info.input_elements, info.output_elements)
    return replace(info, message_bytes=round(elements * value_bytes))


# --- changed collectives ------------------------------------------------------------------------


def scaled_info(info: CollectiveInfo, factor: float) -> CollectiveInfo:
    """Returns a collective that carries `factor` times as many bytes."""

    def scaled(size: int) -> int:
        return round(size * factor) if size > 0 else size

    return replace(
        info,
        message_bytes=scaled(info.message_bytes),
        input_elements=scaled(info.input_elements),
        output_elements=scaled(info.output_elements),
        input_splits=tuple(map(scaled, info.input_splits)),
        output_splits=tuple(map(scaled, info.output_splits)),
    )


def with_message(info: CollectiveInfo, size_bytes: int, **changes: Any) -> CollectiveInfo:
    """Returns a collective of another size whose elements are unknown."""
    changes |= {"message_bytes": size_bytes, "input_elements": -1, "output_elements": -1}
    return replace(info, **changes)


def convert_collectives(editor: StepEditor, precision: Precision, cluster: Cluster) -> None:
    """Converts all collectives of floating-point values to another precision.

    Args:
        editor: The captured step.
        precision: The precision; TF32 values are carried as FP32.
        cluster: Cluster that the step runs on.
    """
    known = {one.value for one in Precision if not one.is_low}
    after = {}
    for task in editor.select(Selector(role=(TaskRole.COLLECTIVE,))):
        info = editor.collective_of(task)
        if info is None or info.dtype not in known:
            continue
        factor = precision.value_bytes / Precision(info.dtype).value_bytes
        if factor != 1.0:
            # As many elements of another type.
            size = round(info.message_bytes * factor) if info.message_bytes >= 0 else -1
            dtype = Precision.FP32 if precision == Precision.TF32 else precision
            after[task] = replace(info, message_bytes=size, dtype=dtype.value)
    if after:
        resize_collectives(editor, after, cluster)
