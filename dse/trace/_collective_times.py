"""Waiting, transfer and bandwidth of collectives, and who was waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.machine.collectives import CollectiveOp, volume
from dse.trace._summary_types import CollectiveSummary, Straggler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace._events import RankTrace
    from dse.trace._match import CollectiveMeeting


def collective_times(
    traces: Sequence[RankTrace], meetings: Sequence[CollectiveMeeting]
) -> tuple[CollectiveSummary, ...]:
    """Returns the figures of each collective, in order of the last arrivals.

    Args:
        traces: One trace a rank.
        meetings: The collectives across these ranks.
    """
    by_rank = {trace.rank: trace for trace in traces}
    timed = [_collective(meeting, by_rank) for meeting in meetings]
    timed.sort(key=lambda pair: pair[0])
    return tuple(collective for _, collective in timed)


def _collective(
    meeting: CollectiveMeeting, by_rank: dict[int, RankTrace]
) -> tuple[int, CollectiveSummary]:
    """When the last rank arrived, and the figures."""
    members = [
        (by_rank[rank], event) for rank, event in zip(meeting.ranks, meeting.events, strict=True)
    ]
    start = np.array([trace.base_time_ns + int(trace.start_ns[event]) for trace, event in members])
    end = start + np.array([int(trace.duration_ns[event]) for trace, event in members])
    last = int(np.argmax(start))
    # By clocks that differ, a member may end before the last one starts.
    waits_s = (np.minimum(start[last], end) - start) / 1e9
    transfer_s = max(0, int(end.max() - start[last])) / 1e9
    size = max(meeting.group_size, len(meeting.ranks))
    whole = not (meeting.missing_ranks or meeting.untraced_ranks) and len(members) == size
    algorithm = bus = None
    if whole and meeting.message_bytes > 0 and transfer_s > 0:
        algorithm = meeting.message_bytes / transfer_s
        if meeting.operation in {op.value for op in CollectiveOp}:
            bus = algorithm * volume(CollectiveOp(meeting.operation), size)
    summary = CollectiveSummary(
        operation=meeting.operation,
        group=meeting.group,
        step=meeting.step,
        message_bytes=meeting.message_bytes,
        group_size=meeting.group_size,
        ranks=meeting.ranks,
        missing_ranks=meeting.missing_ranks,
        whole=whole,
        transfer_s=transfer_s,
        waits_s=tuple(waits_s.tolist()),
        longest_wait_s=float(waits_s.max()),
        last_rank=meeting.ranks[last],
        algorithm_bandwidth_bytes_per_s=algorithm,
        bus_bandwidth_bytes_per_s=bus,
    )
    return int(start[last]), summary


def waited_until_ns(
    traces: Sequence[RankTrace], meetings: Sequence[CollectiveMeeting]
) -> dict[int, dict[int, int]]:
    """Returns until when the collectives of each rank waited for other ranks that were traced.

    Args:
        traces: One trace a rank.
        meetings: The collectives across these ranks.

    Returns:
        By rank and event the arrival of the last member, in ns after the base of the rank's trace
        and at most the event's end: clocks may differ.
    """
    by_rank = {trace.rank: trace for trace in traces}
    found: dict[int, dict[int, int]] = {rank: {} for rank in by_rank}
    for meeting in meetings:
        members = list(zip(meeting.ranks, meeting.events, strict=True))
        last = max(
            by_rank[rank].base_time_ns + int(by_rank[rank].start_ns[event])
            for rank, event in members
        )
        for rank, event in members:
            trace = by_rank[rank]
            found[rank][event] = min(last - trace.base_time_ns, int(trace.end_ns[event]))
    return found


def stragglers(collectives: Sequence[CollectiveSummary]) -> tuple[Straggler, ...]:
    """Adds up who was waited for, over the collectives that were found whole.

    Of ranks that come together none was waited for.

    Returns:
        One entry a rank, most waited for first.
    """
    last: dict[int, int] = {}
    caused_s: dict[int, float] = {}
    alone_s: dict[int, float] = {}
    waited_s: dict[int, float] = {}
    for collective in collectives:
        if not collective.whole or len(collective.ranks) < 2:
            continue
        for rank, wait_s in zip(collective.ranks, collective.waits_s, strict=True):
            waited_s[rank] = waited_s.get(rank, 0.0) + wait_s
        # The last one waits for no time; the next smallest wait is how late it was alone.
        ahead_s = sorted(collective.waits_s)[1]
        if ahead_s:
            rank = collective.last_rank
            last[rank] = last.get(rank, 0) + 1
            caused_s[rank] = caused_s.get(rank, 0.0) + sum(collective.waits_s)
            alone_s[rank] = alone_s.get(rank, 0.0) + ahead_s
    found = [
        Straggler(rank, last.get(rank, 0), caused_s.get(rank, 0), alone_s.get(rank, 0), seconds)
        for rank, seconds in waited_s.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.others_waited_s, one.rank)))
