"""Streams, threads and tensor sizes of a traced step, as selected by what-if changes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dse._io.reading import JsonProblemError, load_json
from dse.trace._step_graph import COMPUTING, TaskRole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dse.trace._step_graph import TraceGraph
    from dse.trace.analyse._facts import TaskFacts

#: Roles that do no work.
_PAUSES = frozenset(
    {TaskRole.HOST_GAP, TaskRole.LAUNCH_DELAY, TaskRole.STREAM_GAP, TaskRole.LEAD_IN}
)
#: Most operators listed per size.
_OPERATORS = 3


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """One device stream or host thread of a rank.

    Attributes:
        rank: Global rank.
        stream: Its name, by which what-if changes select it (their `stream`).
        tasks: Number of its tasks without gaps and delays.
        busy_s: Their time without waiting, in seconds.
    """

    rank: int
    stream: str
    tasks: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class SizeSummary:
    """One size among the dimensions of recorded inputs.

    Attributes:
        size: The size.
        tasks: Number of kernels, copies and fills, or operators on a CPU, with an input of it.
        seconds: Their time over all ranks, in seconds.
        operators: The innermost operators with the most of that time, most first.
    """

    size: int
    tasks: int
    seconds: float
    operators: tuple[str, ...]


def stream_summaries(made: TraceGraph) -> tuple[StreamSummary, ...]:
    """Counts the tasks of each busy stream and thread, in order of ranks.

    Args:
        made: Graph of the step.
    """
    streams = made.graph.streams
    counts = [0] * len(streams)
    busy_s = [0.0] * len(streams)
    rows = zip(
        made.graph.stream.tolist(), made.role.tolist(), made.graph.duration_s.tolist(), strict=True
    )
    for at, role, duration_s in rows:
        if TaskRole(role) not in _PAUSES:
            counts[at] += 1
            busy_s[at] += duration_s
    found = [
        StreamSummary(stream.rank, stream.name, count, seconds)
        for stream, count, seconds in zip(streams, counts, busy_s, strict=True)
        # Launch delays have streams without work.
        if count
    ]
    return tuple(sorted(found, key=lambda summary: summary.rank))


def size_summaries(made: TraceGraph, facts: TaskFacts) -> tuple[SizeSummary, ...]:
    """Adds up the time of tasks with inputs of each size, most time first.

    Args:
        made: Graph of the step.
        facts: Facts about its tasks; sizes need recorded shapes.
    """
    sizes = [frozenset(_sizes(inputs.shapes)) for inputs in facts.input_table]
    totals: dict[int, tuple[int, float]] = {}
    by_operator: dict[int, dict[str, float]] = {}
    for task, role in enumerate(made.role.tolist()):
        inputs = int(facts.inputs[task])
        if role not in COMPUTING or inputs < 0:
            continue
        duration_s = float(made.graph.duration_s[task])
        stack = facts.stacks[int(facts.stack[task])] if facts.stack[task] >= 0 else ()
        for size in sizes[inputs]:
            count, seconds = totals.get(size, (0, 0.0))
            totals[size] = (count + 1, seconds + duration_s)
            if stack:
                named = by_operator.setdefault(size, {})
                named[stack[-1]] = named.get(stack[-1], 0.0) + duration_s
    return tuple(
        SizeSummary(size, count, seconds, _longest(by_operator.get(size, {})))
        for size, (count, seconds) in sorted(
            totals.items(), key=lambda item: (-item[1][1], item[0])
        )
    )


def _longest(seconds: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(sorted(seconds, key=lambda name: (-seconds[name], name))[:_OPERATORS])


@lru_cache(maxsize=65536)
def _sizes(shapes: str) -> tuple[int, ...]:
    try:
        return tuple(_whole_numbers(load_json(shapes) if shapes else []))
    except JsonProblemError:
        return ()


def _whole_numbers(value: object) -> Iterator[int]:
    if isinstance(value, list):
        for item in value:
            yield from _whole_numbers(item)
    elif type(value) is int:
        yield value
