"""Builder of training steps in which all ranks run the same tasks.

A new kind of workload that is data-parallel, or whose ranks do equal work, needs no graph of its
own: it issues kernels and collectives in program order. The host's dispatch, contention, errors
and attribution follow from the same models as those of every other workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.explanation import ROW, Resource, TaskResources, resource_names
from dse.graph import GraphBuilder, TaskKind
from dse.machine import COLLECTIVE_SLOWDOWN, KERNEL_SLOWDOWN
from dse.machine.collectives import collective_estimate
from dse.simulate import SymmetricRanks, SyncScope
from dse.workload._explain import AttributedGraph
from dse.workload._host import HostTimes
from dse.workload._iteration import DurationClass, ErrorSource, Iteration
from dse.workload._launch import LaunchMode
from dse.workload._step_errors import ErrorShape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.machine import Cluster, Precision
    from dse.machine.collectives import CollectiveOp
    from dse.machine.fits import Estimate


@dataclass(frozen=True, slots=True)
class _Task:
    """What is known of a task besides its place in the graph."""

    duration_class: DurationClass
    spread: float
    group: str
    resource: Resource


class StepBuilder:
    """Issues the tasks of one training step in program order.

    Kernels run on the compute stream, collectives on the communication stream, and the host
    dispatches both.

    Args:
        cluster: Where the step runs.
        precision: Arithmetic, for the names of resources.
        launch: Eager launches, or one captured graph.
        calls_per_op: Calls of the framework for one kernel.
    """

    def __init__(
        self,
        cluster: Cluster,
        precision: Precision,
        *,
        launch: LaunchMode = LaunchMode.EAGER,
        calls_per_op: float = 1.0,
    ) -> None:
        self._cluster = cluster
        self._precision = precision
        self._host_times = HostTimes(cluster.host)
        self._calls = 1.0 if cluster.host.profile is not None else calls_per_op
        self._builder = GraphBuilder()
        self._streams = {
            name: self._builder.add_stream(0, name)
            for name in ("host", "compute", "communication")
        }
        self._tasks: list[_Task] = []
        self._scopes: list[SyncScope] = []
        self._captured: int | None = None
        if launch is LaunchMode.CUDA_GRAPHS:
            seconds, spread = self._host_times.graph_launch()
            self._captured = self._host("launch graph", seconds, spread)

    def kernel(
        self,
        name: str,
        estimate: Estimate,
        *,
        group: str,
        after: Iterable[int] = (),
        resource: Resource = Resource.ARITHMETIC,
        next_to_collective: bool = False,
    ) -> int:
        """Issues a kernel and returns its number.

        Args:
            name: Name for time lines.
            estimate: Its duration alone, with its spread.
            group: What it is for.
            after: Tasks it waits for, besides the kernel before it.
            resource: What binds it.
            next_to_collective: Whether a collective runs at the same time, which slows it down.
        """
        seconds = float(estimate.time_s) * (KERNEL_SLOWDOWN if next_to_collective else 1.0)
        kind = _Task(DurationClass.DENSE, float(estimate.spread), group, resource)
        return self._issue(name, TaskKind.COMPUTE, "compute", seconds, kind, after)

    def collective(
        self,
        name: str,
        op: CollectiveOp,
        size_bytes: float,
        *,
        group: str,
        after: Iterable[int] = (),
        next_to_kernels: bool = False,
    ) -> int:
        """Issues a collective over all ranks and returns its number.

        Args:
            name: Name for time lines.
            op: The operation.
            size_bytes: Message size as nccl-tests counts it.
            group: What it is for.
            after: Tasks it waits for, besides the collective before it.
            next_to_kernels: Whether kernels run at the same time, which slows it down.
        """
        estimate = collective_estimate(self._cluster, op, size_bytes)
        seconds = float(estimate.time_s) * (COLLECTIVE_SLOWDOWN if next_to_kernels else 1.0)
        across = self._cluster.domain_count > 1
        resource = Resource.NETWORK if across else Resource.LINK
        kind = _Task(DurationClass.COMMUNICATION, float(estimate.spread), group, resource)
        task = self._issue(name, TaskKind.COLLECTIVE, "communication", seconds, kind, after)
        self._builder.add_collective([task])
        self._scopes.append(SyncScope.ALL)
        return task

    def iteration(self, spread: float = 0.0) -> Iteration:
        """Returns the step.

        Args:
            spread: Scale of the logarithm of actual over predicted time of the whole step that
                remains when every model is right.
        """
        graph = self._builder.build()
        cluster = self._cluster
        ranks = SymmetricRanks(
            graph, cluster.domain_count, cluster.domain_size, tuple(self._scopes)
        )
        number = {name: index for index, name in enumerate(dict.fromkeys(graph.names))}
        group = np.array([number[name] for name in graph.names], dtype=np.int64)
        spreads = np.array([task.spread for task in self._tasks])
        errors = tuple(
            ErrorSource(
                duration_class,
                np.array([float(task.duration_class is duration_class) for task in self._tasks]),
                spreads,
                group,
            )
            for duration_class in dict.fromkeys(task.duration_class for task in self._tasks)
        )
        duration_s = np.repeat(graph.duration_s[:, None], ranks.copies, axis=1)
        groups = tuple(task.group for task in self._tasks)
        rows = np.arange(graph.task_count)
        return Iteration(ranks, duration_s, errors, rows, ErrorShape(spread), groups)

    def attributed(self) -> AttributedGraph:
        """Returns the step of one rank, which stands for all, with what takes its time."""
        graph = self._builder.build()
        seconds = np.zeros((len(Resource), graph.task_count))
        rows = [ROW[task.resource] for task in self._tasks]
        seconds[rows, np.arange(graph.task_count)] = graph.duration_s
        names = resource_names(self._cluster, self._precision)
        return AttributedGraph(
            graph,
            TaskResources.of(graph.duration_s, np.zeros_like(seconds), seconds, names),
            tuple(task.group for task in self._tasks),
        )

    def _issue(
        self,
        name: str,
        kind: TaskKind,
        stream: str,
        seconds: float,
        task: _Task,
        after: Iterable[int],
    ) -> int:
        dispatch = self._captured
        if dispatch is None:
            host_s, spread = self._host_times.dispatch(name, 1)
            dispatch = self._host(f"launch {name}", self._calls * host_s, spread)
        self._tasks.append(task)
        return self._builder.add_task(
            name, kind, self._streams[stream], seconds, (dispatch, *after)
        )

    def _host(self, name: str, seconds: float, spread: float) -> int:
        self._tasks.append(_Task(DurationClass.HOST, spread, "host dispatch", Resource.HOST))
        return self._builder.add_task(name, TaskKind.HOST, self._streams["host"], seconds)
