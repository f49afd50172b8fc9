"""Hand-overs between host threads: the calling thread waits for the backward pass.

While the thread of the backward pass works, its caller is quiet: it makes no call and starts no
operator that computes. So an idle worker that starts while a caller is quiet was woken by that
caller, and a caller that stays quiet until a worker runs out of work waited for it. A few calls of
the caller in between do not matter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace._step_graph import TaskRole

if TYPE_CHECKING:
    from dse.trace.graph._host import Segment
    from dse.trace.read._rank_trace import RankTrace

#: Shorter segments are no waits, in ns.
_SHORTEST_WAIT = 20_000
#: A waiting thread does none of these.
_AT_WORK = (TaskRole.CALL, TaskRole.KERNEL)


@dataclass(frozen=True, slots=True)
class Handover:
    """A burst of backward operators on one thread, and the thread that waits for it.

    Attributes:
        caller: Waiting thread.
        wakes: Index of the caller's segment in which the worker starts.
        returns: Pairs of a quiet segment of the caller and the worker's segment whose end ends the
            quiet: the last pair when the worker has run out of work, earlier ones when the worker
            gave the caller something to do meanwhile (autograd nodes that run on the host).
        worker: Working thread.
        first: Index of the worker's first segment.
    """

    caller: int
    wakes: int
    returns: tuple[tuple[int, int], ...]
    worker: int
    first: int


def handovers(
    trace: RankTrace, rows: dict[int, list[Segment]], start_ns: int
) -> tuple[Handover, ...]:
    """Finds the hand-overs of one rank.

    Args:
        trace: The trace.
        rows: Segments of each thread.
        start_ns: Start of the step after the trace's base, in ns.
    """
    found: list[Handover] = []
    for worker in rows:
        mine = (trace.forward_thread > 0) & (trace.thread == worker)
        backward = (trace.start_ns[np.flatnonzero(mine)] - start_ns).tolist()
        taken: set[int] = set()
        for caller in rows:
            if backward and caller != worker:
                found += _between(rows, caller, worker, backward, taken)
    return tuple(found)


def _between(
    rows: dict[int, list[Segment]],
    caller: int,
    worker: int,
    backward: list[int],
    taken: set[int],
) -> list[Handover]:
    row = rows[worker]
    busy = [at for at, part in enumerate(row) if part.role != TaskRole.HOST_GAP]
    wakes, returns = _moments(rows[caller], [row[at] for at in busy])
    firsts = sorted(wakes)
    found = []
    for first, following in zip(firsts, [*firsts, len(busy)][1:], strict=True):
        back = next((at for at in range(following - 1, first - 1, -1) if at in returns), -1)
        last = back if back >= 0 else following - 1
        at = bisect_left(backward, row[busy[first]].start)
        if first in taken or at == len(backward) or backward[at] > row[busy[last]].end:
            continue
        taken.add(first)
        pairs = [(returns[back], busy[back])] if back >= 0 else []
        if pairs:
            quiet = range(wakes[first], returns[back])
            pairs = [*_meanwhile(rows[caller], quiet, row, busy[first : back + 1]), *pairs]
        found.append(Handover(caller, wakes[first], tuple(pairs), worker, busy[first]))
    return found


def _moments(caller: list[Segment], busy: list[Segment]) -> tuple[dict[int, int], dict[int, int]]:
    """Returns busy segment → quiet segment of the caller, for wakes and for returns."""
    starts = [part.start for part in busy]
    ends = [part.end for part in busy]
    wakes, returns = {}, {}
    for quiet, part in enumerate(caller):
        if part.role in _AT_WORK or part.end - part.start < _SHORTEST_WAIT:
            continue
        first = bisect_left(starts, part.start)
        idle = first == 0 or ends[first - 1] <= part.start
        if idle and first < len(busy) and starts[first] <= part.end:
            wakes[first] = quiet
        last = bisect_right(ends, part.end) - 1
        idle = last + 1 == len(busy) or starts[last + 1] >= part.end
        if idle and last >= 0 and ends[last] > part.start:
            returns[last] = quiet
    return wakes, returns


def _meanwhile(
    caller: list[Segment], quiet: range, row: list[Segment], busy: list[int]
) -> list[tuple[int, int]]:
    """Returns which end of the worker's segments ends each quiet segment before the last."""
    ends = [row[at].end for at in busy]
    pairs = []
    for number in quiet:
        part = caller[number]
        last = bisect_right(ends, part.end) - 1
        if part.role in _AT_WORK or part.end - part.start < _SHORTEST_WAIT:
            continue
        if last >= 0 and ends[last] > part.start:
            pairs.append((number, busy[last]))
    return pairs
