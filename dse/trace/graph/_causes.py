"""Cause of each start of device work.

Work starts when its stream is free, its launch has arrived and the work it waits for on other
streams has ended. Measured times show which of these came last; the device's reaction time after
it is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace.graph._device_work import ROUNDING_NS

if TYPE_CHECKING:
    from dse.trace.graph._device_work import DeviceWork

#: Delays up to this, or a multiple of the usual one, need no other explanation, in ns.
_PLAIN_DELAY = 10_000
_USUAL_DELAYS = 3
#: Longer delays do not count as usual, in ns.
_LONGEST_USUAL = 100_000
#: Most recent ends that are considered as a cause.
_LOOK_BACK = 64


@dataclass(frozen=True, slots=True)
class Start:
    """Why device work started when it did.

    Attributes:
        delay: From the launch until the device could begin, in ns.
        gap: From the end of what the stream waited for to the start, in ns.
        waits: Work of other streams that it waits for.
        unexplained: Part of the delay or gap without a cause, in ns.
    """

    delay: int
    gap: int
    waits: tuple[DeviceWork, ...]
    unexplained: int


@dataclass(frozen=True, slots=True)
class Usual:
    """Usual delays of one trace, in ns.

    Attributes:
        delay: From a launch to the start on a free stream.
        gap: Between work and the next on its stream, if both were launched long before.
    """

    delay: int
    gap: int

    @property
    def longest_delay(self) -> int:
        """Longest delay that needs no explanation, in ns."""
        return max(_PLAIN_DELAY, _USUAL_DELAYS * self.delay)

    @property
    def longest_gap(self) -> int:
        """Longest gap that needs no explanation, in ns."""
        return max(_PLAIN_DELAY, _USUAL_DELAYS * self.gap)


def usual_delays(works: list[DeviceWork], issued: dict[int, int]) -> Usual:
    """Returns the lower quartiles of delays on free streams, and of gaps on busy ones.

    The lower quartile excludes delays that hide a wait; these are the longer ones.

    Args:
        works: Work in order of start.
        issued: Event → when its launch was issued, in ns after the step's start.
    """
    delays, gaps = [], []
    for work in works:
        if work.event not in issued:
            continue
        at = issued[work.event]
        free = work.previous.end if work.previous else 0
        if free <= at and work.start - at <= _LONGEST_USUAL:
            delays.append(work.start - at)
        elif free > at + _PLAIN_DELAY and work.start - free <= _LONGEST_USUAL:
            gaps.append(work.start - free)
    return Usual(_quartile(delays), _quartile(gaps))


def _quartile(values: list[int]) -> int:
    return int(np.percentile(values, 25, method="lower")) if values else 0


def starts(
    works: list[DeviceWork],
    issued: dict[int, int],
    named: dict[int, list[DeviceWork]],
    usual: Usual,
) -> list[Start]:
    """Returns the cause of each start.

    Args:
        works: Work in order of start.
        issued: Event → when its launch was issued, in ns after the step's start.
        named: Event → work of other streams that it waits for according to the trace.
        usual: Usual delays.
    """
    by_end = sorted(works, key=lambda work: (work.end, work.start))
    ends = [work.end for work in by_end]
    result = []
    for work in works:
        latest = work.start + ROUNDING_NS
        others = dict.fromkeys(named.get(work.event, ()))
        waits = tuple(other for other in others if other.end <= latest)
        result.append(_start(work, issued.get(work.event), waits, usual, (ends, by_end)))
    return result


def _start(
    work: DeviceWork,
    at: int | None,
    waits: tuple[DeviceWork, ...],
    usual: Usual,
    finished: tuple[list[int], list[DeviceWork]],
) -> Start:
    free = work.previous.end if work.previous else 0
    delay = 0 if at is None else max(0, min(usual.delay, work.start - at))
    ready = free if at is None else max(free, at)
    awaited = max((other.end for other in waits), default=-1)
    by_wait = awaited >= ready + (0 if at is None or free > at else delay)
    by_launch = at is not None and (at >= free or at + usual.delay >= work.start) and not by_wait
    base = awaited if by_wait else ready
    slack = work.start - base
    unexplained = 0
    if slack > (usual.longest_delay if by_launch else usual.longest_gap):
        found = _ended_before(work, base, usual.longest_gap, finished)
        if found is not None:
            last = max(found.end, awaited)
            return Start(delay, max(0, work.start - last), (*waits, found), 0)
        unexplained = slack - (usual.delay if by_launch else usual.gap)
    if by_launch and at is not None:
        gap = min(usual.gap, work.start - max(free, awaited)) if work.previous else 0
        return Start(max(0, work.start - at), max(0, gap), waits, unexplained)
    return Start(delay, max(0, work.start - max(free, awaited)), waits, unexplained)


def _ended_before(
    work: DeviceWork, ready: int, longest: int, finished: tuple[list[int], list[DeviceWork]]
) -> DeviceWork | None:
    """Returns the last work of another stream that ended just before this one started."""
    ends, by_end = finished
    after = bisect_right(ends, work.start + ROUNDING_NS)
    for other in reversed(by_end[max(0, after - _LOOK_BACK) : after]):
        if other.end <= ready or other.end < work.start - longest:
            return None
        if other.queue != work.queue and other.start < work.start:
            return other
    return None
