"""When calls issued what they launched, and which of them waited for their own copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace._events import Category
from dse.trace._work import ROUNDING_NS

if TYPE_CHECKING:
    from dse.trace._events import RankTrace
    from dse.trace._work import Work


@dataclass(frozen=True, slots=True)
class Issues:
    """Launches of one rank.

    Attributes:
        at: Event of a device → when its call issued it, in ns after the step's start.
        launched: Call → what it launched.
        blocked: Call → copies that it waited for.
    """

    at: dict[int, int]
    launched: dict[int, list[Work]]
    blocked: dict[int, list[Work]]


def issues(trace: RankTrace, works: list[Work], spans: dict[int, tuple[int, int]]) -> Issues:
    """Finds when launches were issued.

    That is the end of the call, or the start of the work if it came first. A call that waits for
    its own copy issues it as fast as other calls of the trace usually do.

    Args:
        trace: The trace.
        works: Works in order of start.
        spans: Start and end of each outermost call, in ns after the step's start.
    """
    launched: dict[int, list[Work]] = {}
    for work in works:
        if work.launch >= 0:
            launched.setdefault(work.launch, []).append(work)
    blocked: dict[int, list[Work]] = {}
    for call, own in launched.items():
        copies = [work for work in own if _blocks(trace, work, *spans[call])]
        if copies:
            blocked[call] = copies
    lengths = [spans[call][1] - spans[call][0] for call in launched if call not in blocked]
    usual = int(np.median(lengths)) if lengths else 0
    at: dict[int, int] = {}
    for call, own in launched.items():
        start, end = spans[call]
        latest = min(start + usual, end) if call in blocked else end
        at.update((work.event, max(start, min(latest, work.start))) for work in own)
    return Issues(at, launched, blocked)


def _blocks(trace: RankTrace, work: Work, start: int, end: int) -> bool:
    """Says whether a call lasted until the end of its copy."""
    is_copy = trace.category[work.event] == Category.MEMCPY
    return bool(is_copy and work.start < end and start < work.end <= end + ROUNDING_NS)
