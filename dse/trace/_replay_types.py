"""What a graph made from traces consists of: roles of its tasks, the step it covers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.graph import ExecutionGraph
    from dse.trace._events import Bytes, Ints, Longs


class Role(IntEnum):
    """What a task of a replayed trace stands for."""

    #: Before the rank's step begins, where another rank's began earlier; no part of the step.
    LEAD_IN = 0
    #: A top-level operator between its calls; where the CPU is the device, an operator's own time
    #: between the operators that it calls.
    HOST_WORK = 1
    #: A thread between top-level operators: Python, or nothing.
    HOST_GAP = 2
    #: A runtime or driver call; of a blocking one what it would take if nothing were waited for.
    #: Where the CPU is the device also the operator of c10d that hands a collective to gloo.
    CALL = 3
    #: Part of a blocking call, or of a gap, that comes after what was waited for.
    AFTER_WAIT = 4
    #: From the launch until the device could begin.
    LAUNCH_DELAY = 5
    #: From the end of what the stream waited for to the next work.
    STREAM_GAP = 6
    #: A kernel; where the CPU is the device, own time of an operator that computes.
    KERNEL = 7
    COPY = 8
    FILL = 9
    COLLECTIVE = 10


#: Roles of work that keeps a device busy with computation or copies.
COMPUTING = (Role.KERNEL, Role.COPY, Role.FILL)


@dataclass(frozen=True, slots=True)
class TracedStep:
    """The part of one rank's trace that a graph covers.

    Attributes:
        rank: Global rank.
        start_ns: Start after the trace's base, in ns.
        end_ns: End after the trace's base, in ns.
        cut_by: `profiler step N`, `annotation NAME` or `whole trace`.
        offset_s: Start after the earliest start of all ranks of the graph, in seconds.
        thread: Thread of the annotation; -1 for a whole trace, which ends with its last event.
    """

    rank: int
    start_ns: int
    end_ns: int
    cut_by: str
    offset_s: float = 0.0
    thread: int = -1

    @property
    def measured_s(self) -> float:
        """Length of the step as measured, in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Unexplained:
    """Waits of one rank for which no cause was found; they are kept as they were measured.

    Waits for work that was launched before the trace or step began are among them.

    Attributes:
        count: Number of such waits.
        seconds: Their sum beyond the usual delays, in seconds.
        share: The sum as a fraction of the measured step; waits of several lanes may overlap.
    """

    count: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, eq=False)
class TraceGraph:
    """An execution graph made from traces; arrays have shape `(tasks,)`.

    Attributes:
        graph: The graph. Its time zero is the earliest start of the ranks' steps.
        role: A `Role`.
        rank: Rank of each task.
        event: Index of the task's event in the trace of its rank, -1 for gaps and delays. A call
            may be several tasks, and so may an operator where the CPU is the device.
        measured_start_ns: Measured start of the task after time zero, in ns; of tasks that wait
            (members of meetings, blocking calls) the moment at which the wait was over, of gaps on
            streams the last moment at which they can begin.
        steps: The covered part of each rank, in the order of the traces.
        end_tasks: For each rank the tasks of which the last ends its step.
        unexplained: For each rank the waits without a cause.
        notes: What was assumed or is missing.
    """

    graph: ExecutionGraph
    role: Bytes
    rank: Ints
    event: Longs
    measured_start_ns: Longs
    steps: tuple[TracedStep, ...]
    end_tasks: tuple[tuple[int, ...], ...]
    unexplained: tuple[Unexplained, ...]
    notes: tuple[str, ...] = ()
