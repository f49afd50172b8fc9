"""Device work of one rank: laid out on streams without overlap, with the time of each launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace._step_graph import TaskRole
from dse.trace.cpu._gloo import gloo_events
from dse.trace.graph._host import inside_end
from dse.trace.read._rank_trace import DEVICE_WORK, Category

if TYPE_CHECKING:
    from dse.trace._step_graph import TracedStep
    from dse.trace.links._link import Links
    from dse.trace.read._rank_trace import RankTrace

#: Times that differ by no more may be equal: older traces have whole µs.
ROUNDING_NS = 1_000
#: Overlaps on a stream up to this are rounding.
_OVERLAP_NS = 2 * ROUNDING_NS


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """One kernel, copy or fill; on a CPU one collective of gloo.

    Attributes:
        event: Index of the event.
        start: Start after the step's start, in ns.
        end: End after the step's start, in ns; cut off where rounding lets it overlap.
        base_end: End after the trace's base, in ns.
        queue: Device, stream and number of the queue of this stream (overlapping work of one
            stream needs several); for a collective of gloo -1, its thread and the number.
        previous: Work before it in the queue; None for the first.
        launch: The outermost call, or c10d operator, that launched it in the step, or -1.
        role: `KERNEL`, `COPY`, `FILL` or `COLLECTIVE`.
    """

    event: int
    start: int
    end: int
    base_end: int
    queue: tuple[int, int, int]
    previous: DeviceWork | None
    launch: int
    role: TaskRole


_ROLES = {
    Category.KERNEL: TaskRole.KERNEL,
    Category.MEMCPY: TaskRole.COPY,
    Category.MEMSET: TaskRole.FILL,
}


def device_work(
    trace: RankTrace, links: Links, step: TracedStep, calls: set[int], outer: dict[int, int]
) -> list[DeviceWork]:
    """Returns the work launched in the step and all other work that ran in it, in order of start.

    Work that overlaps earlier work of its stream goes to a further queue.

    Args:
        trace: The trace.
        links: Its links.
        step: The step.
        calls: Outermost calls of the step.
        outer: Nested call → outermost call.
    """
    events = np.flatnonzero(trace.where(*DEVICE_WORK))
    if not len(events):
        events = gloo_events(trace)
    end_ns = trace.end_ns
    chosen: list[tuple[int, int, int, int]] = []
    running = (end_ns[events] > step.start_ns) & inside_end(trace.start_ns[events], step)
    for event, runs in zip(events.tolist(), running.tolist(), strict=True):
        call = int(links.launch[event])
        call = outer.get(call, call)
        launched = call in calls
        if launched or runs:
            start = max(int(trace.start_ns[event]) - step.start_ns, 0)
            end = int(end_ns[event]) - step.start_ns
            chosen.append((start, max(end, start), event, call if launched else -1))
    return _in_queues(trace, links, step, chosen)


def _in_queues(
    trace: RankTrace,
    links: Links,
    step: TracedStep,
    chosen: list[tuple[int, int, int, int]],
) -> list[DeviceWork]:
    queues: dict[tuple[int, int], list[list[int]]] = {}
    placed: list[tuple[int, int, int]] = []
    ends = [end for _, end, _, _ in chosen]
    for at, (start, _, event, _) in enumerate(chosen):
        stream = (int(trace.device[event]), int(trace.stream[event]))
        if trace.thread[event] >= 0:
            stream = (-1, int(trace.thread[event]))
        rows = queues.setdefault(stream, [])
        number = next(
            (number for number, row in enumerate(rows) if ends[row[-1]] <= start + _OVERLAP_NS),
            len(rows),
        )
        if number == len(rows):
            rows.append([])
        elif ends[rows[number][-1]] > start:
            ends[rows[number][-1]] = max(start, chosen[rows[number][-1]][0])
        rows[number].append(at)
        placed.append((*stream, number))
    result: list[DeviceWork] = []
    last: dict[tuple[int, int, int], DeviceWork] = {}
    for at, (start, _, event, call) in enumerate(chosen):
        role = _ROLES.get(Category(int(trace.category[event])), TaskRole.COLLECTIVE)
        if role == TaskRole.KERNEL and links.collective[event] >= 0:
            role = TaskRole.COLLECTIVE
        work = DeviceWork(
            event,
            start,
            ends[at],
            ends[at] + step.start_ns,
            placed[at],
            last.get(placed[at]),
            call,
            role,
        )
        last[placed[at]] = work
        result.append(work)
    return result


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of one rank.

    Attributes:
        issued: Device event → when its call issued it, in ns after the step's start.
        launched: Call → its work.
        blocked: Call → copies that it waited for.
    """

    issued: dict[int, int]
    launched: dict[int, list[DeviceWork]]
    blocked: dict[int, list[DeviceWork]]


def find_launches(
    trace: RankTrace, works: list[DeviceWork], spans: dict[int, tuple[int, int]]
) -> Launches:
    """Finds when work was issued.

    A launch is issued at the end of its call, or at the start of the work if that came first. A
    call that waits for its own copy issues it as fast as other calls of the trace usually do.

    Args:
        trace: The trace.
        works: Work in order of start.
        spans: Start and end of each outermost call, in ns after the step's start.
    """
    launched: dict[int, list[DeviceWork]] = {}
    for work in works:
        if work.launch >= 0:
            launched.setdefault(work.launch, []).append(work)
    blocked: dict[int, list[DeviceWork]] = {}
    for call, own in launched.items():
        copies = [work for work in own if _blocks(trace, work, *spans[call])]
        if copies:
            blocked[call] = copies
    lengths = [spans[call][1] - spans[call][0] for call in launched if call not in blocked]
    usual = int(np.median(lengths)) if lengths else 0
    issued: dict[int, int] = {}
    for call, own in launched.items():
        start, end = spans[call]
        latest = min(start + usual, end) if call in blocked else end
        issued.update((work.event, max(start, min(latest, work.start))) for work in own)
    return Launches(issued, launched, blocked)


def _blocks(trace: RankTrace, work: DeviceWork, start: int, end: int) -> bool:
    """Returns whether a call lasted until the end of its copy."""
    is_copy = trace.category[work.event] == Category.MEMCPY
    return bool(is_copy and work.start < end and start < work.end <= end + ROUNDING_NS)
