"""Collectives of another size on the same links."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING

from dse.trace.whatif._retime_collectives import collective_model_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine import Cluster
    from dse.trace import CollectiveInfo
    from dse.trace.whatif._job import Job


def scaled_info(info: CollectiveInfo, factor: float) -> CollectiveInfo:
    """Returns a collective that carries so many times as many bytes.

    Args:
        info: The collective.
        factor: New bytes over old ones.
    """

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


def resize_collectives(job: Job, after: Mapping[int, CollectiveInfo], cluster: Cluster) -> int:
    """Scales measured transfers by the model's ratio of new to old size, and describes them anew.

    An uneven all-to-all is as long as its largest message: the maximum over its ranks of what is
    sent and what is received (METHOD: TPDS 2024, arXiv 2404.12674).

    Args:
        job: The job.
        after: Tasks that change, with what they are from now on.
        cluster: What the job runs on.

    Returns:
        Number of tasks whose size or operation is unknown; they keep their time.
    """
    unknown = 0
    for members in job.meetings(after):
        old = _largest([info for task in members if (info := job.collective_of(task))])
        new = _largest([after[task] for task in members])
        if old is None or new is None:
            unknown += len(members)
            continue
        before_s, after_s = collective_model_s(cluster, old), collective_model_s(cluster, new)
        if not (before_s > 0 and math.isfinite(after_s)):
            unknown += len(members)
            continue
        alone = len(members) == 1 and (old.group_size or cluster.world_size) > 1
        for task in members:
            duration_s = job.duration_of(task)
            # Of a rank alone the model says how much of the time was transfer at most.
            transfer_s = min(duration_s, before_s) if alone else duration_s
            job.set_duration(task, duration_s + transfer_s * (after_s / before_s - 1.0))
            job.describe(task, collective=after[task])
    return unknown


def _largest(infos: Sequence[CollectiveInfo]) -> CollectiveInfo | None:
    """Returns the member with the largest message, of an all-to-all sent or received."""
    sized = [_with_larger_side(info) for info in infos]
    return max(sized, key=lambda info: info.message_bytes, default=None)


def _with_larger_side(info: CollectiveInfo) -> CollectiveInfo:
    if info.operation != "all_to_all" or info.input_elements <= 0 or info.message_bytes < 0:
        return info
    value_bytes = info.message_bytes / info.input_elements
    elements = max(info.input_elements, info.output_elements)
    return replace(info, message_bytes=round(elements * value_bytes))
