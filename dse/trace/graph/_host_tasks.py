"""Tasks of the host threads of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.trace._step_graph import TaskRole
from dse.trace.graph._device_work import ROUNDING_NS

if TYPE_CHECKING:
    from dse.trace._step_graph import TracedStep
    from dse.trace.graph._device_work import DeviceWork, Launches
    from dse.trace.graph._draft import Draft
    from dse.trace.graph._handover import Handover
    from dse.trace.graph._host import Segment
    from dse.trace.read._rank_trace import RankTrace

#: Thread and index of its segment.
_Place = tuple[int, int]


class HostTasks:
    """Adds the tasks of one rank's threads to a draft and keeps track of them.

    Args:
        draft: The draft of the whole graph.
        trace: The rank's trace.
        step: The step covered.
        rows: Segments of each thread.
        handovers: Hand-overs between these threads.

    Attributes:
        launch: Device event → the task at whose end it was issued.
        ends: Last task of each thread.
        waiting: Tasks that wait for device work, with that work.
    """

    def __init__(
        self,
        draft: Draft,
        trace: RankTrace,
        step: TracedStep,
        rows: dict[int, list[Segment]],
        handovers: tuple[Handover, ...],
    ) -> None:
        self._draft = draft
        self._trace = trace
        self._rank = step.rank
        self._zero = round(step.offset_s * 1e9)
        self._rows = rows
        self._woken: dict[_Place, Handover] = {}
        self._wakes: dict[_Place, list[Handover]] = {}
        self._returns: dict[_Place, list[_Place]] = {}
        for found in handovers:
            self._woken[found.worker, found.first] = found
            self._wakes.setdefault((found.caller, found.wakes), []).append(found)
            for quiet, segment in found.returns:
                place = (found.caller, quiet)
                self._returns.setdefault(place, []).append((found.worker, segment))
        self._awaited: dict[_Place, list[DeviceWork]] = {}
        self._first: dict[_Place, int] = {}
        self._last: dict[_Place, int] = {}
        self._cut: dict[_Place, int] = {}
        self.launch: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.waiting: list[tuple[int, list[DeviceWork]]] = []

    def add(
        self,
        launches: Launches,
        waits: dict[int, list[DeviceWork]],
        awaited: dict[tuple[int, int], list[DeviceWork]],
    ) -> None:
        """Adds all tasks.

        Args:
            launches: Launches of the calls.
            waits: Call → work that it waits for.
            awaited: Thread and index of its segment → collectives that it waits for.
        """
        self._awaited = awaited
        for thread, row in self._rows.items():
            name = (self._rank, f"thread {self._trace.threads[thread].thread}")
            for at, part in enumerate(row):
                place = (thread, at)
                if part.role == TaskRole.HOST_GAP and (thread, at + 1) in self._woken:
                    continue
                if place in self._woken:
                    self._add_wake(name, place, part)
                elif at == 0 and self._zero:
                    self._draft.add("later start", TaskRole.LEAD_IN, name, (0, self._zero))
                if part.role == TaskRole.CALL:
                    self._add_call(name, place, part, launches, waits.get(part.event, []))
                else:
                    self._add_plain(name, place, part)
                if place in awaited:
                    held = self._first if part.role == TaskRole.CALL else self._last
                    self.waiting.append((held[place], awaited[place]))
                self.ends[thread] = self._last[place]
        for place, workers in self._returns.items():
            self._draft.after[self._last[place]] += [self._last[other] for other in workers]
        for place, found in self._woken.items():
            self._draft.after[self._first[place]].append(self._cut[found.caller, found.wakes])

    def _span(self, start: int, end: int) -> tuple[int, int]:
        return self._zero + start, end - start

    def _task(
        self,
        role: TaskRole,
        thread: tuple[int, str],
        place: _Place,
        part: Segment,
        start: int,
        end: int,
    ) -> int:
        name = self._trace.name_of(part.event) if part.event >= 0 else "gap"
        task = self._draft.add(name, role, thread, self._span(start, end), event=part.event)
        self._first.setdefault(place, task)
        self._last[place] = task
        return task

    def _cut_at(self, place: _Place) -> int:
        """Returns when a quiet segment wakes its first worker."""
        return min(self._rows[found.worker][found.first].start for found in self._wakes[place])

    def _add_wake(self, thread: tuple[int, str], place: _Place, part: Segment) -> None:
        found = self._woken[place]
        span = self._span(self._cut_at((found.caller, found.wakes)), part.start)
        self._first[place] = self._draft.add("wake", TaskRole.HOST_GAP, thread, span)

    def _add_plain(self, thread: tuple[int, str], place: _Place, part: Segment) -> None:
        """Adds an operator or gap, cut where it wakes a thread and where one returns to it.

        A segment that lasts until a collective has ended begins at that end: the time that the
        thread needs until it waits is unknown, and short.
        """
        now, role = part.start, part.role
        if place in self._wakes:
            cut = self._cut_at(place)
            self._cut[place] = self._task(role, thread, place, part, now, cut)
            now = cut
        awaited = self._returns.get(place, [])
        if awaited:
            role = TaskRole.AFTER_WAIT
            now = max(now, *(self._rows[worker][other].end for worker, other in awaited))
        works = self._awaited.get(place, [])
        over = max((min(work.end, part.end) for work in works), default=-1)
        if over > part.start or (works and role == TaskRole.HOST_GAP):
            role = TaskRole.AFTER_WAIT
            now = max(now, over)
        self._task(role, thread, place, part, now, part.end)

    def _add_call(
        self,
        thread: tuple[int, str],
        place: _Place,
        part: Segment,
        launches: Launches,
        awaited: list[DeviceWork],
    ) -> None:
        """Adds a call, cut where its launches were issued; after that it may wait."""
        by_cut: dict[int, list[DeviceWork]] = {}
        for work in launches.launched.get(part.event, ()):
            by_cut.setdefault(launches.issued[work.event], []).append(work)
        now = part.start
        for cut in sorted(by_cut):
            task = self._task(TaskRole.CALL, thread, place, part, now, cut)
            self.launch.update((work.event, task) for work in by_cut[cut])
            now = cut
        latest = part.end + ROUNDING_NS
        waits = [work for work in dict.fromkeys(awaited) if work.end <= latest]
        if waits or now < part.end or not by_cut:
            over = max([now, *(min(work.end, part.end) for work in waits)])
            role = TaskRole.AFTER_WAIT if waits and by_cut else TaskRole.CALL
            task = self._task(role, thread, place, part, over, part.end)
            if waits:
                self.waiting.append((task, waits))
