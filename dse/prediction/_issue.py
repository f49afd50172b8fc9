"""Adds the tasks of an iteration to a graph: a launch by the host, then work on a lane."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.graph import GraphBuilder, TaskKind
from dse.prediction._contention import has_own_engines
from dse.prediction._dense import dense_estimate
from dse.prediction._host import Dispatch, HostTimes
from dse.prediction._slots import DurationClass, LayoutGraph, Slot
from dse.prediction._software import LaunchMode
from dse.simulate import Meets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.hardware import DeviceSpec, Precision
    from dse.prediction._problem import Problem
    from dse.workloads import Operator


class Cost(NamedTuple):
    """A duration, how far off it may be, and the kind of model it comes from."""

    duration_s: float
    spread: float
    duration_class: DurationClass


class Issuer:
    """Issues work on all ranks in lock step of program order.

    Args:
        problem: Everything but the plan.
        phases: Dense operators that are issued one after the other, by phase.
        one_rank: Only rank 0, whose collectives wait for nobody.
    """

    def __init__(
        self, problem: Problem, phases: tuple[tuple[Operator, ...], ...], *, one_rank: bool
    ) -> None:
        self.problem = problem
        self.software = problem.software
        self.alone = problem.cluster.world_size == 1
        self.ranks = range(1 if one_rank else problem.cluster.world_size)
        self._host_times = HostTimes(problem.cluster.host, problem.host_profile)
        self._costs = _dense_costs(problem.cluster.device, problem.precision, phases)
        self._builder = GraphBuilder()
        self._host = [self._builder.add_lane(rank, "host") for rank in self.ranks]
        self._compute = [self._builder.add_lane(rank, "compute") for rank in self.ranks]
        self._communication = self._compute
        if has_own_engines(problem.cluster.device):
            self._communication = [
                self._builder.add_lane(rank, "communication") for rank in self.ranks
            ]
        self._copy = [self._builder.add_lane(rank, "copy") for rank in self.ranks]
        self._slots: list[tuple[int, int, int]] = []
        self._classes: list[int] = []
        self._spreads: list[float] = []
        self._meets: list[Meets] = []
        self._start_step()
        self._graph_launch = self._launch_captured_graph()

    def finish(self) -> LayoutGraph:
        """Loads the next batch and returns the graph."""
        loading_s = self.software.loader_s_per_sample * self.problem.local_batch_size
        if loading_s > 0:
            for rank in self.ranks:
                self.host_task(rank, "load the next batch", Dispatch(loading_s, 0.0))
        slots = np.array(self._slots, dtype=np.int64).reshape(-1, 3)
        slots = slots[np.argsort(slots[:, 0])]
        classes, spread = np.array(self._classes, dtype=np.int8), np.array(self._spreads)
        host = classes == DurationClass.HOST
        dispatches = max(1.0, host.sum() / len(self.ranks))
        spread[host] = self._host_times.step_spread(spread[host], dispatches)
        return LayoutGraph(
            graph=self._builder.build(),
            slot_task=slots[:, 0],
            slot_kind=slots[:, 1],
            slot_rank=slots[:, 2],
            duration_class=classes,
            spread=spread,
            meets=tuple(self._meets),
        )

    def dense_phase(
        self, operators: Sequence[Operator], after: Sequence[Sequence[int]] | None = None
    ) -> list[list[int]]:
        """Issues operators in a row, `after` gating the first one; returns the last tasks."""
        last: list[list[int]] = [[] for _ in self.ranks]
        for index, (operator, cost) in enumerate(
            zip(operators, self.dense_costs(operators), strict=True)
        ):
            for rank in self.ranks:
                waits = tuple(after[rank]) if after is not None and index == 0 else ()
                last[rank] = [self.issue_dense(rank, operator, cost, waits)]
        return last

    def dense_costs(self, operators: Sequence[Operator]) -> tuple[Cost, ...]:
        return self._costs[tuple(operators)]

    def issue_dense(self, rank: int, operator: Operator, cost: Cost, after: Sequence[int]) -> int:
        return self.issue(
            rank,
            operator.name,
            TaskKind.COMPUTE,
            self._compute,
            cost,
            after,
            operator.launches,
        )

    def slot_compute(
        self, slot: Slot, name: str, launches: int, after: Sequence[Sequence[int]]
    ) -> list[int]:
        cost = Cost(0.0, 0.0, DurationClass.EMBEDDING)
        tasks = [
            self.issue(rank, name, TaskKind.COMPUTE, self._compute, cost, after[rank], launches)
            for rank in self.ranks
        ]
        self._slots += [(task, slot, rank) for task, rank in zip(tasks, self.ranks, strict=True)]
        return tasks

    def slot_meeting(
        self,
        name: str,
        members: Sequence[int],
        after: Sequence[Sequence[int]],
        slot: Slot,
        meets: Meets = Meets.ALL,
    ) -> list[int]:
        cost = Cost(0.0, 0.0, DurationClass.COMMUNICATION)
        tasks = self.meeting(name, members, after, cost, meets)
        self._slots += [(task, slot, rank) for task, rank in zip(tasks, members, strict=True)]
        return tasks

    def meeting(
        self,
        name: str,
        members: Sequence[int],
        after: Sequence[Sequence[int]],
        cost: Cost,
        meets: Meets = Meets.ALL,
    ) -> list[int]:
        lanes = self._communication
        tasks = [
            self.issue(rank, name, TaskKind.COLLECTIVE, lanes, cost, waits)
            for rank, waits in zip(members, after, strict=True)
        ]
        self._builder.add_meeting(tasks)
        self._meets.append(meets)
        return tasks

    def issue(
        self,
        rank: int,
        name: str,
        kind: TaskKind,
        lanes: Sequence[int],
        cost: Cost,
        after: Sequence[int] = (),
        launches: int = 1,
    ) -> int:
        """Adds a device task and, when launching eagerly, the host's dispatch before it."""
        if self._graph_launch:
            dispatch = self._graph_launch[rank]
        else:
            cost_of_host = self._host_times.dispatch(name, launches, kind is TaskKind.COPY)
            if self.problem.host_profile is None:
                calls = self.software.calls_per_operator
                cost_of_host = cost_of_host._replace(duration_s=calls * cost_of_host.duration_s)
            dispatch = self.host_task(rank, f"launch {name}", cost_of_host)
        self._classes.append(cost.duration_class)
        self._spreads.append(cost.spread)
        return self._builder.add_task(name, kind, lanes[rank], cost.duration_s, (dispatch, *after))

    def host_task(self, rank: int, name: str, cost: Dispatch, after: Sequence[int] = ()) -> int:
        self._classes.append(DurationClass.HOST)
        self._spreads.append(cost.spread)
        return self._builder.add_task(
            name, TaskKind.HOST, self._host[rank], cost.duration_s, tuple(after)
        )

    def _start_step(self) -> None:
        """What the host does while the devices wait for it."""
        if self.software.step_host_s > 0:
            for rank in self.ranks:
                cost = Dispatch(self.software.step_host_s, 0.0)
                self.host_task(rank, "step on the host", cost)

    def _launch_captured_graph(self) -> list[int]:
        if self.software.launch is not LaunchMode.CUDA_GRAPHS:
            return []
        cost = self._host_times.graph_launch()
        return [self.host_task(rank, "launch graph", cost) for rank in self.ranks]


@lru_cache(maxsize=256)
def _dense_costs(
    device: DeviceSpec, precision: Precision, phases: tuple[tuple[Operator, ...], ...]
) -> dict[tuple[Operator, ...], tuple[Cost, ...]]:
    """Costs of dense operators by phase.

    They are the same in all layouts. Learned models cost by the call, so all phases are one.
    """
    estimate = dense_estimate(device, precision, [op for phase in phases for op in phase])
    every = [
        Cost(float(seconds), float(spread), DurationClass.DENSE)
        for seconds, spread in zip(estimate.time_s, estimate.spread, strict=True)
    ]
    ends = np.cumsum([len(phase) for phase in phases]).tolist()
    return {
        phase: tuple(every[end - len(phase) : end])
        for phase, end in zip(phases, ends, strict=True)
    }
