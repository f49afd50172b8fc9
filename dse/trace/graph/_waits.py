"""Waits of one rank's blocking calls and streams for device work."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from dse.trace._step_graph import TaskRole
from dse.trace.graph._device_work import ROUNDING_NS
from dse.trace.read._rank_trace import CALLS, Category

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.trace.graph._device_work import DeviceWork
    from dse.trace.links._link import Links
    from dse.trace.read._rank_trace import RankTrace

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
#: A call returns at most this long after the work that it waited for has ended, in ns.
_LONGEST_RETURN = 100_000


class Waits:
    """Finds the work that calls and streams wait for.

    Args:
        trace: The trace.
        links: Its links.
        works: Device work of the step.
    """

    def __init__(self, trace: RankTrace, links: Links, works: list[DeviceWork]) -> None:
        self._trace = trace
        launched = [work for work in works if work.launch >= 0]
        start: dict[int, int] = {work.event: int(trace.start_ns[work.launch]) for work in launched}
        launched.sort(key=lambda work: (start[work.event], work.start))
        # Per queue and per thread in order of launch; all in order of end.
        self._queues: dict[tuple[int, int, int], tuple[list[int], list[DeviceWork]]] = {}
        self._threads: dict[int, tuple[list[int], list[DeviceWork]]] = {}
        for work in launched:
            thread = int(trace.thread[work.launch])
            for times, row in (
                self._queues.setdefault(work.queue, ([], [])),
                self._threads.setdefault(thread, ([], [])),
            ):
                times.append(start[work.event])
                row.append(work)
        collectives = [work for work in launched if work.role == TaskRole.COLLECTIVE]
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

    def of_calls(self) -> dict[int, list[DeviceWork]]:
        """Returns the work that each blocking call waits for.

        A call that names its stream or event waits for the last work before it there. Calls in
        older traces name nothing: such a call waits for the work that ended last before the call
        did; if nothing ended during the call, for the last work of its thread if that was a copy.
        """
        trace = self._trace
        blocking = trace.where(*CALLS) & trace.named((*_DEVICE, *_STREAM).__contains__)
        found = {}
        for call in np.flatnonzero(blocking).tolist():
            latest = int(trace.end_ns[call]) + ROUNDING_NS
            waits = [work for work in self._of_call(call) if work.base_end <= latest]
            if waits:
                found[call] = waits
        return found

    def of_streams(self) -> dict[int, list[DeviceWork]]:
        """Returns the work of other streams that device work waits for, by event.

        A wait holds back the next work that is launched to its stream. Older traces name neither
        stream nor event. Then only waits of collectives, and for them, are inferred, from
        PyTorch's order of launches on a thread: a collective waits for the stream that its thread
        used before, and the next other work after a further wait waits for the collective.
        """
        trace = self._trace
        result: dict[int, list[DeviceWork]] = {}
        if not (trace.wait_correlation >= 0).any():
            return self._around_collectives()
        for call, sync in self._sync_of.items():
            if trace.wait_correlation[sync] < 0 or "wait" not in trace.name_of(sync).lower():
                continue
            held = self._next(int(trace.stream[sync]), int(trace.start_ns[call]))
            for cause in self._recorded(sync):
                if held and cause.start < held.start and cause.queue != held.queue:
                    result.setdefault(held.event, []).append(cause)
        return result

    def _around_collectives(self) -> dict[int, list[DeviceWork]]:
        trace = self._trace
        waiting = trace.where(*CALLS) & trace.named(_STREAM_WAIT.__contains__)
        result: dict[int, list[DeviceWork]] = {}
        for call in np.flatnonzero(waiting).tolist():
            start = int(trace.start_ns[call])
            times, row = self._threads.get(int(trace.thread[call]), ([], []))
            at = bisect_right(times, start)
            if at == len(times):
                continue
            held = row[at]
            if held.role == TaskRole.COLLECTIVE:
                other = next(
                    (
                        work
                        for work in reversed(row[max(0, at - 64) : at])
                        if work.role != TaskRole.COLLECTIVE
                    ),
                    None,
                )
                causes = [] if other is None else self._last(other.queue[1], start)
            else:
                causes = self._collectives_before(start, held)[:1]
            causes = [work for work in causes if _is_over(work, held)]
            result.setdefault(held.event, []).extend(causes)
        return result

    def _collectives_before(self, start: int, held: DeviceWork) -> list[DeviceWork]:
        """Returns collectives launched before a moment and over when a work began, last first."""
        times, row = self._collectives
        at = bisect_right(times, start)
        return [work for work in reversed(row[max(0, at - 8) : at]) if _is_over(work, held)]

    def _of_call(self, call: int) -> Iterable[DeviceWork]:
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

    def _last(self, stream: int, before: int) -> list[DeviceWork]:
        """Returns the last work launched to a stream before a moment; -1 means all streams."""
        found = []
        for queue, (times, row) in self._queues.items():
            at = bisect_right(times, before)
            if at and stream in (-1, queue[1]):
                found.append(row[at - 1])
        return found

    def _next(self, stream: int, after: int) -> DeviceWork | None:
        """Returns the first work launched to a stream after a moment."""
        found = [
            (times[at], row[at].start, row[at])
            for queue, (times, row) in self._queues.items()
            if queue[1] == stream and (at := bisect_right(times, after)) < len(times)
        ]
        return min(found, key=lambda item: item[:2])[2] if found else None

    def _recorded(self, sync: int) -> list[DeviceWork]:
        """Returns the last work before the call that recorded the awaited event."""
        at = self._recorded_at.get(int(self._trace.wait_correlation[sync]))
        stream = int(self._trace.wait_stream[sync])
        return [] if at is None or stream < 0 else self._last(stream, at)

    def _inferred(self, call: int, start: int, end: int) -> list[DeviceWork]:
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


def _is_over(work: DeviceWork, held: DeviceWork) -> bool:
    """Returns whether work of another queue had ended when the held-back work started."""
    ended = work.end <= held.start + ROUNDING_NS and work.start < held.start
    return ended and work.queue != held.queue
