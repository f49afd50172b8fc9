"""Waiting, transfer and bandwidth of collectives, and stragglers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.machine.collectives import CollectiveOp, volume
from dse.trace.analyse._summary_types import CollectiveSummary, Straggler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace.links._matched_collectives import MatchedCollective
    from dse.trace.read._rank_trace import RankTrace


def collective_times(
    traces: Sequence[RankTrace], collectives: Sequence[MatchedCollective]
) -> tuple[CollectiveSummary, ...]:
    """Returns the times of each collective, in order of the last arrivals.

    Args:
        traces: One trace per rank.
        collectives: The collectives matched across these ranks.
    """
    by_rank = {trace.rank: trace for trace in traces}
    timed = [_timed(collective, by_rank) for collective in collectives]
    timed.sort(key=lambda pair: pair[0])
    return tuple(collective for _, collective in timed)


def _timed(
    matched: MatchedCollective, by_rank: dict[int, RankTrace]
) -> tuple[int, CollectiveSummary]:
    """Returns the last arrival in ns, and the times of a collective."""
    members = [
        (by_rank[rank], event) for rank, event in zip(matched.ranks, matched.events, strict=True)
    ]
    start = np.array([trace.base_time_ns + int(trace.start_ns[event]) for trace, event in members])
    end = start + np.array([int(trace.duration_ns[event]) for trace, event in members])
    last = int(np.argmax(start))
    # If clocks differ, a member may end before the last one starts.
    waits_s = (np.minimum(start[last], end) - start) / 1e9
    transfer_s = max(0, int(end.max() - start[last])) / 1e9
    size = max(matched.group_size, len(matched.ranks))
    whole = not (matched.missing_ranks or matched.untraced_ranks) and len(members) == size
    algorithm = bus = None
    if whole and matched.message_bytes > 0 and transfer_s > 0:
        algorithm = matched.message_bytes / transfer_s
        if matched.operation in {op.value for op in CollectiveOp}:
            bus = algorithm * volume(CollectiveOp(matched.operation), size)
    summary = CollectiveSummary(
        operation=matched.operation,
        group=matched.group,
        step=matched.step,
        message_bytes=matched.message_bytes,
        group_size=matched.group_size,
        ranks=matched.ranks,
        missing_ranks=matched.missing_ranks,
        whole=whole,
        transfer_s=transfer_s,
        waits_s=tuple(waits_s.tolist()),
        longest_wait_s=float(waits_s.max()),
        last_rank=matched.ranks[last],
        algorithm_bandwidth_bytes_per_s=algorithm,
        bus_bandwidth_bytes_per_s=bus,
    )
    return int(start[last]), summary


def waited_until_ns(
    traces: Sequence[RankTrace], collectives: Sequence[MatchedCollective]
) -> dict[int, dict[int, int]]:
    """Returns until when the collectives of each rank waited for other traced ranks.

    Args:
        traces: One trace per rank.
        collectives: The collectives matched across these ranks.

    Returns:
        By rank and event the arrival of the last member, in ns after the base of the rank's trace,
        at most the event's end because clocks may differ.
    """
    by_rank = {trace.rank: trace for trace in traces}
    found: dict[int, dict[int, int]] = {rank: {} for rank in by_rank}
    for collective in collectives:
        members = list(zip(collective.ranks, collective.events, strict=True))
        last = max(
            by_rank[rank].base_time_ns + int(by_rank[rank].start_ns[event])
            for rank, event in members
        )
        for rank, event in members:
            trace = by_rank[rank]
            found[rank][event] = min(last - trace.base_time_ns, int(trace.end_ns[event]))
    return found


def stragglers(collectives: Sequence[CollectiveSummary]) -> tuple[Straggler, ...]:
    """Adds up the waits that each rank caused, over the complete collectives.

    If the last two ranks arrive together, neither counts as a straggler.

    Returns:
        One entry per rank, most waited for first.
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
        # The last one does not wait; the next smallest wait is how late it was alone.
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
    return tuple(sorted(found, key=lambda entry: (-entry.others_waited_s, entry.rank)))
