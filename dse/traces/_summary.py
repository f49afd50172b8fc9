"""What is in captured traces, in figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.traces._events import DEVICE_WORK, Category
from dse.traces._link import Links, link
from dse.traces._match import CollectiveMeeting, match_collectives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.traces._events import Ints, Longs, RankTrace

#: Kernels and operators that are listed.
_MOST = 12


@dataclass(frozen=True, slots=True)
class NamedTotal:
    """Device time under one name.

    Attributes:
        name: Kernel or operator.
        count: How often it ran.
        total_s: Device time, in seconds.
    """

    name: str
    count: int
    total_s: float


@dataclass(frozen=True, slots=True)
class RankSummary:
    """What one rank's trace holds.

    Attributes:
        rank: Global rank.
        file: Its file.
        devices: Names of its devices.
        events: Number of events.
        steps: Numbers of the profiler's steps.
        device_events: Kernels, copies and fills.
        device_busy_s: Time in which any of them ran, in seconds.
        span_s: From the first to the last event, in seconds.
        top_kernels: Most time first.
        top_operators: Operators by the device time that they launched, most first.
        notes: What the reader left out or found odd.
    """

    rank: int
    file: str
    devices: tuple[str, ...]
    events: int
    steps: tuple[int, ...]
    device_events: int
    device_busy_s: float
    span_s: float
    top_kernels: tuple[NamedTotal, ...]
    top_operators: tuple[NamedTotal, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CollectiveSummary:
    """One collective over the ranks that were traced.

    Attributes:
        operation: Our name.
        message_bytes: Largest size of any rank; -1 if unknown.
        ranks: Ranks that were found.
        missing_ranks: Traced ranks of the group without a counterpart.
        transfer_s: From the last arrival to the last end, in seconds.
        longest_wait_s: Of the rank that came first, in seconds.
        last_rank: Rank that the others waited for.
    """

    operation: str
    message_bytes: int
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    transfer_s: float
    longest_wait_s: float
    last_rank: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What the traces of a job hold.

    Attributes:
        ranks: One entry a trace.
        collectives: Collectives in order of their last arrival.
    """

    ranks: tuple[RankSummary, ...]
    collectives: tuple[CollectiveSummary, ...]


def summarise(traces: Sequence[RankTrace]) -> TraceSummary:
    """Counts and adds up what traces hold.

    Waiting and transfer of a collective are told apart by the ranks' clocks, which the reader has
    checked but not shifted: on hosts whose clocks differ they are off by that.

    Args:
        traces: One trace a rank.
    """
    links = [link(trace) for trace in traces]
    by_rank = {trace.rank: trace for trace in traces}
    timed = [_collective(meeting, by_rank) for meeting in match_collectives(traces, links)]
    timed.sort(key=lambda pair: pair[0])
    return TraceSummary(
        tuple(_rank(trace, linked) for trace, linked in zip(traces, links, strict=True)),
        tuple(collective for _, collective in timed),
    )


def _rank(trace: RankTrace, links: Links) -> RankSummary:
    work = np.flatnonzero(trace.where(*DEVICE_WORK))
    kernels = np.flatnonzero(trace.where(Category.KERNEL))
    launched = work[links.operator[work] >= 0]
    start, end = trace.start_ns, trace.end_ns
    span_ns = int(end.max() - start.min()) if len(trace) else 0
    return RankSummary(
        rank=trace.rank,
        file=trace.file,
        devices=trace.device_names,
        events=len(trace),
        steps=tuple(step.number for step in trace.steps),
        device_events=len(work),
        device_busy_s=_union_ns(start[work], end[work]) / 1e9,
        span_s=span_ns / 1e9,
        top_kernels=_top(trace, trace.name[kernels], trace.duration_ns[kernels]),
        top_operators=_top(
            trace, trace.name[links.operator[launched]], trace.duration_ns[launched]
        ),
        notes=trace.notes,
    )


def _top(trace: RankTrace, names: Ints, duration_ns: Longs) -> tuple[NamedTotal, ...]:
    size = len(trace.names)
    totals = np.bincount(names, duration_ns, minlength=size)
    counts = np.bincount(names, minlength=size)
    order = np.argsort(-totals, kind="stable")[:_MOST]
    return tuple(
        NamedTotal(trace.names[index], int(counts[index]), float(totals[index]) / 1e9)
        for index in order.tolist()
        if counts[index]
    )


def _union_ns(start: Longs, end: Longs) -> int:
    """Length of the union of intervals, given in order of their starts."""
    if not len(start):
        return 0
    reach = np.maximum.accumulate(end)
    gaps = np.maximum(0, start[1:] - reach[:-1])
    return int(reach[-1] - start[0] - gaps.sum())


def _collective(
    meeting: CollectiveMeeting, by_rank: dict[int, RankTrace]
) -> tuple[int, CollectiveSummary]:
    """When the last rank arrived, and the figures."""
    start = np.array(
        [
            by_rank[rank].base_time_ns + int(by_rank[rank].start_ns[event])
            for rank, event in zip(meeting.ranks, meeting.events, strict=True)
        ]
    )
    duration = np.array(
        [
            int(by_rank[rank].duration_ns[event])
            for rank, event in zip(meeting.ranks, meeting.events, strict=True)
        ]
    )
    last = int(np.argmax(start))
    summary = CollectiveSummary(
        operation=meeting.operation,
        message_bytes=meeting.message_bytes,
        ranks=meeting.ranks,
        missing_ranks=meeting.missing_ranks,
        transfer_s=max(0, int((start + duration).max() - start[last])) / 1e9,
        longest_wait_s=int(start[last] - start.min()) / 1e9,
        last_rank=meeting.ranks[last],
    )
    return int(start[last]), summary
