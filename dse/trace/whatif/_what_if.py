"""Captured steps, and their length after changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError, DseError, SimulationError
from dse.simulate import critical_path, simulate
from dse.trace import (
    TaskRole,
    compare_with_measured,
    link,
    match_collectives,
    summarise_path,
    task_facts,
    trace_graph,
)
from dse.trace.whatif.core import StepEditor, captured_machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.simulate import Timeline
    from dse.trace import PathPart, RankResimulation, RankTrace, TaskFacts, TraceGraph
    from dse.trace.whatif.core import CapturedMachine, Change

#: Work of a device that ends this much after the host's step is worth a note.
_LATE = 0.02

#: Ranks whose steps begin this share of the step apart are worth a note.
_APART = 0.05


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """What a change did.

    Attributes:
        title: Short name of the change.
        tasks: Tasks that it scaled, added, removed or moved.
        inserted: Tasks that it added.
        removed: Tasks that it removed.
        before_s: Length of the step before it, in seconds.
        after_s: Length of the step after it.
    """

    title: str
    tasks: int
    inserted: int
    removed: int
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """A captured step as it was and as it would be.

    A step lasts until all of its work has ended, devices included, on the slowest rank.

    Attributes:
        before: Each rank as captured; `simulated_s` is the time that counts.
        after: Each rank after the changes; its `measured_s` is still that of the capture.
        effects: What each change did, in order.
        work_factor: Samples of the changed step per sample of the captured one.
        notes: What was assumed.
        graph: The changed graph.
        timeline: Its simulation.
        machine: The machine it would run on.
    """

    before: tuple[RankResimulation, ...]
    after: tuple[RankResimulation, ...]
    effects: tuple[AppliedChange, ...]
    work_factor: float
    notes: tuple[str, ...]
    graph: TraceGraph
    timeline: Timeline
    machine: CapturedMachine

    @property
    def before_s(self) -> float:
        """Length of the captured step by simulation, in seconds."""
        return _length_s(self.before)

    @property
    def after_s(self) -> float:
        """Length of the changed step, in seconds."""
        return _length_s(self.after)

    @property
    def speedup(self) -> float:
        """How many times as many samples a second: time before over after, times their work."""
        return self.work_factor * self.before_s / self.after_s if self.after_s else float("inf")


@dataclass(frozen=True, slots=True, eq=False)
class CapturedStep:
    """A step of captured traces, prepared for any number of what-ifs.

    Attributes:
        graph: Its graph.
        facts: Operators, shapes, launches and phases of its tasks.
        machine: The machine it ran on.
        before: Each rank by simulation, until all of its work has finished.
    """

    graph: TraceGraph
    facts: TaskFacts
    machine: CapturedMachine
    before: tuple[RankResimulation, ...]

    def editor(self) -> StepEditor:
        """Returns an editor of the step."""
        return StepEditor(self.graph, self.facts, self.machine)

    def what_if(self, changes: Sequence[Change]) -> WhatIf:
        """Applies changes one after the other and simulates after each.

        Args:
            changes: The changes.

        Raises:
            ConfigError: A change selects nothing, or needs what the traces lack.
            SimulationError: Tasks wait for each other after a change; one shortest cycle is named.
        """
        editor, effects = self.editor(), []
        length_s, graph = _length_s(self.before), self.graph
        timeline = simulate(graph.graph)
        for number, change in enumerate(changes, start=1):
            editor.start_change()
            inserted, removed, machine = editor.inserted, editor.removed, editor.machine
            try:
                change.apply(editor)
                if not editor.touched and not _moved(machine, editor.machine):
                    raise ConfigError(
                        "nothing changed: the selected tasks are already as the change makes them"
                    )
                graph = editor.build()
            except DseError as error:
                kind = SimulationError if isinstance(error, SimulationError) else ConfigError
                raise kind(f"change {number} ({change.title}): {error}") from error
            timeline = simulate(graph.graph)
            after_s = _length_s(_finished(graph, timeline))
            effects.append(
                AppliedChange(
                    title=change.title,
                    tasks=editor.touched,
                    inserted=editor.inserted - inserted,
                    removed=editor.removed - removed,
                    before_s=length_s,
                    after_s=after_s,
                )
            )
            length_s = after_s
        return WhatIf(
            before=self.before,
            after=_finished(graph, timeline),
            effects=tuple(effects),
            work_factor=editor.work_factor,
            notes=(*graph.notes, *_late(self.before), *_apart(self.graph, _length_s(self.before))),
            graph=graph,
            timeline=timeline,
            machine=editor.machine,
        )


def captured_step(
    traces: Sequence[RankTrace],
    *,
    step: int | str | None = None,
    platform: str = "",
    aligned: bool = False,
) -> CapturedStep:
    """Prepares a step of traces for what-ifs.

    Args:
        traces: One trace a rank.
        step: Number of a profiler step, name of an annotation; the last step by default.
        platform: Name or file of what it was captured on; found by the device's name if empty.
        aligned: Whether all ranks begin their steps together rather than as captured. Where one
            rank began late, others waited for it, which no change of the step can mend.

    Raises:
        ConfigError: No trace or no such step was found, or the platform is unknown.
        SimulationError: The step depends on itself.
    """
    machine = captured_machine(traces, platform)
    links = [link(trace) for trace in traces]
    graph = trace_graph(traces, links, match_collectives(traces, links), step)
    if aligned:
        graph = _aligned(graph)
    facts = task_facts(graph, traces, links)
    return CapturedStep(graph, facts, machine, _finished(graph, simulate(graph.graph)))


def _aligned(graph: TraceGraph) -> TraceGraph:
    """Returns the graph with all ranks beginning at time zero."""
    duration_s = np.where(graph.role == TaskRole.LEAD_IN, 0.0, graph.graph.duration_s)
    return replace(
        graph,
        graph=graph.graph.with_durations(duration_s),
        steps=tuple(replace(part, offset_s=0.0) for part in graph.steps),
        notes=(*graph.notes, "all ranks begin their steps together, unlike in the capture"),
    )


def _apart(graph: TraceGraph, length_s: float) -> list[str]:
    """Returns a note if ranks begin their steps far apart."""
    offset_s = max(part.offset_s for part in graph.steps)
    if offset_s <= _APART * length_s:
        return []
    late = max(graph.steps, key=lambda part: part.offset_s)
    return [
        f"rank {late.rank} begins its step {1e3 * offset_s:.3f} ms after the first; others wait "
        "for it in collectives, which is part of their steps and stays (with --aligned all begin "
        "together)"
    ]


def _finished(graph: TraceGraph, timeline: Timeline) -> tuple[RankResimulation, ...]:
    """Compares simulated and measured ranks; a step lasts until all its work has ended."""
    ends = []
    for part in graph.steps:
        mine = np.flatnonzero((graph.rank == part.rank) & (graph.role != TaskRole.LEAD_IN))
        last = mine[np.argmax(timeline.end_s[mine])]
        ends.append((int(last),))
    return compare_with_measured(replace(graph, end_tasks=tuple(ends)), timeline)


def _moved(before: CapturedMachine, after: CapturedMachine) -> bool:
    """Returns whether a step is on another platform, which may be as fast at another price."""
    if before.platform is None or after.platform is None:
        return before.platform is not after.platform
    return before.platform.document != after.platform.document


def _length_s(ranks: Sequence[RankResimulation]) -> float:
    return max(rank.simulated_s for rank in ranks)


def _late(ranks: Sequence[RankResimulation]) -> list[str]:
    late = [rank for rank in ranks if rank.simulated_s > (1 + _LATE) * rank.measured_s]
    if not late:
        return []
    worst = max(late, key=lambda rank: rank.simulated_s - rank.measured_s)
    return [
        f"devices end up to {1e3 * (worst.simulated_s - worst.measured_s):.3f} ms after the "
        f"captured step of their host (rank {worst.rank}); times here last until they have ended"
    ]


def bound_by(answer: WhatIf) -> tuple[PathPart, ...]:
    """Returns what the critical path of a changed step consists of, most time first.

    A change that shortens what is not on the path leaves the step as long as it is.

    Args:
        answer: The changed step.
    """
    return summarise_path(answer.graph, critical_path(answer.timeline)).parts
