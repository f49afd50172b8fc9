"""Nesting of intervals on each thread, without a loop over events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dse.trace.read._rank_trace import Ints, Longs


def parents(thread: Ints, start: Longs, end: Longs) -> Longs:
    """Returns for each interval the innermost one before it that encloses it, or -1.

    Args:
        thread: Thread of each interval; sorted.
        start: Starts; sorted within a thread, an outer interval before the inner.
        end: Ends.

    The nearest earlier interval that ends no earlier is found by jumps: a skipped interval ended
    sooner, and so did all that it had skipped.
    """
    count = len(start)
    at = np.arange(count)
    candidate = at - 1
    if count:
        candidate[0] = -1
        candidate[1:][thread[1:] != thread[:-1]] = -1
    active = at
    while len(active):
        found = candidate[active]
        short = (found >= 0) & (end[found] < end[active])
        active = active[short]
        candidate[active] = candidate[candidate[active]]
    return candidate


def innermost(
    thread: Ints,
    start: Longs,
    end: Longs,
    parent: Longs,
    query_thread: Ints,
    query_start: Longs,
    query_end: Longs,
) -> Longs:
    """Returns for each query the innermost interval of its thread that encloses it, or -1.

    Args:
        thread: Thread of each interval; sorted.
        start: Starts; sorted within a thread.
        end: Ends.
        parent: What :func:`parents` returns for these.
        query_thread: Thread of each query.
        query_start: Starts of the queries; no order is needed.
        query_end: Ends of the queries.
    """
    if not len(start) or not len(query_start):
        return np.full(len(query_start), -1, dtype=np.int64)
    low = min(int(start.min()), int(query_start.min()))
    span = max(int(start.max()), int(query_start.max())) - low + 1
    keys = thread.astype(np.int64) * span + (start - low)
    wanted = query_thread.astype(np.int64) * span + (query_start - low)
    found = np.searchsorted(keys, wanted, side="right") - 1
    found[(found >= 0) & (thread[found] != query_thread)] = -1
    active = np.flatnonzero(found >= 0)
    while len(active):
        here = found[active]
        active = active[(here >= 0) & (end[here] < query_end[active])]
        found[active] = parent[found[active]]
    return found


def nearest_marked(parent: Longs, marked: np.ndarray) -> Longs:
    """Returns for each node itself if marked, else its nearest marked ancestor, or -1."""
    found = np.where(marked, np.arange(len(parent)), -1)
    above = parent.copy()
    active = np.flatnonzero((found < 0) & (above >= 0))
    while len(active):
        hit = marked[above[active]]
        found[active[hit]] = above[active[hit]]
        active = active[~hit]
        above[active] = above[above[active]]
        active = active[above[active] >= 0]
    return found
