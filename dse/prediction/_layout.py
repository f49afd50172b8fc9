"""The execution graph of one DLRM iteration on all ranks.

Within one *layout* (which exchange groups are in use) a sharding plan changes only durations, so
the graph is built once per problem and layout and the plan-dependent tasks are *slots* that the
scorer fills for thousands of plans at once.

One iteration, on every rank (TPDS'24, and TorchRec's pipelined loop):

* copy lane: the batch from host memory;
* communication lane: input distribution, pooled output exchange, gradient exchange, dense
  all-reduce buckets, in the order in which the host issues them;
* compute lane: lookups, bottom MLP (beside the output exchange), interaction, top MLP, backward in
  reverse, fused lookup backward with update, dense optimizer;
* host lane: one dispatch per operator (T1–T5), or one launch of a captured graph.

With prefetching, copy and input distribution belong to the next batch: they take their lanes' time
but nothing in this iteration waits for them. The iteration starts with idle devices and ends with
the last task, which is conservative by the first dispatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.collectives import CollectiveOp, Group, collective_estimate
from dse.graph import GraphBuilder, TaskKind
from dse.kernels import LOOKUP_LAUNCHES, UPDATE_LAUNCHES, host_copy_estimate
from dse.prediction._dense import bucket_sizes, dense_estimate
from dse.prediction._features import INDEX_BYTES, LENGTH_BYTES, ExchangeGroup
from dse.prediction._host import Dispatch, HostTimes
from dse.prediction._types import LaunchMode
from dse.workloads import dense_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph
    from dse.prediction._problem import Problem
    from dse.workloads import DenseOperators, Operator


class Slot(IntEnum):
    """Plan-dependent durations; each has one value per rank and candidate."""

    POOLED_LOOKUP = 0
    ROW_LOOKUP = auto()
    NODE_LOOKUP = auto()
    REPLICATED_LOOKUP = auto()
    POOLED_UPDATE = auto()
    ROW_UPDATE = auto()
    NODE_UPDATE = auto()
    REPLICATED_GRADIENT = auto()
    INPUT_EXCHANGE = auto()
    POOLED_EXCHANGE = auto()
    ROW_EXCHANGE = auto()
    NODE_EXCHANGE_INSIDE = auto()
    NODE_EXCHANGE_BETWEEN = auto()
    REPLICATED_ALL_REDUCE = auto()
    REPLICATED_UPDATE = auto()


class DurationClass(IntEnum):
    """What kind of model a task's duration comes from; errors are shared within a class."""

    DENSE = 0
    EMBEDDING = 1
    COMMUNICATION = 2
    HOST = 3
    COPY = 4


class _Cost(NamedTuple):
    """A duration, how far off it may be, and the kind of model it comes from."""

    duration_s: float
    spread: float
    duration_class: DurationClass


_LOOKUP_SLOTS = {
    ExchangeGroup.POOLED: (Slot.POOLED_LOOKUP, Slot.POOLED_UPDATE),
    ExchangeGroup.ROW: (Slot.ROW_LOOKUP, Slot.ROW_UPDATE),
    ExchangeGroup.NODE: (Slot.NODE_LOOKUP, Slot.NODE_UPDATE),
    ExchangeGroup.REPLICATED: (Slot.REPLICATED_LOOKUP, Slot.REPLICATED_GRADIENT),
}


@dataclass(frozen=True, slots=True)
class LayoutGraph:
    """A graph whose plan-dependent durations are named.

    Attributes:
        graph: The graph; slot tasks have duration zero.
        slot_task: Tasks to fill, ascending; shape `(slots,)`.
        slot_kind: `Slot` of each of them.
        slot_rank: Rank of each of them.
        duration_class: `DurationClass` of every task; shape `(tasks,)`.
        spread: Standard deviation of the logarithm of actual over expected duration of every task,
            as its model says; shape `(tasks,)`.
    """

    graph: ExecutionGraph
    slot_task: NDArray[np.int64]
    slot_kind: NDArray[np.int64]
    slot_rank: NDArray[np.int64]
    duration_class: NDArray[np.int8]
    spread: NDArray[np.float64]


