"""Execution graph of one step of linked traces."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.graph import topological_order
from dse.trace._step_graph import TaskRole, TraceGraph
from dse.trace.graph._draft import Draft
from dse.trace.graph._rank_graph import add_rank
from dse.trace.graph._step import traced_step
from dse.trace.read._ranks import missing_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace._step_graph import TracedStep
    from dse.trace.links._link import Links
    from dse.trace.links._matched_collectives import MatchedCollective
    from dse.trace.read._rank_trace import RankTrace


#: Operations that a rank may finish before another one begins: gloo buffers sent data.
_ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter", "send_recv"})


def trace_graph(
    traces: Sequence[RankTrace],
    links: Sequence[Links],
    collectives: Sequence[MatchedCollective] = (),
    step: int | str | None = None,
) -> TraceGraph:
    """Builds the graph of one step, whose simulation reproduces the step.

    Threads keep the order and the durations of their operators, calls and gaps; streams keep the
    order and the durations of their work. Without device work the CPU is the device: threads are
    cut by their innermost operators, and gloo's threads are streams of collectives. Everything
    else follows from dependencies: launches, waits for streams and between streams, hand-overs
    between threads, and collectives. A member of a collective lasts from the arrival of the last
    member to its own end; if only one rank of a collective is present, as long as measured,
    including its wait.

    The clocks of the ranks are not aligned.

    Args:
        traces: One trace per rank.
        links: The links of each trace.
        collectives: The collectives matched across these ranks; without any, ranks are
            independent.
        step: Number of a profiler step; name of an annotation, whose last occurrence counts; None
            for the last profiler step, or the whole trace if no step is marked.

    Raises:
        ConfigError: No traces, or no such step.
        SimulationError: The dependencies form a cycle; a shortest one is named.
    """
    if not traces:
        raise ConfigError("no traces to simulate; give at least one")
    steps = _aligned(traces, [traced_step(trace, step) for trace in traces])
    draft = Draft()
    tasks = {}
    missing = missing_ranks(traces)
    notes = [f"{missing}; the others are simulated"] if missing else []
    for trace, linked, part in zip(traces, links, steps, strict=True):
        made = add_rank(draft, trace, linked, part)
        notes += [f"rank {part.rank}: {note}" for note in trace.left_out]
        tasks[part.rank] = made
        if made.without_launch:
            what = "device events" if trace.has_kernels else "collectives"
            notes.append(
                f"rank {part.rank}: {made.without_launch} {what} were not launched in the step; "
                "they start as measured"
            )
    on_device = {trace.rank for trace in traces if trace.has_kernels}
    alone, early = draft.role.count(TaskRole.COLLECTIVE), 0
    for collective in collectives:
        members = [
            tasks[rank].task_of[event]
            for rank, event in zip(collective.ranks, collective.events, strict=True)
            if rank in tasks and event in tasks[rank].task_of
        ]
        absent = len(collective.missing_ranks) + len(collective.untraced_ranks)
        whole = max(collective.group_size, len(collective.ranks) + absent)
        alone -= len(members) if len(members) >= whole else 0
        if collective.operation in _ONE_SIDED and not on_device & set(collective.ranks):
            members = _waiting_members(draft, members)
        if len(members) > 1:
            early += draft.synchronise(members)
    if alone:
        notes.append(
            f"{alone} collectives lack members: their time includes the wait for these ranks"
        )
    if early:
        notes.append(
            f"{early} members of collectives end before their last member starts: the clocks of "
            "the ranks differ, and transfers are too short"
        )
    graph = draft.build()
    topological_order(graph)
    return TraceGraph(
        graph=graph,
        role=np.array(draft.role, dtype=np.int8),
        rank=np.array(draft.rank, dtype=np.int32),
        event=np.array(draft.event, dtype=np.int64),
        measured_start_ns=np.array(draft.start, dtype=np.int64),
        steps=steps,
        end_tasks=tuple(tasks[part.rank].ends for part in steps),
        unexplained=tuple(tasks[part.rank].unexplained for part in steps),
        notes=tuple(notes),
    )


def _waiting_members(draft: Draft, members: list[int]) -> list[int]:
    """Returns the members of a collective that ended after its last one had started."""
    ready = max((draft.start[task] for task in members), default=0)
    return [task for task in members if draft.start[task] + draft.duration[task] >= ready]


def _aligned(traces: Sequence[RankTrace], steps: Sequence[TracedStep]) -> tuple[TracedStep, ...]:
    """Adds each step's start after the earliest one."""
    starts = [
        trace.base_time_ns + part.start_ns for trace, part in zip(traces, steps, strict=True)
    ]
    return tuple(
        replace(part, offset_s=(start - min(starts)) / 1e9)
        for part, start in zip(steps, starts, strict=True)
    )
