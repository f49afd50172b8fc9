"""Graph of a traced step: the graph, the roles of its tasks, and the step it covers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from dse.graph import TaskKind

if TYPE_CHECKING:
    from dse.graph import ExecutionGraph
    from dse.trace.read._rank_trace import Bytes, Ints, Longs


class TaskRole(IntEnum):
    """What a task in the graph of a trace stands for."""

    #: Before the rank's step begins, if another rank's began earlier; not part of the step.
    LEAD_IN = 0
    #: A top-level operator between its calls; where the CPU is the device, an operator's own time
    #: between the operators that it calls.
    HOST_WORK = 1
    #: A thread between top-level operators: Python, or idle.
    HOST_GAP = 2
    #: A runtime or driver call; for a blocking one its time without the wait. Where the CPU is the
    #: device also the c10d operator that hands a collective to gloo.
    CALL = 3
    #: Part of a blocking call, or of a gap, after the end of the wait.
    AFTER_WAIT = 4
    #: From the launch until the device could begin.
    LAUNCH_DELAY = 5
    #: From the end of what the stream waited for to its next work.
    STREAM_GAP = 6
    #: A kernel; where the CPU is the device, an operator's own time if it computes.
    KERNEL = 7
    COPY = 8
    FILL = 9
    COLLECTIVE = 10

    @property
    def kind(self) -> TaskKind:
        """What its stream is occupied with."""
        return _KINDS.get(self, TaskKind.HOST)


_KINDS = {
    TaskRole.KERNEL: TaskKind.COMPUTE,
    TaskRole.FILL: TaskKind.COMPUTE,
    TaskRole.COPY: TaskKind.COPY,
    TaskRole.COLLECTIVE: TaskKind.COLLECTIVE,
}

#: Roles that keep a device busy with computation or copies.
COMPUTING = (TaskRole.KERNEL, TaskRole.COPY, TaskRole.FILL)


@dataclass(frozen=True, slots=True)
class TracedStep:
    """The part of one rank's trace that a graph covers.

    Attributes:
        rank: Global rank.
        start_ns: Start after the trace's base, in ns.
        end_ns: End after the trace's base, in ns.
        cut_by: `profiler step N`, `annotation NAME` or `whole trace`.
        offset_s: Start after the earliest start of all ranks of the graph, in seconds.
        thread: Thread of the annotation; -1 for a whole trace, which ends at its last event.
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
    """Waits of one rank without a known cause; the graph keeps them as measured.

    They include waits for work that was launched before the trace or step began.

    Attributes:
        count: Number of such waits.
        seconds: Their sum beyond the usual delays, in seconds.
        share: The sum as a fraction of the measured step; waits of several streams may overlap.
    """

    count: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, eq=False)
class TraceGraph:
    """An execution graph made from traces; arrays have shape `(tasks,)`.

    Attributes:
        graph: The graph. Its time zero is the earliest start of the ranks' steps.
        role: A `TaskRole`.
        rank: Rank of each task.
        event: Index of the task's event in the trace of its rank, -1 for gaps and delays. A call
            may be several tasks, and so may an operator where the CPU is the device.
        measured_start_ns: Measured start of the task after time zero, in ns; for tasks that wait
            (members of collectives, blocking calls) the end of the wait, for gaps on streams the
            last moment at which they can begin.
        steps: The covered part of each rank, in the order of the traces.
        end_tasks: For each rank the tasks of which the last ends its step.
        unexplained: For each rank the waits without a cause.
        notes: Assumptions and missing data.
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