def build_layout(problem: Problem, layout: int, *, one_rank: bool = False) -> LayoutGraph:
    """Builds the graph of one iteration.

    Args:
        problem: Everything but the plan.
        layout: Bit set of the `ExchangeGroup` members in use.
        one_rank: Only the tasks of rank 0, with the durations that they have in the whole cluster;
            its collectives wait for nobody. Where all ranks do the same, its makespan is theirs.
    """
    return _Iteration(problem, layout, one_rank=one_rank).build()


class _Iteration:
    """Issues one iteration on all ranks in lock step of program order."""

    def __init__(self, problem: Problem, layout: int, *, one_rank: bool = False) -> None:
        self._problem = problem
        self._software = problem.software
        self._alone = problem.cluster.world_size == 1
        self._ranks = range(1 if one_rank else problem.cluster.world_size)
        self._host_times = HostTimes(problem.cluster.host, problem.host_profile)
        self._groups = [group for group in ExchangeGroup if layout >> group & 1]
        self._dense: DenseOperators = dense_operators(
            problem.model, problem.local_batch_size, problem.precision
        )
        self._builder = GraphBuilder()
        self._host = [self._builder.add_lane(rank, "host") for rank in self._ranks]
        self._compute = [self._builder.add_lane(rank, "compute") for rank in self._ranks]
        self._communication = [
            self._builder.add_lane(rank, "communication") for rank in self._ranks
        ]
        self._copy = [self._builder.add_lane(rank, "copy") for rank in self._ranks]
        self._slots: list[tuple[int, int, int]] = []
        self._classes: list[int] = []
        self._spreads: list[float] = []
        self._graph_launch = self._launch_captured_graph()

    def build(self) -> LayoutGraph:
        """Issues all phases and returns the graph."""
        embeddings_ready = self._forward_embeddings()
        bottom = self._dense_phase(self._dense.bottom_forward)
        after = [bottom[rank] + embeddings_ready[rank] for rank in self._ranks]
        self._dense_phase([*self._dense.interaction_forward, *self._dense.top_forward], after)
        reduced = self._backward()
        self._dense_phase(self._dense.optimizer, reduced)
        slots = np.array(self._slots, dtype=np.int64).reshape(-1, 3)
        slots = slots[np.argsort(slots[:, 0])]
        classes, spread = np.array(self._classes, dtype=np.int8), np.array(self._spreads)
        host = classes == DurationClass.HOST
        dispatches = max(1.0, host.sum() / len(self._ranks))
        spread[host] = self._host_times.step_spread(spread[host], dispatches)
        return LayoutGraph(
            graph=self._builder.build(),
            slot_task=slots[:, 0],
            slot_kind=slots[:, 1],
            slot_rank=slots[:, 2],
            duration_class=classes,
            spread=spread,
        )

    # --- phases ---------------------------------------------------------------------------------

    def _forward_embeddings(self) -> list[list[int]]:
        """Input, lookups and output exchange; returns what the interaction waits for, per rank."""
        input_ready = self._input()
        if self._software.prefetch_input:
            input_ready = [[] for _ in self._ranks]
        ready: list[list[int]] = [[] for _ in self._ranks]
        for group in self._groups:
            slot = _LOOKUP_SLOTS[group][0]
            lookups = self._slot_compute(
                slot, f"{group.name.lower()} lookup", LOOKUP_LAUNCHES, input_ready
            )
            outputs = self._exchange_outputs(group, lookups)
            for rank in self._ranks:
                ready[rank].append(outputs[rank])
        return ready

    def _input(self) -> list[list[int]]:
        """Copy from the host and index exchange; returns what a lookup of that batch waits for."""
        model, samples = self._problem.model, self._problem.local_batch_size
        lookups = sum(table.lookups_per_sample for table in model.tables)
        features = sum(table.feature_count for table in model.tables)
        index_bytes = samples * (lookups * INDEX_BYTES + features * LENGTH_BYTES)
        cluster = self._problem.cluster
        copies: list[list[int]] = [[] for _ in self._ranks]
        copy_bytes = [("copy indices", index_bytes)] + [
            (operator.name, operator.traffic_bytes) for operator in self._dense.input_copy
        ]
        for name, size_bytes in copy_bytes:
            estimate = host_copy_estimate(
                cluster.device, cluster.host_link, "memcpy_h2d", size_bytes
            )
            cost = _Cost(float(estimate.time_s), float(estimate.spread), DurationClass.COPY)
            for rank in self._ranks:
                copies[rank].append(self._issue(rank, name, TaskKind.COPY, self._copy, cost))
        exchanged = [group for group in self._groups if group is not ExchangeGroup.REPLICATED]
        if not exchanged or self._alone:
            return copies
        # The next batch was copied an iteration ago: its exchange waits for no copy of this one.
        after = [[] for _ in self._ranks] if self._software.prefetch_input else copies
        tasks = self._slot_meeting("input all-to-all", self._ranks, after, Slot.INPUT_EXCHANGE)
        if not self._software.prefetch_input and self._software.launch is LaunchMode.EAGER:
            # The host reads the exchanged lengths before it can size the lookups' inputs.
            for rank, task in zip(self._ranks, tasks, strict=True):
                self._host_task(rank, "wait for lengths", Dispatch(0.0, 0.0), (task,))
        return [[*copies[rank], tasks[rank]] for rank in self._ranks]

    def _backward(self) -> list[list[int]]:
        """Backward pass; returns what the dense optimizer waits for, per rank."""
        dense = self._dense
        phases = (dense.top_backward, dense.interaction_backward, dense.bottom_backward)
        operators = [operator for phase in phases for operator in phase]
        costs = self._dense_costs(operators)
        groups = [(group.parameters, group.ready_after) for group in dense.parameter_groups]
        buckets = bucket_sizes(groups, self._software.dense_bucket_bytes)
        last_of_interaction = len(phases[0]) + len(phases[1]) - 1
        reduced: list[list[int]] = [[] for _ in self._ranks]
        gradients: dict[ExchangeGroup, list[int]] = {}
        tasks: list[int] = []
        for index, operator in enumerate(operators):
            tasks = [self._issue_dense(rank, operator, costs[index], ()) for rank in self._ranks]
            if index == last_of_interaction:
                gradients = self._exchange_gradients(tasks)
            if self._software.overlap_dense_all_reduce:
                ready = [size for size, last in buckets if last == index]
                self._reduce_dense(ready, tasks, reduced)
        if not self._software.overlap_dense_all_reduce:
            self._reduce_dense([size for size, _ in buckets], tasks, reduced)
        self._update_embeddings(gradients)
        return reduced

    def _reduce_dense(
        self, sizes: Sequence[int], after: Sequence[int], reduced: list[list[int]]
    ) -> None:
        if self._alone:
            return
        for size_bytes in sizes:
            estimate = collective_estimate(
                self._problem.cluster, CollectiveOp.ALL_REDUCE, size_bytes
            )
            cost = _Cost(
                float(estimate.time_s), float(estimate.spread), DurationClass.COMMUNICATION
            )
            waits = [[task] for task in after]
            tasks = self._meeting("dense all-reduce", self._ranks, waits, cost)
            for rank in self._ranks:
                reduced[rank].append(tasks[rank])

    def _update_embeddings(self, gradients: dict[ExchangeGroup, list[int]]) -> None:
        for group in self._groups:
            after = [[task] for task in gradients[group]]
            slot = _LOOKUP_SLOTS[group][1]
            name = f"{group.name.lower()} lookup backward"
            updates = self._slot_compute(slot, name, UPDATE_LAUNCHES, after)
            if group is not ExchangeGroup.REPLICATED:
                continue
            if not self._alone:
                waits = [[task] for task in updates]
                updates = self._slot_meeting(
                    "replicated tables all-reduce", self._ranks, waits, Slot.REPLICATED_ALL_REDUCE
                )
            self._slot_compute(
                Slot.REPLICATED_UPDATE,
                "replicated tables update",
                1,
                [[task] for task in updates],
            )

    def _exchange_outputs(self, group: ExchangeGroup, lookups: list[int]) -> list[int]:
        if group is ExchangeGroup.REPLICATED or self._alone:
            return lookups
        after = [[task] for task in lookups]
        if group is ExchangeGroup.POOLED:
            return self._slot_meeting(
                "output all-to-all", self._ranks, after, Slot.POOLED_EXCHANGE
            )
        if group is ExchangeGroup.ROW:
            return self._slot_meeting(
                "output reduce-scatter", self._ranks, after, Slot.ROW_EXCHANGE
            )
        inside = self._exchange_inside("output reduce-scatter", after)
        return self._exchange_between("output all-to-all between nodes", inside)

    def _exchange_gradients(self, after_tasks: list[int]) -> dict[ExchangeGroup, list[int]]:
        """Mirrors the output exchange for each group."""
        result: dict[ExchangeGroup, list[int]] = {}
        for group in self._groups:
            after = [[task] for task in after_tasks]
            if group is ExchangeGroup.REPLICATED or self._alone:
                result[group] = after_tasks
            elif group is ExchangeGroup.POOLED:
                result[group] = self._slot_meeting(
                    "gradient all-to-all", self._ranks, after, Slot.POOLED_EXCHANGE
                )
            elif group is ExchangeGroup.ROW:
                result[group] = self._slot_meeting(
                    "gradient all-gather", self._ranks, after, Slot.ROW_EXCHANGE
                )
            else:
                between = self._exchange_between("gradient all-to-all between nodes", after_tasks)
                result[group] = self._exchange_inside(
                    "gradient all-gather", [[task] for task in between]
                )
        return result

    def _exchange_inside(self, name: str, after: list[list[int]]) -> list[int]:
        """One meeting per node."""
        local_size = self._problem.cluster.local_size
        if local_size == 1:
            return [tasks[0] for tasks in after]
        result: list[int] = []
        for start in range(0, len(self._ranks), local_size):
            members = self._ranks[start : start + local_size]
            waits = [after[rank] for rank in members]
            result += self._slot_meeting(name, members, waits, Slot.NODE_EXCHANGE_INSIDE)
        return result

    def _exchange_between(self, name: str, after: list[int]) -> list[int]:
        """One meeting per local rank, across the nodes."""
        cluster = self._problem.cluster
        if cluster.node_count == 1:
            return after
        result = list(after)
        for local_rank in self._ranks[: cluster.local_size]:
            members = self._ranks[local_rank :: cluster.local_size]
            waits = [[after[rank]] for rank in members]
            tasks = self._slot_meeting(name, members, waits, Slot.NODE_EXCHANGE_BETWEEN)
            for rank, task in zip(members, tasks, strict=True):
                result[rank] = task
        return result

    # --- issuing --------------------------------------------------------------------------------

    def _dense_phase(
        self, operators: Sequence[Operator], after: Sequence[Sequence[int]] | None = None
    ) -> list[list[int]]:
        """Issues operators in a row, `after` gating the first one; returns the last tasks."""
        last: list[list[int]] = [[] for _ in self._ranks]
        for index, (operator, cost) in enumerate(
            zip(operators, self._dense_costs(operators), strict=True)
        ):
            for rank in self._ranks:
                waits = tuple(after[rank]) if after is not None and index == 0 else ()
                last[rank] = [self._issue_dense(rank, operator, cost, waits)]
        return last

    def _dense_costs(self, operators: Sequence[Operator]) -> tuple[_Cost, ...]:
        return _dense_costs(self._problem, tuple(operators))

    def _issue_dense(
        self, rank: int, operator: Operator, cost: _Cost, after: Sequence[int]
    ) -> int:
        return self._issue(
            rank,
            operator.name,
            TaskKind.COMPUTE,
            self._compute,
            cost,
            after,
            operator.launches,
        )

    def _slot_compute(
        self, slot: Slot, name: str, launches: int, after: Sequence[Sequence[int]]
    ) -> list[int]:
        cost = _Cost(0.0, 0.0, DurationClass.EMBEDDING)
        tasks = [
            self._issue(rank, name, TaskKind.COMPUTE, self._compute, cost, after[rank], launches)
            for rank in self._ranks
        ]
        self._slots += [(task, slot, rank) for task, rank in zip(tasks, self._ranks, strict=True)]
        return tasks

    def _slot_meeting(
        self, name: str, members: Sequence[int], after: Sequence[Sequence[int]], slot: Slot
    ) -> list[int]:
        tasks = self._meeting(name, members, after, _Cost(0.0, 0.0, DurationClass.COMMUNICATION))
        self._slots += [(task, slot, rank) for task, rank in zip(tasks, members, strict=True)]
        return tasks

    def _meeting(
        self, name: str, members: Sequence[int], after: Sequence[Sequence[int]], cost: _Cost
    ) -> list[int]:
        lanes = self._communication
        tasks = [
            self._issue(rank, name, TaskKind.COLLECTIVE, lanes, cost, waits)
            for rank, waits in zip(members, after, strict=True)
        ]
        self._builder.add_meeting(tasks)
        return tasks

    def _issue(
        self,
        rank: int,
        name: str,
        kind: TaskKind,
        lanes: Sequence[int],
        cost: _Cost,
        after: Sequence[int] = (),
        launches: int = 1,
    ) -> int:
        """Adds a device task and, when launching eagerly, the host's dispatch before it."""
        if self._graph_launch:
            dispatch = self._graph_launch[rank]
        else:
            cost_of_host = self._host_times.dispatch(name, launches, kind is TaskKind.COPY)
            dispatch = self._host_task(rank, f"launch {name}", cost_of_host)
        self._classes.append(cost.duration_class)
        self._spreads.append(cost.spread)
        return self._builder.add_task(name, kind, lanes[rank], cost.duration_s, (dispatch, *after))

    def _host_task(self, rank: int, name: str, cost: Dispatch, after: Sequence[int] = ()) -> int:
        self._classes.append(DurationClass.HOST)
        self._spreads.append(cost.spread)
        return self._builder.add_task(
            name, TaskKind.HOST, self._host[rank], cost.duration_s, tuple(after)
        )

    def _launch_captured_graph(self) -> list[int]:
        if self._software.launch is not LaunchMode.CUDA_GRAPHS:
            return []
        cost = self._host_times.graph_launch()
        return [self._host_task(rank, "launch graph", cost) for rank in self._ranks]


@lru_cache(maxsize=64)
def _dense_costs(problem: Problem, operators: tuple[Operator, ...]) -> tuple[_Cost, ...]:
    """Costs of dense operators; the same in all layouts, and learned models take their time."""
    estimate = dense_estimate(problem, operators)
    return tuple(
        _Cost(float(seconds), float(spread), DurationClass.DENSE)
        for seconds, spread in zip(estimate.time_s, estimate.spread, strict=True)
    )


def node_group(problem: Problem) -> Group:
    """Returns the group of one exchange between nodes: one rank of every node, all at once."""
    cluster = problem.cluster
    return Group(cluster.node_count, 1, card_sharers=cluster.local_size)
