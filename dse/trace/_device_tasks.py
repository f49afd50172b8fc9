"""Tasks of the devices of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.trace._replay_types import Role

if TYPE_CHECKING:
    from dse.trace._causes import Start
    from dse.trace._draft import Draft
    from dse.trace._events import RankTrace
    from dse.trace._replay_types import TracedStep
    from dse.trace._work import Work


class DeviceTasks:
    """Adds the tasks of one rank's devices to a draft, and knows them afterwards.

    Delays of launches have lanes of their own, as many for each stream as there were launches on
    their way at once.

    Args:
        draft: The draft of the whole graph.
        trace: The rank's trace.
        step: What to replay.
        launch: Event of a device → the task at whose end it was issued.
        issued: Event of a device → when it was issued, in ns after the step's start.

    Attributes:
        task_of: Event of a device → its task.
        ends: Last task of each lane.
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
        self._under_way: dict[tuple[int, int, int], list[int]] = {}
        self.task_of: dict[int, int] = {}
        self.ends: dict[tuple[int, int, int], int] = {}

    def add(self, work: Work, cause: Start) -> None:
        """Adds a work with its delays; works come in order of start."""
        device, stream, number = work.lane
        name = f"device {device} stream {stream}"
        # Kernels whose device is not told have no number of it either.
        if device < 0 and not self._trace.has_kernels:
            name = f"gloo of thread {self._trace.threads[stream].thread}"
        name += f" ({number + 1})" if number else ""
        lane = (self._rank, name)
        after = self._arrival(work, cause.delay, name)
        waits = [self.task_of[other.event] for other in cause.waits]
        opens = work.previous is None and not after
        if opens and self._zero:
            self._draft.add("later start", Role.LEAD_IN, lane, (0, self._zero))
        gap = cause.gap
        if gap:
            # What the stream waits for comes before the gap; the launch may come during it.
            span = (self._zero + work.start - gap, gap)
            self._draft.add("gap", Role.STREAM_GAP, lane, span, after=waits)
            waits = []
        task = self._draft.add(
            self._trace.name_of(work.event),
            work.role,
            lane,
            (self._zero + work.start, work.end - work.start),
            event=work.event,
            after=[*after, *waits],
        )
        self.task_of[work.event] = self.ends[work.lane] = task

    def _arrival(self, work: Work, delay: int, name: str) -> list[int]:
        """Returns the task at whose end a launch arrives; none for work without a launch."""
        if work.event not in self._launch:
            return []
        launch = self._launch[work.event]
        if not delay:
            return [launch]
        issued = self._issued[work.event]
        under_way = self._under_way.setdefault(work.lane, [])
        number = _free(under_way, issued, issued + delay)
        lane = (self._rank, f"launches of {name}, {number + 1}")
        span = (self._zero + issued, delay)
        return [self._draft.add("launch delay", Role.LAUNCH_DELAY, lane, span, after=[launch])]


def _free(ends: list[int], start: int, end: int) -> int:
    """Takes the lane that has been free for longest, or a new one; returns its number."""
    at = min(range(len(ends)), key=ends.__getitem__, default=-1)
    if at < 0 or ends[at] > start:
        ends.append(end)
        return len(ends) - 1
    ends[at] = end
    return at
