"""Waits of host threads for collectives of gloo.

Traces do not record these waits. A waiting thread starts no operator, so the wait is a gap in
which the collective ends, or own time of an operator that is written in Python:

* the gap right after the operator that issued it, as for any call that does not return early;
* otherwise a segment that begins a while before that end and ends shortly after it.

If the thread was busy when the collective ended, the wait took no time. The collective then holds
up the next event that cannot come earlier: copies out of a bucket of gradients or parameters,
`wait_tensor`, the optimizer; without any of these the end of the step.

When threads compete for cores, gloo's thread may end its annotation late, after others have
continued. Such a wait is not found.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
import re
from typing import TYPE_CHECKING

import numpy as np

from dse.trace._step_graph import TaskRole
from dse.trace.cpu._operators import WAIT_OPERATORS
from dse.trace.read._rank_trace import Category

if TYPE_CHECKING:
    from dse.trace._step_graph import TracedStep
    from dse.trace.graph._device_work import DeviceWork
    from dse.trace.graph._host import Segment
    from dse.trace.read._rank_trace import RankTrace

#: Shorter pauses before the end of a collective are no waits, in ns.
_SHORTEST_WAIT = 20_000
#: A thread that waited continues after at most this, in ns.
_LONGEST_RETURN = 1_000_000
#: Autograd functions written in Python; names of PyTorch's nodes end in a number.
_IN_PYTHON = re.compile(r"[A-Za-z_]\w*(?<!\d)")
_AFTER_WAITS = (
    *WAIT_OPERATORS,
    "torch.distributed.ddp.reducer::copy_bucket_to_grad",
    "fsdp::split_with_sizes_copy",
)
_OPTIMIZER = "Optimizer.step"


@dataclass(frozen=True, slots=True)
class CpuWaits:
    """Waits of one rank's threads for collectives.

    Attributes:
        awaited: Thread and index of its segment → collectives that it waits for.
        open: Collectives that ended in the step without any known wait for them.
    """

    awaited: dict[tuple[int, int], list[DeviceWork]] = field(default_factory=dict)
    open: tuple[DeviceWork, ...] = ()


def cpu_waits(
    trace: RankTrace, rows: dict[int, list[Segment]], step: TracedStep, works: list[DeviceWork]
) -> CpuWaits:
    """Finds the waits.

    Args:
        trace: The trace.
        rows: Segments of each thread.
        step: What to replay.
        works: Collectives of gloo.
    """
    if not works:
        return CpuWaits()
    threads = {thread: _Thread(trace, row) for thread, row in rows.items()}
    later = _later(trace, step)
    awaited: dict[tuple[int, int], list[DeviceWork]] = {}
    unknown = []
    for work in works:
        asker = int(trace.thread[work.launch]) if work.launch >= 0 else step.thread
        own = int(trace.thread[work.event])
        found = _seen(threads, asker, own, work)
        if found is None:
            found = _next(threads, asker, later.get(asker, []), work)
        if found is not None:
            awaited.setdefault(found, []).append(work)
        elif work.end <= step.end_ns - step.start_ns:
            unknown.append(work)
        if own != asker and own in threads:
            at = threads[own].around(work.end)
            if at >= 0 and rows[own][at].role == TaskRole.HOST_GAP:
                awaited.setdefault((own, at), []).append(work)
    return CpuWaits(awaited, tuple(unknown))


class _Thread:
    """One thread's segments, and where each operator ends."""

    def __init__(self, trace: RankTrace, row: list[Segment]) -> None:
        self._trace = trace
        self.row = row
        self.starts = [part.start for part in row]
        self.ends = [part.end for part in row]
        self.last = {part.event: at for at, part in enumerate(row)}

    def around(self, moment: int) -> int:
        """Returns the segment that a moment lies in or ends; -1 after the last."""
        at = bisect_left(self.ends, moment)
        return at if at < len(self.row) and self.row[at].start < moment else -1

    def waits(self, at: int, end: int) -> bool:
        """Returns whether a segment looks like a wait for something that ended at `end`."""
        part = self.row[at]
        if end - part.start < _SHORTEST_WAIT or part.end - end > _LONGEST_RETURN:
            return False
        if part.role in (TaskRole.HOST_GAP, TaskRole.CALL):
            return part.role == TaskRole.HOST_GAP
        name = self._trace.name_of(part.event)
        return name in WAIT_OPERATORS or _IN_PYTHON.fullmatch(name) is not None


def _seen(
    threads: dict[int, _Thread], asker: int, own: int, work: DeviceWork
) -> tuple[int, int] | None:
    """Returns the segment in which a thread was seen to wait; the issuing thread first."""
    if asker in threads:
        thread = threads[asker]
        after = thread.last.get(work.launch, -1) + 1
        if 0 < after < len(thread.row):
            part = thread.row[after]
            if part.role == TaskRole.HOST_GAP and work.end <= part.end:
                return asker, after
        at = thread.around(work.end)
        if at >= after and thread.waits(at, work.end):
            return asker, at
    for number, thread in threads.items():
        at = thread.around(work.end)
        quiet = at >= 0 and thread.row[at].role == TaskRole.HOST_GAP
        if number not in (asker, own) and quiet and thread.waits(at, work.end):
            return number, at
    return None


def _next(
    threads: dict[int, _Thread], asker: int, later: list[int], work: DeviceWork
) -> tuple[int, int] | None:
    """Returns the first segment that cannot come before the end of a collective."""
    if asker not in threads:
        return None
    at = bisect_left(later, work.end)
    if at == len(later):
        return None
    thread = threads[asker]
    segment = bisect_left(thread.starts, later[at])
    return (asker, segment) if segment < len(thread.row) else None


def _later(trace: RankTrace, step: TracedStep) -> dict[int, list[int]]:
    """Returns thread → starts of events that follow a wait, in ns after the step's start."""
    optimizer = trace.named(lambda name: name.startswith(_OPTIMIZER))
    marks = trace.where(Category.CPU_OP) & trace.named(_AFTER_WAITS.__contains__)
    marks |= trace.where(Category.ANNOTATION) & optimizer
    result: dict[int, list[int]] = {}
    for mark in np.flatnonzero(marks & (trace.thread >= 0)).tolist():
        start = int(trace.start_ns[mark]) - step.start_ns
        result.setdefault(int(trace.thread[mark]), []).append(start)
    return result
