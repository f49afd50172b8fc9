"""Tasks of one rank: threads, launches, streams, and their dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.trace._step_graph import TaskRole, Unexplained
from dse.trace.cpu._waits import CpuWaits, cpu_waits
from dse.trace.graph._causes import starts, usual_delays
from dse.trace.graph._device_tasks import DeviceTasks
from dse.trace.graph._device_work import device_work, find_launches
from dse.trace.graph._handover import handovers
from dse.trace.graph._host import host_rows
from dse.trace.graph._host_tasks import HostTasks
from dse.trace.graph._waits import Waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.trace._step_graph import TracedStep
    from dse.trace.graph._device_work import DeviceWork
    from dse.trace.graph._draft import Draft
    from dse.trace.graph._handover import Handover
    from dse.trace.graph._host import Segment
    from dse.trace.links._link import Links
    from dse.trace.read._rank_trace import RankTrace

#: Unexplained gaps of threads are reported from this length on, in ns.
_LONG_GAP = 100_000


@dataclass(frozen=True, slots=True)
class RankTasks:
    """Tasks of one rank in the draft.

    Attributes:
        task_of: Device event → its task.
        ends: Tasks of which the last ends the step.
        unexplained: Waits without a cause.
        without_launch: Number of device events whose launch is not in the step.
    """

    task_of: dict[int, int]
    ends: tuple[int, ...]
    unexplained: Unexplained
    without_launch: int


def add_rank(draft: Draft, trace: RankTrace, links: Links, step: TracedStep) -> RankTasks:
    """Adds one rank's tasks to a draft.

    Args:
        draft: The draft of the whole graph.
        trace: The rank's trace.
        links: Its links.
        step: The step covered.
    """
    host = host_rows(trace, links, step)
    spans = {
        part.event: (part.start, part.end)
        for row in host.rows.values()
        for part in row
        if part.role == TaskRole.CALL
    }
    works = device_work(trace, links, step, set(spans), host.outer)
    launches = find_launches(trace, works, spans)
    of_calls = launches.blocked
    of_streams: dict[int, list[DeviceWork]] = {}
    for_gloo = CpuWaits()
    if trace.has_kernels:
        waits = Waits(trace, links, works)
        for call, awaited in waits.of_calls().items():
            of_calls.setdefault(host.outer.get(call, call), []).extend(awaited)
        of_streams = waits.of_streams()
    else:
        for_gloo = cpu_waits(trace, host.rows, step, works)
    found = handovers(trace, host.rows, step.start_ns)
    threads = HostTasks(draft, trace, step, host.rows, found)
    threads.add(launches, of_calls, for_gloo.awaited)

    usual = usual_delays(works, launches.issued)
    causes = starts(works, launches.issued, of_streams, usual)
    devices = DeviceTasks(draft, trace, step, threads.launch, launches.issued)
    for work, cause in zip(works, causes, strict=True):
        devices.add(work, cause)
    for task, awaited in threads.waiting:
        draft.after[task] += [devices.task_of[work.event] for work in awaited]

    unknown = [cause.unexplained for cause in causes if cause.unexplained]
    unknown += _lonely_gaps(host.rows, found, set(for_gloo.awaited), step.thread)
    seconds = sum(unknown) / 1e9
    ends = (*threads.ends.values(), *devices.ends.values())
    if step.thread >= 0:
        # A step ends no earlier than its collectives.
        unfinished = (devices.task_of[work.event] for work in for_gloo.open)
        ends = (threads.ends[step.thread], *unfinished)
    return RankTasks(
        task_of=devices.task_of,
        ends=ends,
        unexplained=Unexplained(len(unknown), seconds, seconds / step.measured_s),
        without_launch=sum(work.launch < 0 for work in works),
    )


def _lonely_gaps(
    rows: dict[int, list[Segment]],
    found: tuple[Handover, ...],
    awaited: set[tuple[int, int]],
    main: int,
) -> Iterator[int]:
    """Yields the long gaps of all threads but the main one that no hand-over or wait explains."""
    if main < 0:
        begins = {
            thread: next((part.start for part in row if part.role != TaskRole.HOST_GAP), -1)
            for thread, row in rows.items()
        }
        known = {thread: start for thread, start in begins.items() if start >= 0}
        main = min(known, key=known.__getitem__, default=-1)
    explained = set(awaited)
    for handover in found:
        explained.add((handover.worker, handover.first - 1))
        explained.add((handover.caller, handover.wakes))
        explained.update((handover.caller, quiet) for quiet, _ in handover.returns)
    for thread, row in rows.items():
        for at, part in enumerate(row):
            long = part.role == TaskRole.HOST_GAP and part.end - part.start >= _LONG_GAP
            if long and thread != main and (thread, at) not in explained:
                yield part.end - part.start
