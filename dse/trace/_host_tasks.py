"""Tasks of the threads of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.trace._replay_types import Role
from dse.trace._work import ROUNDING_NS

if TYPE_CHECKING:
    from dse.trace._draft import Draft
    from dse.trace._events import RankTrace
    from dse.trace._handover import Handover
    from dse.trace._host import Segment
    from dse.trace._issue import Issues
    from dse.trace._replay_types import TracedStep
    from dse.trace._work import Work

#: Thread and number of its segment.
_Place = tuple[int, int]


class HostTasks:
    """Adds the tasks of one rank's threads to a draft, and knows them afterwards.

    Args:
        draft: The draft of the whole graph.
        trace: The rank's trace.
        step: What to replay.
        rows: Segments of each thread.
        found: Hand-overs between these threads.

    Attributes:
        launch: Event of a device → the task at whose end it was issued.
        ends: Last task of each thread.
        waiting: Tasks that wait for works, and these works.
    """

    def __init__(
        self,
        draft: Draft,
        trace: RankTrace,
        step: TracedStep,
        rows: dict[int, list[Segment]],
        found: tuple[Handover, ...],
    ) -> None:
        self._draft = draft
        self._trace = trace
        self._rank = step.rank
        self._zero = round(step.offset_s * 1e9)
        self._rows = rows
        self._woken: dict[_Place, Handover] = {(one.worker, one.first): one for one in found}
        self._wakes: dict[_Place, list[Handover]] = {}
        self._returns: dict[_Place, list[_Place]] = {}
        for one in found:
            self._wakes.setdefault((one.caller, one.wakes), []).append(one)
            for quiet, segment in one.returns:
                self._returns.setdefault((one.caller, quiet), []).append((one.worker, segment))
        self._awaited: dict[_Place, list[Work]] = {}
        self._first: dict[_Place, int] = {}
        self._last: dict[_Place, int] = {}
        self._cut: dict[_Place, int] = {}
        self.launch: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.waiting: list[tuple[int, list[Work]]] = []

    def add(
        self,
        issued: Issues,
        waits: dict[int, list[Work]],
        awaited: dict[tuple[int, int], list[Work]],
    ) -> None:
        """Adds all tasks.

        Args:
            issued: What calls launched.
            waits: Call → works that it waits for.
            awaited: Thread and number of its segment → collectives that it waits for.
        """
        self._awaited = awaited
        for thread, row in self._rows.items():
            lane = (self._rank, f"thread {self._trace.threads[thread].thread}")
            for at, part in enumerate(row):
                place = (thread, at)
                if part.role == Role.HOST_GAP and (thread, at + 1) in self._woken:
                    continue
                if place in self._woken:
                    self._add_wake(lane, place, part)
                elif at == 0 and self._zero:
                    self._draft.add("later start", Role.LEAD_IN, lane, (0, self._zero))
                if part.role == Role.CALL:
                    self._add_call(lane, place, part, issued, waits.get(part.event, []))
                else:
                    self._add_plain(lane, place, part)
                if place in awaited:
                    held = self._first if part.role == Role.CALL else self._last
                    self.waiting.append((held[place], awaited[place]))
                self.ends[thread] = self._last[place]
        for place, workers in self._returns.items():
            self._draft.after[self._last[place]] += [self._last[other] for other in workers]
        for place, one in self._woken.items():
            self._draft.after[self._first[place]].append(self._cut[one.caller, one.wakes])

    def _span(self, start: int, end: int) -> tuple[int, int]:
        return self._zero + start, end - start

    def _task(
        self,
        role: Role,
        lane: tuple[int, str],
        place: _Place,
        part: Segment,
        start: int,
        end: int,
    ) -> int:
        name = self._trace.name_of(part.event) if part.event >= 0 else "gap"
        task = self._draft.add(name, role, lane, self._span(start, end), event=part.event)
        self._first.setdefault(place, task)
        self._last[place] = task
        return task

    def _cut_at(self, place: _Place) -> int:
        """Returns when a quiet segment wakes its first worker."""
        return min(self._rows[one.worker][one.first].start for one in self._wakes[place])

    def _add_wake(self, lane: tuple[int, str], place: _Place, part: Segment) -> None:
        one = self._woken[place]
        span = self._span(self._cut_at((one.caller, one.wakes)), part.start)
        self._first[place] = self._draft.add("wake", Role.HOST_GAP, lane, span)

    def _add_plain(self, lane: tuple[int, str], place: _Place, part: Segment) -> None:
        """Adds an operator or gap, cut where it wakes a thread and where one returns to it.

        What lasts until a collective has ended begins with that end: how long the thread would
        have taken until its wait is not known, and is short.
        """
        now, role = part.start, part.role
        if place in self._wakes:
            cut = self._cut_at(place)
            self._cut[place] = self._task(role, lane, place, part, now, cut)
            now = cut
        awaited = self._returns.get(place, [])
        if awaited:
            role = Role.AFTER_WAIT
            now = max(now, *(self._rows[worker][other].end for worker, other in awaited))
        works = self._awaited.get(place, [])
        over = max((min(work.end, part.end) for work in works), default=-1)
        if over > part.start or (works and role == Role.HOST_GAP):
            role = Role.AFTER_WAIT
            now = max(now, over)
        self._task(role, lane, place, part, now, part.end)

    def _add_call(
        self,
        lane: tuple[int, str],
        place: _Place,
        part: Segment,
        issued: Issues,
        awaited: list[Work],
    ) -> None:
        """Adds a call, cut where its launches were issued; after that it may wait."""
        by_cut: dict[int, list[Work]] = {}
        for work in issued.launched.get(part.event, ()):
            by_cut.setdefault(issued.at[work.event], []).append(work)
        now = part.start
        for cut in sorted(by_cut):
            task = self._task(Role.CALL, lane, place, part, now, cut)
            self.launch.update((work.event, task) for work in by_cut[cut])
            now = cut
        latest = part.end + ROUNDING_NS
        waits = [work for work in dict.fromkeys(awaited) if work.end <= latest]
        if waits or now < part.end or not by_cut:
            over = max([now, *(min(work.end, part.end) for work in waits)])
            role = Role.AFTER_WAIT if waits and by_cut else Role.CALL
            task = self._task(role, lane, place, part, over, part.end)
            if waits:
                self.waiting.append((task, waits))
