"""What blocking calls of one rank, and its streams, wait for."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from dse.trace._events import CALLS, Category
from dse.trace._replay_types import Role
from dse.trace._work import ROUNDING_NS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.trace._events import RankTrace
    from dse.trace._link import Links
    from dse.trace._work import Work

_DEVICE = ("cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize")
_STREAM = (
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "hipStreamSynchronize",
    "hipEventSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
)
_STREAM_WAIT = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")
#: Work that ended longer before the end of a call is not what the call waited for, in ns.
_LONGEST_RETURN = 100_000


class Waits:
    """Looks up which work waits mean.

    Args:
        trace: The trace.
        links: Its links.
        works: Works of the step.
    """

    def __init__(self, trace: RankTrace, links: Links, works: list[Work]) -> None:
        self._trace = trace
        launched = [work for work in works if work.launch >= 0]
        start: dict[int, int] = {work.event: int(trace.start_ns[work.launch]) for work in launched}
        launched.sort(key=lambda work: (start[work.event], work.start))
        # Per lane and per thread in the order of launch; all in the order of end.
        self._lanes: dict[tuple[int, int, int], tuple[list[int], list[Work]]] = {}
        self._threads: dict[int, tuple[list[int], list[Work]]] = {}
        for work in launched:
            thread = int(trace.thread[work.launch])
            for times, row in (
                self._lanes.setdefault(work.lane, ([], [])),
                self._threads.setdefault(thread, ([], [])),
            ):
                times.append(start[work.event])
                row.append(work)
        collectives = [work for work in launched if work.role == Role.COLLECTIVE]
        self._collectives = [start[work.event] for work in collectives], collectives
        self._by_end = sorted(works, key=lambda work: (work.base_end, work.start))
        self._ends = [work.base_end for work in self._by_end]
        syncs = np.flatnonzero(trace.where(Category.SYNC) & (links.launch >= 0)).tolist()
        self._sync_of = {int(links.launch[sync]): sync for sync in syncs}
        self._recorded_at = self._records(syncs)

    def _records(self, syncs: list[int]) -> dict[int, int]:
        """Returns when the call of each awaited correlation started, in ns."""
        trace = self._trace
        wanted = trace.wait_correlation[syncs]
        calls = np.flatnonzero(
            trace.where(*CALLS)
            & np.isin(trace.correlation, wanted[wanted >= 0])
            & (trace.correlation >= 0)
        )
        return dict(
            zip(trace.correlation[calls].tolist(), trace.start_ns[calls].tolist(), strict=True)
        )

    def of_calls(self) -> dict[int, list[Work]]:
        """Returns the works that each blocking call waits for.

        A call that names its stream or event waits for the last work before it there. In older
        traces calls name nothing: such a call waits for what ended last before its own end; where
        nothing ended in the call, for the last work of its thread if that was a copy.
        """
        trace = self._trace
        blocking = np.array(
            [name in _DEVICE or name in _STREAM for name in trace.names], dtype=np.bool_
        )
        found = {}
        for call in np.flatnonzero(trace.where(*CALLS) & blocking[trace.name]).tolist():
            latest = int(trace.end_ns[call]) + ROUNDING_NS
            waits = [work for work in self._of_call(call) if work.base_end <= latest]
            if waits:
                found[call] = waits
        return found

    def of_streams(self) -> dict[int, list[Work]]:
        """Returns what works wait for on other streams, by their event.

        A wait holds back the next work that is launched to its stream. Older traces name neither
        stream nor event. There only waits of collectives, and for them, are told from the order
        of launches on a thread, as PyTorch makes them: a collective waits for the stream that its
        thread used before, and the next other work after a further wait for the collective.
        """
        trace = self._trace
        result: dict[int, list[Work]] = {}
        if not (trace.wait_correlation >= 0).any():
            return self._around_collectives()
        for call, sync in self._sync_of.items():
            if trace.wait_correlation[sync] < 0 or "wait" not in trace.name_of(sync).lower():
                continue
            held = self._next(int(trace.stream[sync]), int(trace.start_ns[call]))
            for cause in self._recorded(sync):
                if held and cause.start < held.start and cause.lane != held.lane:
                    result.setdefault(held.event, []).append(cause)
        return result

    def _around_collectives(self) -> dict[int, list[Work]]:
        trace = self._trace
        waiting = np.array([name in _STREAM_WAIT for name in trace.names], dtype=np.bool_)
        result: dict[int, list[Work]] = {}
        for call in np.flatnonzero(trace.where(*CALLS) & waiting[trace.name]).tolist():
            start = int(trace.start_ns[call])
            times, row = self._threads.get(int(trace.thread[call]), ([], []))
            at = bisect_right(times, start)
            if at == len(times):
                continue
            held = row[at]
            if held.role == Role.COLLECTIVE:
                other = next(
                    (
                        work
                        for work in reversed(row[max(0, at - 64) : at])
                        if work.role != Role.COLLECTIVE
                    ),
                    None,
                )
                causes = [] if other is None else self._last(other.stream, start)
            else:
                causes = self._collectives_before(start, held)[:1]
            causes = [work for work in causes if _is_over(work, held)]
            result.setdefault(held.event, []).extend(causes)
        return result

    def _collectives_before(self, start: int, held: Work) -> list[Work]:
        """Returns collectives launched before a moment and over when a work began, last first."""
        times, row = self._collectives
        at = bisect_right(times, start)
        return [work for work in reversed(row[max(0, at - 8) : at]) if _is_over(work, held)]

    def _of_call(self, call: int) -> Iterable[Work]:
        trace = self._trace
        start = int(trace.start_ns[call])
        sync = self._sync_of.get(call, -1)
        if sync >= 0 and trace.wait_correlation[sync] >= 0:
            return self._recorded(sync)
        if trace.name_of(call) in _DEVICE:
            return self._last(-1, start)
        if sync >= 0:
            named, own = int(trace.wait_stream[sync]), int(trace.stream[sync])
            if max(named, own) >= 0:
                return self._last(named if named >= 0 else own, start)
        return self._inferred(call, start, int(trace.end_ns[call]))

    def _last(self, stream: int, before: int) -> list[Work]:
        """Returns the last works launched to a stream before a moment; -1 means all streams."""
        found = []
        for lane, (times, row) in self._lanes.items():
            at = bisect_right(times, before)
            if at and stream in (-1, lane[1]):
                found.append(row[at - 1])
        return found

    def _next(self, stream: int, after: int) -> Work | None:
        """Returns the first work launched to a stream after a moment."""
        found = [
            (times[at], row[at].start, row[at])
            for lane, (times, row) in self._lanes.items()
            if lane[1] == stream and (at := bisect_right(times, after)) < len(times)
        ]
        return min(found, key=lambda item: item[:2])[2] if found else None

    def _recorded(self, sync: int) -> list[Work]:
        """Returns the last works before the call that recorded the awaited event."""
        at = self._recorded_at.get(int(self._trace.wait_correlation[sync]))
        stream = int(self._trace.wait_stream[sync])
        return [] if at is None or stream < 0 else self._last(stream, at)

    def _inferred(self, call: int, start: int, end: int) -> list[Work]:
        trace = self._trace
        after = bisect_right(self._ends, end + ROUNDING_NS)
        for work in reversed(self._by_end[max(0, after - 64) : after]):
            if work.base_end <= start or work.base_end < end - _LONGEST_RETURN:
                break
            if work.launch < 0 or trace.start_ns[work.launch] <= start:
                return [work]
        times, row = self._threads.get(int(trace.thread[call]), ([], []))
        at = bisect_right(times, start)
        if at and trace.category[row[at - 1].event] == Category.MEMCPY:
            return [row[at - 1]]
        return []


def _is_over(work: Work, held: Work) -> bool:
    """Says whether a work of another lane had ended when another one started."""
    ended = work.end <= held.start + ROUNDING_NS and work.start < held.start
    return ended and work.lane != held.lane
