"""Time lines for ui.perfetto.dev and chrome://tracing.

The trace-event format is JSON: metadata name processes (ranks) and threads (streams and host
threads), `X` events are slices in µs, `s` and `f` events are the two ends of an arrow and belong
to the slice that contains them.
"""

from __future__ import annotations

import gzip
from itertools import count, pairwise
import json
from typing import TYPE_CHECKING

import numpy as np

from dse._io.writing import write_atomically
from dse.graph import TaskKind, collective_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from dse.graph import ExecutionGraph
    from dse.simulate import CriticalPath, Timeline

#: Colours by the names that chrome://tracing reserves; Perfetto gives colours by name instead.
_CRITICAL_COLOUR = "terrible"
_WAIT_COLOUR = "grey"

#: Shorter waits would round to zero.
_SHORTEST_NS = 1


def write_timeline(
    timeline: Timeline,
    path: Path,
    *,
    critical: CriticalPath | None = None,
    title: str = "",
    details: Sequence[Iterable[tuple[str, str | float]]] | None = None,
    arrival_arrows: bool = False,
) -> None:
    """Writes a time line in the trace-event format.

    Each rank is a process, each stream a thread, each task a slice. A member of a collective that
    waits for others has another slice before the transfer. The critical path is marked on its
    tasks (category, colour and argument), drawn by arrows between streams, and repeated on a
    separate track.

    Args:
        timeline: The simulated time line.
        path: File to write; compressed if its name ends in `.gz`.
        critical: Critical path of the time line, if it should be shown.
        title: Kept in the file as `otherData`.
        details: Further names and values of each task, shown with its slice.
        arrival_arrows: Draw arrows from the last member of a collective to those that waited for
            it.

    Raises:
        StudyError: The file cannot be written.
    """
    separator, parts = "", []
    for event in _events(timeline, critical, details, arrival_arrows=arrival_arrows):
        parts.append(separator + json.dumps(event, separators=(",", ":")))
        separator = ",\n"
    other = json.dumps({"title": title, "makespan_us": 1e6 * timeline.makespan_s})
    head = f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n'
    content = (head + "".join(parts) + "\n]}\n").encode()
    # Without the time of writing, so that equal time lines are equal files.
    write_atomically(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _events(
    timeline: Timeline,
    critical: CriticalPath | None,
    details: Sequence[Iterable[tuple[str, str | float]]] | None,
    *,
    arrival_arrows: bool,
) -> Iterator[dict[str, object]]:
    places = _Places(timeline, critical is not None)
    yield from places.metadata()
    # Ends and starts are rounded alike, so slices of one stream never overlap by rounding.
    ready, start, end = (
        np.rint(1e9 * seconds).astype(np.int64).tolist()
        for seconds in (timeline.ready_s, timeline.start_s, timeline.end_s)
    )
    graph = timeline.graph
    marked = set() if critical is None else set(critical.tasks.tolist())
    kinds = [TaskKind(kind).name.lower() for kind in graph.kind.tolist()]
    for task, name in enumerate(graph.names):
        place = places.of_task[task]
        if start[task] - ready[task] >= _SHORTEST_NS:
            waiting = _slice(place, f"wait: {name}", "wait", ready[task], start[task])
            yield {**waiting, "cname": _WAIT_COLOUR, "args": {"task": task}}
        event = _slice(place, name, kinds[task], start[task], end[task])
        arguments: dict[str, object] = {"task": task, "kind": kinds[task]}
        if graph.collective[task] >= 0:
            arguments["collective"] = int(graph.collective[task])
            arguments["waited_us"] = (start[task] - ready[task]) / 1e3
        if task in marked:
            event |= {"cat": f"{kinds[task]},critical", "cname": _CRITICAL_COLOUR}
            arguments["critical"] = True
        if details is not None:
            arguments |= dict(details[task])
        yield {**event, "args": arguments}
    if arrival_arrows:
        yield from _arrival_arrows(graph, places, ready, start)
    if critical is None:
        return
    path = critical.tasks.tolist()
    for task in path:
        stream = graph.streams[graph.stream[task]]
        event = _slice(places.path, graph.names[task], "critical path", start[task], end[task])
        yield {**event, "args": {"task": task, "rank": stream.rank, "stream": stream.name}}
    for number, (source, target) in enumerate(pairwise(path)):
        if graph.stream[source] == graph.stream[target]:
            continue
        arrow = {"name": "critical path", "cat": "critical path", "id": number}
        # An end belongs to no slice any more, so the arrow leaves just before it.
        leaves = max(start[source], end[source] - 1) / 1e3
        yield {"ph": "s", **arrow, "ts": leaves, **places.of_task[source]}
        yield {"ph": "f", "bp": "e", **arrow, "ts": start[target] / 1e3, **places.of_task[target]}


def _arrival_arrows(
    graph: ExecutionGraph, places: _Places, ready: Sequence[int], start: Sequence[int]
) -> Iterator[dict[str, object]]:
    """Yields arrows from the last member of a collective to those that waited for it."""
    # Numbers below are those of the critical path's arrows.
    numbers = count(graph.task_count)
    for members in collective_members(graph).values():
        last = max(members, key=lambda member: (ready[member], -member))
        for other in members:
            if ready[other] + _SHORTEST_NS > ready[last]:
                continue
            name = graph.names[last]
            arrow = {"name": name, "cat": "arrival", "id": next(numbers)}
            at = start[last] / 1e3
            yield {"ph": "s", **arrow, "ts": at, **places.of_task[last]}
            yield {"ph": "f", "bp": "e", **arrow, "ts": at, **places.of_task[other]}


def _slice(
    place: dict[str, int], name: str, category: str, start_ns: int, end_ns: int
) -> dict[str, object]:
    duration_us = (end_ns - start_ns) / 1e3
    times = {"ts": start_ns / 1e3, "dur": duration_us}
    return {"ph": "X", "name": name, "cat": category, **times, **place}


class _Places:
    """Process and thread of each task and of the track of the critical path.

    Threads are numbered over all ranks: some viewers take equal numbers for the same thread even
    in different processes.
    """

    def __init__(self, timeline: Timeline, with_path: bool) -> None:
        self._graph = timeline.graph
        self._with_path = with_path
        ranks = [stream.rank for stream in self._graph.streams]
        of_stream = [{"pid": rank, "tid": number + 1} for number, rank in enumerate(ranks)]
        self.of_task = [of_stream[stream] for stream in self._graph.stream.tolist()]
        self.path = {"pid": max(ranks, default=-1) + 1, "tid": len(ranks) + 1}

    def metadata(self) -> Iterator[dict[str, object]]:
        """Yields names and order: the critical path first, then ranks with their streams."""
        streams = self._graph.streams
        for rank in sorted({stream.rank for stream in streams}):
            process = {"pid": rank, "tid": 0}
            yield _meta("process_name", process, name=f"rank {rank}")
            yield _meta("process_sort_index", process, sort_index=rank)
        for number, stream in enumerate(streams):
            thread = {"pid": stream.rank, "tid": number + 1}
            yield _meta("thread_name", thread, name=stream.name)
            yield _meta("thread_sort_index", thread, sort_index=number)
        if self._with_path:
            yield _meta("process_name", {**self.path, "tid": 0}, name="critical path")
            yield _meta("process_sort_index", {**self.path, "tid": 0}, sort_index=-1)
            yield _meta("thread_name", self.path, name="critical path")


def _meta(kind: str, place: dict[str, int], **arguments: object) -> dict[str, object]:
    return {"ph": "M", "name": kind, **place, "args": arguments}
