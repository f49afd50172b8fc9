"""Scores sharding plans under the full model of an iteration, thousands at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dse.prediction._durations import slot_durations_s, slot_spreads
from dse.prediction._layout import Slot, build_layout
from dse.prediction._memory import MemoryModel
from dse.prediction._placements import Placements
from dse.simulate import BatchedSimulator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph
    from dse.prediction._layout import LayoutGraph
    from dse.prediction._problem import Problem
    from dse.sharding import ShardingPlan

#: Candidates whose features are expanded at once; bounds memory and stays near the cache.
_CHUNK_ELEMENTS = 2_000_000


@dataclass(frozen=True, slots=True)
class PlanScores:
    """Scores of a batch of plans.

    Attributes:
        iteration_time_s: Expected iteration time; shape `(candidates,)`.
        peak_memory_bytes: Bytes of the fullest rank; shape `(candidates,)`.
        fits: Whether the fullest rank fits its usable memory; shape `(candidates,)`.
    """

    iteration_time_s: NDArray[np.float64]
    peak_memory_bytes: NDArray[np.float64]
    fits: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Program:
    layout: LayoutGraph
    simulator: BatchedSimulator


class PlanScorer:
    """The performance model of one problem, open for any number of plans.

    Args:
        problem: Everything but the plan.

    Attributes:
        problem: As given.
        placements: Turns plans into option vectors and back.
        memory: Memory of a rank.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.placements = Placements(problem)
        self.memory = MemoryModel.of(problem)
        self._programs: dict[int, _Program] = {}

    def score(self, plans: Sequence[ShardingPlan]) -> PlanScores:
        """Scores plans that have been checked against the model and the cluster."""
        return self.score_options(
            np.array([self.placements.options_of(plan) for plan in plans], dtype=np.int64)
        )

    def score_options(self, options: NDArray[np.int64]) -> PlanScores:
        """Scores plans given as option ids; shape `(candidates, tables)`."""
        count = len(options)
        times = np.empty(count)
        peaks = np.empty(count)
        layouts = self.placements.layouts(options)
        for layout in np.unique(layouts):
            members = np.flatnonzero(layouts == layout)
            chunk = max(16, _CHUNK_ELEMENTS // (64 * self.problem.cluster.world_size))
            for start in range(0, len(members), chunk):
                index = members[start : start + chunk]
                features = self.placements.features(options[index])
                times[index] = self._iteration_time_s(int(layout), features)
                peaks[index] = self.memory.total_bytes(features).max(axis=0)
        usable = self.problem.cluster.device.usable_memory_bytes
        return PlanScores(times, peaks, peaks <= usable)

    def features(self, plan: ShardingPlan) -> NDArray[np.float64]:
        """Returns one plan's placement features; shape `(features, ranks, 1)`."""
        return self.placements.features(self.placements.options_of(plan)[None, :])

    def rank_load_s(self, options: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns each rank's time in lookups and updates of one plan; shape `(ranks,)`."""
        layout = int(self.placements.layouts(options[None, :])[0])
        slots = slot_durations_s(self.problem, layout, self.placements.features(options[None, :]))
        return np.asarray(slots[: Slot.INPUT_EXCHANGE, :, 0].sum(axis=0))

    def layout_graph(self, plan: ShardingPlan) -> LayoutGraph:
        """Returns the plan's graph with its own durations and their spreads filled in."""
        options = self.placements.options_of(plan)[None, :]
        layout = int(self.placements.layouts(options)[0])
        program = self._program(layout)
        features = self.placements.features(options)
        slots = slot_durations_s(self.problem, layout, features)
        filled = program.layout.graph.duration_s.copy()
        filled[program.layout.slot_task] = slots[
            program.layout.slot_kind, program.layout.slot_rank, 0
        ]
        graph: ExecutionGraph = replace(program.layout.graph, duration_s=filled)
        spread = program.layout.spread.copy()
        spreads = slot_spreads(self.problem, features, self.placements.lookup_spreads(options[0]))
        spread[program.layout.slot_task] = spreads[program.layout.slot_kind]
        return replace(program.layout, graph=graph, spread=spread)

    def _iteration_time_s(self, layout: int, features: NDArray[np.float64]) -> NDArray[np.float64]:
        program = self._program(layout)
        slots = slot_durations_s(self.problem, layout, features)
        durations = slots[program.layout.slot_kind, program.layout.slot_rank]
        return program.simulator.makespan_s(durations)

    def _program(self, layout: int) -> _Program:
        found = self._programs.get(layout)
        if found is None:
            graph = build_layout(self.problem, layout)
            variable = np.zeros(graph.graph.task_count, dtype=bool)
            variable[graph.slot_task] = True
            found = _Program(graph, BatchedSimulator(graph.graph, variable))
            self._programs[layout] = found
        return found
