"""What the recorded range took, from the Kineto trace and the record of the capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace import link, link_execution_trace
from dse.trace.read import DEVICE_WORK
from dse.trace.replay._results import OriginalTime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.trace import ExecutionTrace, ExecutionTraceLinks, Links, RankTrace
    from dse.trace.capture import CaptureRecord
    from dse.trace.replay.read._units import Unit

_STEP = "ProfilerStep#"


def steps_in(et: ExecutionTrace, first: int, after: int) -> int | None:
    """Returns the number of profiler steps that begin in a range; None if none is marked.

    Args:
        et: The execution trace.
        first: First node of the range.
        after: Node after its last.
    """
    return len(_marks(et, first, after)) or None


def _marks(et: ExecutionTrace, first: int, after: int) -> list[int]:
    return [node for node in range(first, after) if et.name_of(node).startswith(_STEP)]


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """Times of units when they were recorded, in seconds; 0 for units that are not in the trace.

    Attributes:
        host_s: On the host; of an opened unit without the units inside it.
        device_s: Of the work that they launched.
        stream: Stream of the longest work of each unit, or -1.
        between_s: Time of work of the device in the range that belongs to no unit, by the name of
            the node around it.
    """

    host_s: tuple[float, ...]
    device_s: tuple[float, ...]
    stream: tuple[int, ...]
    between_s: tuple[tuple[str, float], ...]


class Recording:
    """The Kineto trace of a rank, linked to its execution trace.

    Args:
        et: The execution trace.
        trace: The Kineto trace of the same rank.
    """

    def __init__(self, et: ExecutionTrace, trace: RankTrace) -> None:
        self._et = et
        self._trace = trace
        self._links: Links = link(trace)
        self._et_links: ExecutionTraceLinks = link_execution_trace(et, trace, self._links)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was doubtful about the links."""
        return self._et_links.notes

    def unit_times(self, units: Sequence[Unit], first: int, after: int) -> UnitTimes:
        """Returns the times of units.

        Args:
            units: The units, in order of their nodes.
            first: First node of the range.
            after: Node after its last.
        """
        et, trace = self._et, self._trace
        owner = np.full(len(et), -1, dtype=np.int64)
        place = {unit.node: at for at, unit in enumerate(units)}
        for node in range(len(et)):
            parent = int(et.parent[node])
            inherited = owner[parent] if 0 <= parent < node else -1
            owner[node] = place.get(node, inherited)
        host_s = np.zeros(len(units))
        for at, unit in enumerate(units):
            event = int(self._et_links.event[unit.node])
            if event < 0:
                continue
            duration_s = float(trace.duration_ns[event]) * 1e-9
            host_s[at] += duration_s
            parent = int(et.parent[unit.node])
            if 0 <= parent < unit.node and owner[parent] >= 0:
                # Inside an opened unit, which keeps what is left.
                host_s[owner[parent]] -= duration_s
        device_s, longest = np.zeros(len(units)), np.zeros(len(units))
        stream = np.full(len(units), -1, dtype=np.int64)
        between_s: dict[str, float] = {}
        for event, node in self._work(first, after):
            duration_s = float(trace.duration_ns[event]) * 1e-9
            unit_at = int(owner[node])
            if unit_at < 0:
                name = et.name_of(node)
                between_s[name] = between_s.get(name, 0.0) + duration_s
                continue
            device_s[unit_at] += duration_s
            if duration_s > longest[unit_at]:
                longest[unit_at] = duration_s
                stream[unit_at] = trace.stream[event]
        return UnitTimes(
            tuple(np.maximum(host_s, 0).tolist()),
            tuple(device_s.tolist()),
            tuple(stream.tolist()),
            tuple(between_s.items()),
        )

    def _work(self, first: int, after: int) -> Iterator[tuple[int, int]]:
        """Yields the work of devices that nodes of the range launched, each with its node."""
        for event in np.flatnonzero(self._trace.where(*DEVICE_WORK)).tolist():
            node = self._node_of(int(self._links.operator[event]))
            if first <= node < after:
                yield event, node

    def _node_of(self, event: int) -> int:
        """Returns the node of the innermost linked operator around an event, or -1."""
        while event >= 0:
            node = int(self._et_links.node[event])
            if node >= 0:
                return node
            event = int(self._links.parent[event])
        return -1

    def original(
        self, first: int, after: int, record: CaptureRecord | None, *, whole: bool
    ) -> OriginalTime:
        """Returns the time of the range.

        Args:
            first: First node of the range.
            after: Node after its last.
            record: Record of the capture, if there is one.
            whole: Whether the range is the whole trace, to which the record's times apply.
        """
        et, trace = self._et, self._trace
        nodes = np.arange(first, after)
        events = self._et_links.event[nodes]
        marks = _marks(et, first, after)
        marked = self._et_links.event[marks] if marks else self._et_links.event[:0]
        if len(marked) and (marked >= 0).all():
            span_s = float(trace.duration_ns[marked].sum()) * 1e-9
            words = "1 step" if len(marks) == 1 else f"{len(marks)} steps"
            source = f"{words} of the Kineto trace"
        elif marks and trace.steps:
            # Traces of different runs of one job.
            marked_ns = sum(step.end_ns - step.start_ns for step in trace.steps)
            span_s = marked_ns * 1e-9 / len(trace.steps) * len(marks)
            source = f"{len(marks)} times the mean step of the Kineto trace"
        else:
            events = events[events >= 0]
            if not len(events):
                unknown = "the Kineto trace has none of the nodes"
                return OriginalTime(steps_in(et, first, after), source=unknown)
            begin = int(trace.start_ns[events].min())
            launched = [event for event, _ in self._work(first, after)]
            end = int(trace.end_ns[[*events.tolist(), *launched]].max())
            span_s = (end - begin) * 1e-9
            source = "first to last operator in the Kineto trace"
        steps = steps_in(et, first, after)
        unprofiled_s = None
        if whole and record is not None and record.step_s_unprofiled and steps:
            unprofiled_s = record.step_s_unprofiled * steps
        return OriginalTime(steps, span_s, unprofiled_s, None, source)
