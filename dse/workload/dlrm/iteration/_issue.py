"""Issuing the tasks of an iteration: a launch by the host, then work on a stream.

What tasks last is filled in afterwards: a graph is made once for all problems of its shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dse.graph import ExecutionGraph, GraphBuilder, TaskKind
from dse.simulate import SyncScope
from dse.workload._iteration import DurationClass
from dse.workload._launch import LaunchMode
from dse.workload.dlrm.iteration._costs import (
    GRAPH_LAUNCH,
    LOADING,
    READING,
    STEP,
    HostWork,
    device_costs,
    host_costs,
    host_times,
)
from dse.workload.dlrm.scoring._slots import LayoutGraph, Slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm._problem import DlrmProblem
    from dse.workload.dlrm.iteration._shape import Phase, Shape
    from dse.workload.dlrm.scoring._features import ExchangeGroup

#: The cost of tasks whose duration the plan decides.
_OF_PLAN = 0


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """The graph of a shape, without durations.

    Attributes:
        layout: The graph; nothing in it lasts any time or has a spread.
        cost: Number of the cost of each task, the host's behind those of the devices, from -1
            downwards; shape `(tasks,)`.
        host_work: What the host does, by `-1 - number`.
        ranks: Ranks whose tasks there are.
    """

    layout: LayoutGraph
    cost: NDArray[np.int64]
    host_work: tuple[HostWork, ...]
    ranks: int

    def priced(self, problem: DlrmProblem) -> LayoutGraph:
        """Returns the graph with the durations and spreads of a problem of this shape."""
        on_device = device_costs(problem)
        host_s, host_spread = host_costs(problem, self.host_work)
        # Negative numbers count from the end.
        duration_s = np.concatenate((on_device.duration_s, host_s[::-1]))[self.cost]
        spread = np.concatenate((on_device.spread, host_spread[::-1]))[self.cost]
        host = self.layout.duration_class == DurationClass.HOST
        times = host_times(problem.cluster.host)
        dispatches = max(1.0, host.sum() / self.ranks)
        spread[host] = times.step_spread(spread[host], dispatches)
        graph = self.layout.graph.with_durations(duration_s)
        return replace(self.layout, graph=graph, spread=spread)


class Issuer:
    """Issues work on all ranks in lock step of program order.

    Args:
        shape: What decides which tasks there are.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.ranks = range(shape.ranks)
        self._builder = GraphBuilder()
        self._host = [self._builder.add_stream(rank, "host") for rank in self.ranks]
        self._compute = [self._builder.add_stream(rank, "compute") for rank in self.ranks]
        self._communication = self._compute
        if shape.own_engines:
            self._communication = [
                self._builder.add_stream(rank, "communication") for rank in self.ranks
            ]
        self._copy = [self._builder.add_stream(rank, "copy") for rank in self.ranks]
        self._storage: list[int] = []
        if shape.reads_samples:
            self._storage = [self._builder.add_stream(rank, "storage") for rank in self.ranks]
        self._slots: list[tuple[int, int, int]] = []
        self._classes: list[int] = []
        self._costs: list[int] = []
        self._host_work: dict[HostWork, int] = {}
        self._scopes: list[SyncScope] = []
        if shape.host_step:
            # What the host does while the devices wait for it.
            for rank in self.ranks:
                self.host_task(rank, STEP.name, STEP)
        self._graph_launch: list[int] = []
        if shape.launch is LaunchMode.CUDA_GRAPHS:
            self._graph_launch = [
                self.host_task(rank, GRAPH_LAUNCH.name, GRAPH_LAUNCH) for rank in self.ranks
            ]

    def handle(self, what: str, groups: tuple[ExchangeGroup, ...], *, batch: bool = False) -> None:
        """Adds the host's work with features and exchange groups besides their operators.

        Args:
            what: What is handled.
            groups: Exchange groups that it is part of.
            batch: Whether batches and features are handled.
        """
        if not self.shape.handles_features or self._graph_launch:
            return
        name = f"handle {what}"
        for rank in self.ranks:
            self.host_task(rank, name, HostWork(name, groups=groups, batch=batch))

    def finish(self) -> Structure:
        """Loads the next batch, reads later ones, and returns the graph."""
        for stream in self._storage:
            # Far ahead: it waits for nothing, and takes longer than the rest or hides behind it.
            self._classes.append(DurationClass.STORAGE)
            self._costs.append(self.shape.reading_cost)
            self._builder.add_task(READING, TaskKind.HOST, stream, 0.0, ())
        if self.shape.loads_batches:
            for rank in self.ranks:
                self.host_task(rank, LOADING.name, LOADING)
        slots = np.array(self._slots, dtype=np.int64).reshape(-1, 3)
        slots = slots[np.argsort(slots[:, 0])]
        graph: ExecutionGraph = self._builder.build()
        layout = LayoutGraph(
            graph=graph,
            slot_task=slots[:, 0],
            slot_kind=slots[:, 1],
            slot_rank=slots[:, 2],
            duration_class=np.array(self._classes, dtype=np.int8),
            spread=np.zeros(graph.task_count),
            scopes=tuple(self._scopes),
        )
        costs = np.array(self._costs, dtype=np.int64)
        return Structure(layout, costs, tuple(self._host_work), len(self.ranks))

    def dense_phase(
        self, phase: Phase, after: Sequence[Sequence[int]] | None = None
    ) -> list[list[int]]:
        """Issues operators in a row, `after` gating the first one; returns the last tasks."""
        last: list[list[int]] = [[] for _ in self.ranks]
        for index in range(len(phase.operators)):
            for rank in self.ranks:
                waits = tuple(after[rank]) if after is not None and index == 0 else ()
                last[rank] = [self.issue_dense(rank, phase, index, waits)]
        return last

    def issue_dense(self, rank: int, phase: Phase, index: int, after: Sequence[int] = ()) -> int:
        """Issues one operator of a phase on one rank."""
        name, launches = phase.operators[index]
        cost = phase.first_cost + index
        kind, streams = DurationClass.DENSE, self._compute
        return self.issue(rank, name, TaskKind.COMPUTE, kind, streams, cost, after, launches)

    def issue_copy(self, rank: int, name: str, cost: int) -> int:
        """Issues a copy from the host."""
        kind, streams = DurationClass.COPY, self._copy
        return self.issue(rank, name, TaskKind.COPY, kind, streams, cost)

    def slot_compute(
        self,
        slot: Slot,
        name: str,
        launches: int,
        after: Sequence[Sequence[int]],
        kind: DurationClass = DurationClass.EMBEDDING,
    ) -> list[int]:
        """Issues a kernel whose duration the plan decides."""
        tasks = [
            self.issue(
                rank,
                name,
                TaskKind.COMPUTE,
                kind,
                self._compute,
                _OF_PLAN,
                after[rank],
                launches,
            )
            for rank in self.ranks
        ]
        self._slots += [(task, slot, rank) for task, rank in zip(tasks, self.ranks, strict=True)]
        return tasks

    def slot_copy(self, slot: Slot, name: str) -> None:
        """Issues a copy from the host whose duration the plan decides."""
        kind, streams = DurationClass.COPY, self._copy
        for rank in self.ranks:
            task = self.issue(rank, name, TaskKind.COPY, kind, streams, _OF_PLAN)
            self._slots.append((task, slot, rank))

    def plan_collective(
        self,
        name: str,
        members: Sequence[int],
        after: Sequence[Sequence[int]],
        slot: Slot,
        scope: SyncScope = SyncScope.ALL,
    ) -> list[int]:
        """Issues a collective whose duration the plan decides."""
        tasks = self.collective(name, members, after, _OF_PLAN, scope)
        self._slots += [(task, slot, rank) for task, rank in zip(tasks, members, strict=True)]
        return tasks

    def occasional_collective(
        self, name: str, after: Sequence[Sequence[int]], slot: Slot
    ) -> list[int]:
        """Issues a collective of all ranks that belongs to every few iterations only.

        Its duration is an iteration's part; the launch by the host is left out.
        """
        tasks = []
        for rank in self.ranks:
            self._classes.append(DurationClass.COMMUNICATION)
            self._costs.append(_OF_PLAN)
            stream = self._communication[rank]
            tasks.append(
                self._builder.add_task(name, TaskKind.COLLECTIVE, stream, 0.0, tuple(after[rank]))
            )
        self._builder.add_collective(tasks)
        self._scopes.append(SyncScope.ALL)
        self._slots += [(task, slot, rank) for task, rank in zip(tasks, self.ranks, strict=True)]
        return tasks

    def collective(
        self,
        name: str,
        members: Sequence[int],
        after: Sequence[Sequence[int]],
        cost: int,
        scope: SyncScope = SyncScope.ALL,
    ) -> list[int]:
        """Issues a collective."""
        kind, streams = DurationClass.COMMUNICATION, self._communication
        tasks = [
            self.issue(rank, name, TaskKind.COLLECTIVE, kind, streams, cost, waits)
            for rank, waits in zip(members, after, strict=True)
        ]
        self._builder.add_collective(tasks)
        self._scopes.append(scope)
        return tasks

    def issue(
        self,
        rank: int,
        name: str,
        kind: TaskKind,
        duration_class: DurationClass,
        streams: Sequence[int],
        cost: int,
        after: Sequence[int] = (),
        launches: int = 1,
    ) -> int:
        """Adds a device task and, when launching eagerly, the host's dispatch before it."""
        if self._graph_launch:
            dispatch = self._graph_launch[rank]
        else:
            work = HostWork(name, launches, kind is TaskKind.COPY)
            dispatch = self.host_task(rank, f"launch {name}", work)
        self._classes.append(duration_class)
        self._costs.append(cost)
        return self._builder.add_task(name, kind, streams[rank], 0.0, (dispatch, *after))

    def host_task(self, rank: int, name: str, work: HostWork, after: Sequence[int] = ()) -> int:
        """Adds something that the host does."""
        self._classes.append(DurationClass.HOST)
        self._costs.append(-1 - self._host_work.setdefault(work, len(self._host_work)))
        return self._builder.add_task(name, TaskKind.HOST, self._host[rank], 0.0, tuple(after))
