"""Job of a captured step: the step under changes."""

from __future__ import annotations

from functools import cached_property
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.explanation import ROW, Resource, TaskResources
from dse.graph import TaskKind
from dse.simulate import RankBreakdown, SymmetricRanks, covered_s, late_launches
from dse.workload._explain import AttributedGraph
from dse.workload._iteration import Iteration, SimulatedStep
from dse.workload._job import Job
from dse.workload._prediction import Effect
from dse.workload._step_errors import ErrorShape

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.machine.platforms import Platform
    from dse.trace.whatif import CapturedStep, Change, WhatIf
    from dse.workload._job import PlanEffort
    from dse.workload._prediction import MemoryAccount

_GROUPS = {
    TaskKind.COMPUTE: "kernels",
    TaskKind.COLLECTIVE: "collectives",
    TaskKind.COPY: "copies",
    TaskKind.HOST: "host",
}


def _parts(answer: WhatIf) -> tuple[RankBreakdown, ...]:
    """Splits the step of every rank; gaps of streams without a known cause are idle time."""
    from dse.trace import COMPUTING, TaskRole

    made, timeline = answer.graph, answer.timeline
    late = late_launches(made.graph, timeline.end_s[:, None])[:, 0]
    layers = (
        late & ~np.isin(made.role, (TaskRole.LEAD_IN, TaskRole.STREAM_GAP)),
        np.isin(made.role, COMPUTING),
        made.role == TaskRole.COLLECTIVE,
    )
    found = []
    for step, rank in zip(made.steps, answer.after, strict=True):
        begin_s, end_s = step.offset_s, step.offset_s + rank.simulated_s
        tasks = np.zeros(len(made.rank), dtype=bool)
        covered = [0.0]
        for layer in layers:
            tasks |= layer & (made.rank == step.rank)
            starts, ends = (
                times[tasks].clip(begin_s, end_s) for times in (timeline.start_s, timeline.end_s)
            )
            covered.append(covered_s(starts, ends))
        host_s, compute_s, transfer_s = np.diff(covered).tolist()
        idle_s = rank.simulated_s - covered[-1]
        found.append(RankBreakdown(compute_s, transfer_s, host_s, idle_s))
    return tuple(found)


class RecordedJob(Job):
    """A captured step under changes.

    Args:
        captured: The step.
        changes: Applied one after the other.
        samples_per_step: Samples of the captured step over all ranks; None if not known.
        platform: What the step runs on, by the parameters; None if it is not known.
        world_size: Ranks of the job, by the parameters.
        key: What decides the changes, the machine included.
    """

    def __init__(
        self,
        captured: CapturedStep,
        changes: tuple[Change, ...],
        samples_per_step: int | None,
        platform: Platform | None,
        world_size: int,
        key: Hashable,
    ) -> None:
        self._captured = captured
        self._changes = changes
        self._samples = samples_per_step
        self._platform = platform
        self._world_size = world_size
        self._key = key

    @cached_property
    def answer(self) -> WhatIf:
        """The changed step."""
        return self._captured.what_if(self._changes)

    @property
    def platform(self) -> Platform | None:
        """What the changed step runs on; None if it is not known."""
        return self._platform

    @property
    def world_size(self) -> int:
        """Ranks of the job, traced or not."""
        return self._world_size

    @property
    def cluster(self) -> Cluster | None:
        """The machines; None if what the step was captured on is not known."""
        return None if self._platform is None else self._platform.cluster(self._world_size)

    def key(self) -> Hashable:
        """Returns the changes: equal ones may be written in several ways."""
        return self._key

    def check_parameters(self) -> None:
        """Does nothing: changes are checked when they are applied."""

    @property
    def samples_per_iteration(self) -> float:
        """Samples of the changed step; NaN if those of the captured one are not known."""
        return math.nan if self._samples is None else self._samples * self.answer.work_factor

    def check(self) -> None:
        """Applies the changes.

        Raises:
            ConfigError: The trace does not allow one of them.
        """
        _ = self.answer

    def planned(self, effort: PlanEffort) -> RecordedJob:
        """Returns the changed step on the machine that the changes leave it on."""
        del effort
        machine = self.answer.machine
        changed = RecordedJob(
            self._captured,
            self._changes,
            self._samples,
            machine.platform,
            machine.world_size,
            self._key,
        )
        changed.answer = self.answer
        return changed

    def iteration(self) -> Iteration:
        """Returns the changed graph; nothing says how far off its durations are."""
        graph = self.answer.graph.graph
        rows = np.arange(graph.task_count)
        return Iteration(
            SymmetricRanks.single(graph), graph.duration_s[:, None], (), rows, ErrorShape(0.0)
        )

    def simulated(self) -> SimulatedStep:
        """Returns the length of the step on its slowest rank, and where its ranks' time goes."""
        from dse.trace.whatif import bound_by

        most = bound_by(self.answer)[:1]
        found = (most[0].part, most[0].share) if most else ("", 0.0)
        return SimulatedStep(self.answer.after_s, _parts(self.answer), *found)

    def sample_times_s(self) -> NDArray[np.float64]:
        """Returns nothing: one captured step does not say how steps vary."""
        return np.zeros(0)

    def memory(self) -> tuple[MemoryAccount, ...]:
        """Returns nothing: traces do not say what memory holds."""
        return ()

    def metrics(self, iteration_time_s: float) -> tuple[tuple[str, float], ...]:
        """Returns how many times as many samples a second the changed step processes."""
        del iteration_time_s
        return (("speedup", self.answer.speedup),)

    def effects(self) -> tuple[Effect, ...]:
        """Returns what each change did, in order."""
        return tuple(
            Effect(effect.title, effect.tasks, effect.before_s, effect.after_s)
            for effect in self.answer.effects
        )

    def notes(self) -> tuple[str, ...]:
        """Returns what was assumed."""
        return self.answer.notes

    def attributed(self) -> AttributedGraph:
        """Returns the changed graph; traces do not say what binds a task."""
        graph = self.answer.graph.graph
        seconds = np.zeros((len(Resource), graph.task_count))
        host = graph.kind == TaskKind.HOST
        seconds[ROW[Resource.HOST], host] = graph.duration_s[host]
        resources = TaskResources.of(graph.duration_s, np.zeros_like(seconds), seconds)
        groups = tuple(_GROUPS[TaskKind(kind)] for kind in graph.kind.tolist())
        return AttributedGraph(graph, resources, groups)
