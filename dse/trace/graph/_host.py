"""Host threads of one rank as rows of segments: operators, calls and gaps, without overlap.

Threads that drive a device only dispatch: their segments are top-level operators, calls and gaps.
Without any device work the CPU is the device, and the innermost operators count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace._step_graph import TaskRole
from dse.trace.cpu._operators import cpu_stretches
from dse.trace.read._rank_trace import CALLS, Category

if TYPE_CHECKING:
    from dse.trace._step_graph import TracedStep
    from dse.trace.links._link import Links
    from dse.trace.read._rank_trace import Longs, RankTrace


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of one thread's time.

    Attributes:
        start: Start after the step's start, in ns.
        end: End after the step's start, in ns.
        role: `HOST_WORK`, `HOST_GAP` or `CALL`; `KERNEL` where the CPU is the device.
        event: The operator or call; -1 for a gap.
    """

    start: int
    end: int
    role: TaskRole
    event: int


@dataclass(frozen=True, slots=True)
class HostRows:
    """All threads of one rank.

    Attributes:
        rows: Segments of each active thread, one after the other.
        outer: Nested call → the call around it.
    """

    rows: dict[int, list[Segment]]
    outer: dict[int, int]


def host_rows(trace: RankTrace, links: Links, step: TracedStep) -> HostRows:
    """Cuts the threads into segments, from the step's start to their last event in the step.

    The thread of the step's annotation lasts until the annotation's end.
    """
    end_ns = trace.end_ns
    inside = (trace.start_ns < step.end_ns) & (end_ns > step.start_ns)
    inside |= (
        (trace.start_ns == end_ns)
        & (trace.start_ns >= step.start_ns)
        & inside_end(trace.start_ns, step)
    )
    inside &= trace.thread >= 0
    if not trace.has_kernels:
        return _cpu_rows(trace, links, step, inside)
    calls = np.flatnonzero(inside & trace.where(*CALLS))
    tops = np.flatnonzero(inside & trace.where(Category.CPU_OP) & (links.operator < 0))
    rows: dict[int, list[Segment]] = {}
    outer: dict[int, int] = {}
    threads = set(trace.thread[calls].tolist()) | set(trace.thread[tops].tolist())
    if step.thread >= 0:
        threads.add(step.thread)
    for thread in sorted(threads):
        of_calls = _disjoint(trace, calls[trace.thread[calls] == thread], step, outer)
        of_tops = _disjoint(trace, tops[trace.thread[tops] == thread], step, {})
        rows[thread] = _segments(of_calls, of_tops)
        if thread == step.thread:
            _fill_up(rows[thread], step.end_ns - step.start_ns)
    return HostRows(rows, outer)


def _cpu_rows(trace: RankTrace, links: Links, step: TracedStep, inside: np.ndarray) -> HostRows:
    outer: dict[int, int] = {}
    stretches = cpu_stretches(trace, links, step, inside, outer)
    if step.thread >= 0:
        stretches.setdefault(step.thread, [])
    rows = {
        thread: [Segment(start, end, role, event) for (start, end, event), role in parts]
        for thread, parts in sorted(stretches.items())
    }
    if step.thread >= 0:
        _fill_up(rows[step.thread], step.end_ns - step.start_ns)
    return HostRows(rows, outer)


def inside_end(start_ns: Longs, step: TracedStep) -> np.ndarray:
    """Returns which starts lie before the end of a step; a whole trace includes its end."""
    return np.asarray(start_ns <= step.end_ns if step.thread < 0 else start_ns < step.end_ns)


def _disjoint(
    trace: RankTrace, events: Longs, step: TracedStep, outer: dict[int, int]
) -> list[tuple[int, int, int]]:
    """Returns start, end and event of the outermost events; overlaps are cut off."""
    length = step.end_ns - step.start_ns
    starts = (trace.start_ns[events] - step.start_ns).clip(0, length).tolist()
    ends = (trace.end_ns[events] - step.start_ns).clip(0, length).tolist()
    result: list[tuple[int, int, int]] = []
    for start, end, event in zip(starts, ends, events.tolist(), strict=True):
        if result and end <= result[-1][1] and start < result[-1][1]:
            outer[event] = result[-1][2]
            continue
        after = result[-1][1] if result else 0
        result.append((max(start, after), end, event))
    return result


def _segments(
    calls: list[tuple[int, int, int]], tops: list[tuple[int, int, int]]
) -> list[Segment]:
    """Lays calls over top-level operators and fills the rest with gaps."""
    row: list[Segment] = []
    now, at = 0, 0
    last = max((items[-1][1] for items in (calls, tops) if items), default=0)
    for start, end, call in [*calls, (last, last, -1)]:
        while now < start:
            while at < len(tops) and tops[at][1] <= now:
                at += 1
            if at < len(tops) and tops[at][0] <= now:
                until = min(start, tops[at][1])
                row.append(Segment(now, until, TaskRole.HOST_WORK, tops[at][2]))
            else:
                until = min(start, tops[at][0]) if at < len(tops) else start
                row.append(Segment(now, until, TaskRole.HOST_GAP, -1))
            now = until
        if call >= 0:
            row.append(Segment(start, end, TaskRole.CALL, call))
            now = end
    return row


def _fill_up(row: list[Segment], end: int) -> None:
    now = row[-1].end if row else 0
    if now < end:
        row.append(Segment(now, end, TaskRole.HOST_GAP, -1))
