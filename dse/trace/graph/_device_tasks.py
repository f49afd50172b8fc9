"""Tasks of the device streams of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.trace._step_graph import TaskRole

if TYPE_CHECKING:
    from dse.trace._step_graph import TracedStep
    from dse.trace.graph._causes import Start
    from dse.trace.graph._device_work import DeviceWork
    from dse.trace.graph._draft import Draft
    from dse.trace.read._rank_trace import RankTrace


class DeviceTasks:
    """Adds the tasks of one rank's devices to a draft and keeps track of them.

    Launch delays have separate streams: as many per device stream as launches were in flight at
    once.

    Args:
        draft: The draft of the whole graph.
        trace: The rank's trace.
        step: The step covered.
        launch: Device event → the task at whose end it was issued.
        issued: Device event → when it was issued, in ns after the step's start.

    Attributes:
        task_of: Device event → its task.
        ends: Last task of each queue.
    """

    def __init__(
        self,
        draft: Draft,
        trace: RankTrace,
        step: TracedStep,
        launch: dict[int, int],
        issued: dict[int, int],
    ) -> None:
        self._draft = draft
        self._trace = trace
        self._rank = step.rank
        self._zero = round(step.offset_s * 1e9)
        self._launch = launch
        self._issued = issued
        self._in_flight: dict[tuple[int, int, int], list[int]] = {}
        self.task_of: dict[int, int] = {}
        self.ends: dict[tuple[int, int, int], int] = {}

    def add(self, work: DeviceWork, cause: Start) -> None:
        """Adds one piece of work with its delays; to be called in order of start."""
        device, number, queue = work.queue
        name = f"device {device} stream {number}"
        # A kernel may lack a device number, too; it is not gloo's.
        if device < 0 and not self._trace.has_kernels:
            name = f"gloo of thread {self._trace.threads[number].thread}"
        name += f" ({queue + 1})" if queue else ""
        stream = (self._rank, name)
        after = self._arrival(work, cause.delay, name)
        waits = [self.task_of[other.event] for other in cause.waits]
        opens = work.previous is None and not after
        if opens and self._zero:
            self._draft.add("later start", TaskRole.LEAD_IN, stream, (0, self._zero))
        gap = cause.gap
        if gap:
            # The gap follows what the stream waits for; the launch may arrive during it.
            span = (self._zero + work.start - gap, gap)
            self._draft.add("gap", TaskRole.STREAM_GAP, stream, span, after=waits)
            waits = []
        task = self._draft.add(
            self._trace.name_of(work.event),
            work.role,
            stream,
            (self._zero + work.start, work.end - work.start),
            event=work.event,
            after=[*after, *waits],
        )
        self.task_of[work.event] = self.ends[work.queue] = task

    def _arrival(self, work: DeviceWork, delay: int, name: str) -> list[int]:
        """Returns the task at whose end a launch arrives; empty for work without a launch."""
        if work.event not in self._launch:
            return []
        launch = self._launch[work.event]
        if not delay:
            return [launch]
        issued = self._issued[work.event]
        in_flight = self._in_flight.setdefault(work.queue, [])
        number = _free(in_flight, issued, issued + delay)
        stream = (self._rank, f"launches of {name}, {number + 1}")
        span = (self._zero + issued, delay)
        return [
            self._draft.add("launch delay", TaskRole.LAUNCH_DELAY, stream, span, after=[launch])
        ]


def _free(ends: list[int], start: int, end: int) -> int:
    """Takes the stream that has been free for longest, or a new one; returns its number."""
    at = min(range(len(ends)), key=ends.__getitem__, default=-1)
    if at < 0 or ends[at] > start:
        ends.append(end)
        return len(ends) - 1
    ends[at] = end
    return at
