"""Flow events of a Kineto trace, resolved to pairs of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace.read._columns import nanoseconds, usable_times
from dse.trace.read._rank_trace import CALLS, ON_DEVICE, Category, FlowKind, Flows, no_flows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.trace.read._columns import Columns
    from dse.trace.read._rank_trace import Longs, RankTrace

#: How PyTorch 1.8 to 2.13 spell the kinds.
KINDS = {
    "ac2g": FlowKind.LAUNCH,
    "async_gpu": FlowKind.LAUNCH,
    "async_cpu_to_gpu": FlowKind.LAUNCH,
    "fwdbwd": FlowKind.FORWARD_BACKWARD,
    "forward_backward": FlowKind.FORWARD_BACKWARD,
    "fwd_bwd": FlowKind.FORWARD_BACKWARD,
}


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """Flow events as written in a file; every array has shape `(ends,)`.

    Attributes:
        is_start: Whether the flow starts here.
        kind: A `FlowKind`.
        label: Number of the category.
        identity: Id shared by the ends of a flow.
        place: Index into `places`.
        time_us: Time in µs; not finite if missing.
        places: Process and thread, or device and stream.
    """

    is_start: NDArray[np.bool_]
    kind: NDArray[np.int8]
    label: NDArray[np.int32]
    identity: Longs
    place: NDArray[np.int32]
    time_us: NDArray[np.float64]
    places: tuple[tuple[str, str], ...]

    @classmethod
    def take(cls, columns: Columns) -> Ends:
        """Takes the flow events out of the columns."""
        kinds = [KINDS.get(name, FlowKind.OTHER) for name in columns.arrow_kinds]
        label = columns.take("arrow_kind").astype(np.int32)
        return cls(
            is_start=columns.take("arrow_starts").astype(np.bool_),
            kind=np.array([*kinds, FlowKind.OTHER], dtype=np.int8)[label],
            label=label,
            identity=columns.take("arrow_id"),
            place=columns.take("arrow_place").astype(np.int32),
            time_us=columns.take("arrow_us").astype(np.float64),
            places=tuple((str(left), str(right)) for left, right in columns.arrow_places),
        )

    def __len__(self) -> int:
        return len(self.identity)


def resolve_flows(trace: RankTrace, ends: Ends, earliest_ns: int) -> tuple[Flows, list[str]]:
    """Pairs starts and ends of flows and finds their events.

    Args:
        trace: The events.
        ends: The ends.
        earliest_ns: Start of the first event in the time of the ends, in ns.

    Returns:
        The flows, and notes on those that could not be resolved.
    """
    start, end = _pairs(ends)
    if not len(start):
        return no_flows(), _loose(len(ends), 0)
    kinds = ends.kind[start]
    source, target = np.full(len(start), -1), np.full(len(start), -1)
    numbered = trace.where(Category.CPU_OP, Category.ANNOTATION) & (trace.sequence >= 0)
    anything = np.ones(len(trace), dtype=np.bool_)
    for kind, left, right in (
        (FlowKind.LAUNCH, trace.where(*CALLS), trace.where(*ON_DEVICE)),
        (FlowKind.FORWARD_BACKWARD, numbered, numbered),
        (FlowKind.OTHER, anything, anything),
    ):
        chosen = np.flatnonzero(kinds == kind)
        source[chosen] = _find(trace, left, ends, start[chosen], earliest_ns)
        target[chosen] = _find(trace, right, ends, end[chosen], earliest_ns)
    found = (source >= 0) & (target >= 0)
    order = np.lexsort((kinds[found], target[found], source[found]))
    flows = Flows(source[found][order], target[found][order], kinds[found][order])
    loose = len(ends) - len(np.unique(start)) - len(end)
    return flows, _loose(loose, int(len(start) - found.sum()))


def _loose(ends: int, arrows: int) -> list[str]:
    notes = []
    if ends > 0:
        notes.append(f"{ends} ends of flow arrows have no other end")
    if arrows > 0:
        notes.append(f"{arrows} flow arrows start or end where no event does")
    return notes


def _pairs(ends: Ends) -> tuple[Longs, Longs]:
    """Pairs each end with the last start of its kind and id before it, else the first."""
    timed = usable_times(ends.time_us)
    starts = np.flatnonzero(ends.is_start & timed)
    others = np.flatnonzero(~ends.is_start & timed)
    if not len(starts) or not len(others):
        return starts[:0], others[:0]
    # Equal for equal label and id.
    _, key = np.unique(np.stack((ends.label, ends.identity)), axis=1, return_inverse=True)
    _, rank = np.unique(ends.time_us, return_inverse=True)
    moment = key.astype(np.int64) * (len(ends) + 1) + rank
    starts = starts[np.lexsort((ends.place[starts], moment[starts]))]
    at = np.searchsorted(moment[starts], moment[others], side="right") - 1
    first = np.minimum(np.searchsorted(key[starts], key[others]), len(starts) - 1)
    at = np.where((at >= 0) & (key[starts[at]] == key[others]), at, first)
    same = key[starts[at]] == key[others]
    return starts[at[same]], others[same]


def _find(
    trace: RankTrace, mask: NDArray[np.bool_], ends: Ends, chosen: Longs, earliest_ns: int
) -> Longs:
    """Returns the event of a mask that starts at the time and place of each end, or -1."""
    missing = np.full(len(chosen), -1, dtype=np.int64)
    events = np.flatnonzero(mask)
    if not len(chosen) or not len(events):
        return missing
    place, number = _places(trace, events)
    numbers = np.array([number.get(name, -1) for name in ends.places], dtype=np.int64)
    wanted = numbers[ends.place[chosen]]
    times = nanoseconds(ends.time_us[chosen]) - earliest_ns
    span = int(trace.start_ns[-1]) + 1
    usable = np.flatnonzero((wanted >= 0) & (times >= 0) & (times < span))
    keys = place * span + trace.start_ns[events]
    order = np.lexsort((events, keys))
    keys = keys[order]
    sought = wanted[usable] * span + times[usable]
    at = np.searchsorted(keys, sought, side="right") - 1
    hit = (at >= 0) & (keys[at] == sought)
    missing[usable[hit]] = events[order][at[hit]]
    # Of several calls within one µs, take the one whose correlation is the flow's id.
    identity = ends.identity[chosen][usable]
    known, dense = np.unique(trace.correlation[events][order], return_inverse=True)
    exact = np.searchsorted(keys, keys) * len(known) + dense
    rank = np.argsort(exact, kind="stable")
    nearest = np.minimum(np.searchsorted(known, identity), len(known) - 1)
    wanted_exact = np.searchsorted(keys, sought) * len(known) + nearest
    at = np.minimum(np.searchsorted(exact[rank], wanted_exact), len(rank) - 1)
    hit &= (exact[rank][at] == wanted_exact) & (known[nearest] == identity)
    missing[usable[hit]] = events[order][rank[at[hit]]]
    return missing


def _places(trace: RankTrace, events: Longs) -> tuple[Longs, dict[tuple[str, str], int]]:
    """Numbers the thread, or device and stream, of each event; returns also the names' numbers."""
    device, stream, thread = trace.device[events], trace.stream[events], trace.thread[events]
    table, place = np.unique(np.stack((device, stream, thread)), axis=1, return_inverse=True)
    number = {}
    for at, (on, line, host) in enumerate(table.T.tolist()):
        info = trace.threads[host] if host >= 0 else None
        key = (info.process, info.thread) if info else (str(on), str(line))
        number[key] = at
    return place.astype(np.int64), number
