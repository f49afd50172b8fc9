"""The work of one rank's devices, laid out on lanes without overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace._events import DEVICE_WORK, Category
from dse.trace._gloo import gloo_events
from dse.trace._host import inside_end
from dse.trace._replay_types import Role

if TYPE_CHECKING:
    from dse.trace._events import RankTrace
    from dse.trace._link import Links
    from dse.trace._replay_types import TracedStep

#: Times that differ by no more may be equal: older traces have whole µs.
ROUNDING_NS = 1_000
#: Overlaps on a stream up to this are rounding.
_OVERLAP_NS = 2 * ROUNDING_NS


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One kernel, copy or fill; on a CPU one collective of gloo.

    Attributes:
        event: Index of the event.
        start: Start after the step's start, in ns.
        end: End after the step's start, in ns; cut off where rounding lets it overlap.
        base_end: End after the trace's base, in ns.
        stream: Stream; of a collective of gloo its thread.
        lane: Device, stream and number of the lane of this stream; gloo's device is -1.
        previous: Work before it on the lane; None for the first.
        launch: The outermost call, or operator of c10d, that launched it in the step, or -1.
        role: `KERNEL`, `COPY`, `FILL` or `COLLECTIVE`.
    """

    event: int
    start: int
    end: int
    base_end: int
    stream: int
    lane: tuple[int, int, int]
    previous: Work | None
    launch: int
    role: Role


_ROLES = {
    Category.KERNEL: Role.KERNEL,
    Category.MEMCPY: Role.COPY,
    Category.MEMSET: Role.FILL,
}


def works_of_step(
    trace: RankTrace, links: Links, step: TracedStep, calls: set[int], outer: dict[int, int]
) -> list[Work]:
    """Returns what was launched in the step, and what else ran in it, in order of start.

    Work that overlaps earlier work of its stream gets a further lane.

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
    return _on_lanes(trace, links, step, chosen)


def _on_lanes(
    trace: RankTrace,
    links: Links,
    step: TracedStep,
    chosen: list[tuple[int, int, int, int]],
) -> list[Work]:
    lanes: dict[tuple[int, int], list[list[int]]] = {}
    placed: list[tuple[int, int, int]] = []
    ends = [end for _, end, _, _ in chosen]
    for at, (start, _, event, _) in enumerate(chosen):
        stream = (int(trace.device[event]), int(trace.stream[event]))
        if trace.thread[event] >= 0:
            stream = (-1, int(trace.thread[event]))
        rows = lanes.setdefault(stream, [])
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
    result: list[Work] = []
    last: dict[tuple[int, int, int], Work] = {}
    for at, (start, _, event, call) in enumerate(chosen):
        role = _ROLES.get(Category(int(trace.category[event])), Role.COLLECTIVE)
        if role == Role.KERNEL and links.collective[event] >= 0:
            role = Role.COLLECTIVE
        work = Work(
            event,
            start,
            ends[at],
            ends[at] + step.start_ns,
            placed[at][1],
            placed[at],
            last.get(placed[at]),
            call,
            role,
        )
        last[placed[at]] = work
        result.append(work)
    return result
