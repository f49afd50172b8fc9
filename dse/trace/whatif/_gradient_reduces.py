"""All-reduces of a captured step, and what replaces them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.trace import Role
from dse.trace.whatif._retime_collectives import collective_model_s
from dse.trace.whatif._select import Selector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine import Cluster
    from dse.trace import CollectiveInfo
    from dse.trace.whatif._job import Job


#: All-reduces that overlap by less than a hundredth were measured one after the other.
_ALONE = 0.99


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One all-reduce.

    Attributes:
        members: Its tasks, one a traced rank.
        info: What it is; of several members the largest.
        group_size: Ranks that take part, traced or not.
        model_s: Its transfer by the platform's model, in seconds.
        transfer_s: Transfer of each member: what was measured; where the other ranks were not
            traced at most what the model says.
        wait_s: The rest of the duration of each member.
    """

    members: tuple[int, ...]
    info: CollectiveInfo
    group_size: int
    model_s: float
    transfer_s: tuple[float, ...]
    wait_s: tuple[float, ...]


def all_reduces(job: Job, cluster: Cluster) -> list[AllReduce]:
    """Returns the all-reduces of known size over several ranks, in order of time.

    Raises:
        ConfigError: There is none.
    """
    tasks = job.select(Selector(role=(Role.COLLECTIVE,), collective=("all_reduce",)))
    found = []
    for members in job.meetings(tasks):
        infos = [info for task in members if (info := job.collective_of(task)) is not None]
        info = max(infos, key=lambda info: info.message_bytes)
        size = info.group_size or len(info.ranks) or cluster.world_size
        if info.message_bytes <= 0 or size < 2:
            continue
        model_s = collective_model_s(cluster, info)
        lasts = [job.duration_of(task) for task in members]
        alone = len(members) == 1
        transfers = [min(last, model_s) if alone else last for last in lasts]
        waits = [last - transfer for last, transfer in zip(lasts, transfers, strict=True)]
        found.append(AllReduce(members, info, size, model_s, tuple(transfers), tuple(waits)))
    if not found:
        raise ConfigError(
            "the captured step has no all-reduce of known size over several ranks; of a step of "
            "one rank `data_parallel` makes one that has"
        )
    return found


def one_after_the_other(job: Job, reduces: list[AllReduce], why: str) -> list[AllReduce]:
    """Returns all-reduces as long as they would be on one lane, the links to themselves.

    All-reduces that were measured beside each other share the links, so their durations hold the
    contention. One after the other they take what they took together: each is scaled by the union
    of the measured intervals of its rank over their sum.

    Args:
        job: The job.
        reduces: The all-reduces.
        why: Optimization that asks, for the note.
    """
    spans: dict[int, list[tuple[float, float]]] = {}
    lanes: dict[int, set[str]] = {}
    for one in reduces:
        for task, transfer_s, wait_s in zip(one.members, one.transfer_s, one.wait_s, strict=True):
            rank, end_s = job.rank_of(task), 1e-9 * job.start_of(task) + wait_s + transfer_s
            spans.setdefault(rank, []).append((end_s - transfer_s, end_s))
            lanes.setdefault(rank, set()).add(job.lane_of(task))
    shares = {
        rank: _union_s(pairs) / sum(end - start for start, end in pairs)
        for rank, pairs in spans.items()
        # What was inserted has no measured time, and waits for its lane.
        if len(lanes[rank]) > 1 and any(end > start for start, end in pairs)
    }
    smallest = min(shares.values(), default=1.0)
    if smallest > _ALONE:
        return reduces
    most = max(len(lanes[rank]) for rank in shares)
    job.notes.append(
        f"{why}: all-reduces were measured on up to {most} lanes at once; one after the other "
        f"each takes {100 * smallest:.0f} to {100 * max(shares.values()):.0f} % of its measured "
        "time, so that together they take as long as measured"
    )
    return [
        replace(
            one,
            transfer_s=tuple(
                transfer_s * shares.get(job.rank_of(task), 1.0)
                for task, transfer_s in zip(one.members, one.transfer_s, strict=True)
            ),
        )
        for one in reduces
    ]


def _union_s(spans: list[tuple[float, float]]) -> float:
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def take_out(job: Job, reduces: list[AllReduce]) -> None:
    """Removes all-reduces; their launches stay, others launch what replaces them."""
    job.remove([task for one in reduces for task in one.members], launches=False)


def meet_by_stage(job: Job, stages: Mapping[int, list[int]]) -> None:
    """Lets the members of each stage of a collective meet."""
    for members in stages.values():
        if len(members) > 1:
            job.meet(members)
