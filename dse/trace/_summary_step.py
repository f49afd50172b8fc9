"""Lanes and sizes in a graph made from traces: what changes to a step may be asked about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dse._reading import JsonProblemError, load_json
from dse.trace._replay_types import COMPUTING, Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dse.trace._facts import TaskFacts
    from dse.trace._replay_types import TraceGraph

#: Tasks in which nothing is done.
_PAUSES = frozenset({Role.HOST_GAP, Role.LAUNCH_DELAY, Role.STREAM_GAP, Role.LEAD_IN})
#: Operators that are named with a size.
_OPERATORS = 3


@dataclass(frozen=True, slots=True)
class LaneSummary:
    """One stream, thread or queue of a rank.

    Attributes:
        rank: Global rank.
        lane: Its name, as changes to a step select it.
        tasks: Number of its tasks without gaps and delays.
        busy_s: Their time, in seconds; waiting does not count.
    """

    rank: int
    lane: str
    tasks: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class SizeSummary:
    """One size among the dimensions of recorded inputs.

    Attributes:
        size: The size.
        tasks: Kernels, copies and fills, or operators of a CPU, one of whose inputs has it.
        seconds: Their time over all ranks, in seconds.
        operators: The innermost operators with most of that time, most first.
    """

    size: int
    tasks: int
    seconds: float
    operators: tuple[str, ...]


def lanes_of_step(made: TraceGraph) -> tuple[LaneSummary, ...]:
    """Counts the tasks of each lane on which anything works, in order of ranks.

    Args:
        made: Graph of the step.
    """
    counts = [0] * len(made.graph.lanes)
    busy_s = [0.0] * len(made.graph.lanes)
    rows = zip(
        made.graph.lane.tolist(), made.role.tolist(), made.graph.duration_s.tolist(), strict=True
    )
    for lane, role, duration_s in rows:
        if Role(role) not in _PAUSES:
            counts[lane] += 1
            busy_s[lane] += duration_s
    found = [
        LaneSummary(lane.rank, lane.name, count, seconds)
        for lane, count, seconds in zip(made.graph.lanes, counts, busy_s, strict=True)
        # Launches on their way to a device have lanes of their own on which nothing works.
        if count
    ]
    return tuple(sorted(found, key=lambda one: one.rank))


def sizes_of_step(made: TraceGraph, facts: TaskFacts) -> tuple[SizeSummary, ...]:
    """Adds up the time that works on each size, most time first.

    Args:
        made: Graph of the step.
        facts: What is known of its tasks; sizes need recorded shapes.
    """
    sizes = [frozenset(_sizes(one.shapes)) for one in facts.input_table]
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
        SizeSummary(
            size,
            count,
            seconds,
            _longest(by_operator.get(size, {})),
        )
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
        for one in value:
            yield from _whole_numbers(one)
    elif type(value) is int:
        yield value
