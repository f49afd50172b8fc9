"""The execution graph of one DLRM iteration on all ranks.

Within one *layout* (which exchange groups are in use) a sharding plan changes only durations, so
the graph is built once per problem and layout and the plan-dependent tasks are *slots* that the
scorer fills for thousands of plans at once.

One iteration, on every rank (TPDS'24, and TorchRec's pipelined loop):

* copy lane: the batch from host memory;
* communication lane: input distribution, pooled output exchange, gradient exchange, dense
  all-reduce buckets, in the order in which the host issues them;
* compute lane: lookups, bottom MLP (beside the output exchange), interaction, top MLP, backward in
  reverse, lookup backward with update, dense optimizer;
* host lane: one dispatch per operator (T1–T5), or one launch of a captured graph; what the program
  does on the host before the devices start, and the loading of the next batch at the end.

With prefetching, copy and input distribution belong to the next batch: they take their lanes' time
but nothing in this iteration waits for them. The iteration starts with idle devices and ends with
the last task, which is conservative by the first dispatches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.collectives import CollectiveOp, Group, collective_estimate
from dse.graph import TaskKind
from dse.kernels import LOOKUP_LAUNCHES, UPDATE_LAUNCHES, host_copy_estimate
from dse.prediction._contention import contended, has_own_engines
from dse.prediction._dense import bucket_sizes
from dse.prediction._features import INDEX_BYTES, LENGTH_BYTES, ExchangeGroup
from dse.prediction._host import Dispatch
from dse.prediction._issue import Cost, Issuer
from dse.prediction._operators import bottom_on_first_rank, stack_operators
from dse.prediction._slots import DurationClass, Slot
from dse.prediction._software import InputPath, LaunchMode
from dse.simulate import Meets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.prediction._problem import Problem
    from dse.prediction._slots import LayoutGraph
    from dse.workloads import Operator

_LOOKUP_SLOTS = {
    ExchangeGroup.POOLED: (Slot.POOLED_LOOKUP, Slot.POOLED_UPDATE),
    ExchangeGroup.ROW: (Slot.ROW_LOOKUP, Slot.ROW_UPDATE),
    ExchangeGroup.NODE: (Slot.NODE_LOOKUP, Slot.NODE_UPDATE),
    ExchangeGroup.REPLICATED: (Slot.REPLICATED_LOOKUP, Slot.REPLICATED_GRADIENT),
}


def build_layout(
    problem: Problem, layout: int, *, one_rank: bool = False, forward_only: bool = False
) -> LayoutGraph:
    """Builds the graph of one iteration.

    Args:
        problem: Everything but the plan.
        layout: Bit set of the `ExchangeGroup` members in use.
        one_rank: Only the tasks of rank 0, with the durations that they have in the whole cluster;
            its collectives wait for nobody. Where all ranks do the same, its makespan is theirs;
            what only the first rank does is left out.
        forward_only: Only the forward pass, as in an evaluation.
    """
    return _Iteration(problem, layout, one_rank=one_rank).build(forward_only=forward_only)


class _Iteration(Issuer):
    """The phases of an iteration in program order."""

    def __init__(self, problem: Problem, layout: int, *, one_rank: bool) -> None:
        dense = self._dense = stack_operators(problem)
        phases = (
            dense.bottom_forward,
            dense.first_bottom_forward,
            dense.forward,
            (*dense.backward, *dense.bottom_backward),
            dense.first_bottom_backward,
            dense.optimizer,
        )
        super().__init__(problem, phases, one_rank=one_rank)
        self._first_rank_bottom = bottom_on_first_rank(problem) and not one_rank
        if bottom_on_first_rank(problem):
            # The bottom MLP's output takes part in the exchange of pooled vectors.
            layout |= 1 << ExchangeGroup.POOLED
        self._groups = [group for group in ExchangeGroup if layout >> group & 1]

    def build(self, *, forward_only: bool) -> LayoutGraph:
        """Issues all phases and returns the graph."""
        embeddings_ready = self._forward_embeddings()
        bottom = self.dense_phase(self._dense.bottom_forward)
        after = [bottom[rank] + embeddings_ready[rank] for rank in self.ranks]
        self.dense_phase(self._dense.forward, after)
        if not forward_only:
            reduced = self._backward()
            self.dense_phase(self._dense.optimizer, reduced)
        return self.finish()

    def _forward_embeddings(self) -> list[list[int]]:
        """Input, lookups and output exchange; returns what the interaction waits for, per rank."""
        input_ready = self._input()
        if self.software.prefetch_input:
            input_ready = [[] for _ in self.ranks]
        ready: list[list[int]] = [[] for _ in self.ranks]
        for group in self._groups:
            slot = _LOOKUP_SLOTS[group][0]
            lookups = self.slot_compute(
                slot, f"{group.name.lower()} lookup", LOOKUP_LAUNCHES, input_ready
            )
            produced = [[task] for task in lookups]
            if group is ExchangeGroup.POOLED and self._first_rank_bottom:
                produced[0] += self._first_bottom(self._dense.first_bottom_forward)
            outputs = self._exchange_outputs(group, produced)
            for rank in self.ranks:
                ready[rank].append(outputs[rank])
        return ready

    def _input(self) -> list[list[int]]:
        """Copy from the host and index exchange; returns what a lookup of that batch waits for."""
        model, samples = self.problem.model, self.problem.local_batch_size
        lookups = sum(table.lookups_per_sample for table in model.tables)
        features = sum(table.feature_count for table in model.tables)
        index_bytes = samples * (lookups * INDEX_BYTES + features * LENGTH_BYTES)
        cluster = self.problem.cluster
        copies: list[list[int]] = [[] for _ in self.ranks]
        if self.software.input_path is InputPath.ON_DEVICE:
            return copies
        copy_bytes = [("copy indices", index_bytes)] + [
            (operator.name, operator.traffic_bytes) for operator in self._dense.input_copy
        ]
        for name, size_bytes in copy_bytes:
            estimate = host_copy_estimate(
                cluster.device, cluster.host_link, "memcpy_h2d", size_bytes
            )
            cost = Cost(float(estimate.time_s), float(estimate.spread), DurationClass.COPY)
            for rank in self.ranks:
                copies[rank].append(self.issue(rank, name, TaskKind.COPY, self._copy, cost))
        exchanged = [group for group in self._groups if group is not ExchangeGroup.REPLICATED]
        by_sample = self.software.input_path is InputPath.BY_SAMPLE
        if not exchanged or self.alone or not by_sample:
            return copies
        # The next batch was copied an iteration ago: its exchange waits for no copy of this one.
        after = [[] for _ in self.ranks] if self.software.prefetch_input else copies
        tasks = self.slot_meeting("input all-to-all", self.ranks, after, Slot.INPUT_EXCHANGE)
        if not self.software.prefetch_input and self.software.launch is LaunchMode.EAGER:
            # The host reads the exchanged lengths before it can size the lookups' inputs.
            for rank, task in zip(self.ranks, tasks, strict=True):
                self.host_task(rank, "wait for lengths", Dispatch(0.0, 0.0), (task,))
        return [[*copies[rank], tasks[rank]] for rank in self.ranks]

    def _first_bottom(self, operators: Sequence[Operator], after: Sequence[int] = ()) -> list[int]:
        """Issues the bottom MLP of the first rank; returns its last task, if any."""
        last: list[int] = []
        for index, (operator, cost) in enumerate(
            zip(operators, self.dense_costs(operators), strict=True)
        ):
            waits = tuple(after) if index == 0 else ()
            last = [self.issue_dense(0, operator, cost, waits)]
        return last

    def _backward(self) -> list[list[int]]:
        """Backward pass; returns what the dense optimizer waits for, per rank."""
        dense = self._dense
        operators = [*dense.backward, *dense.bottom_backward]
        buckets = bucket_sizes(dense.gradients, self.software.dense_bucket_bytes)
        reductions = [self._all_reduce_cost(size_bytes) for size_bytes, _ in buckets]
        costs = self.dense_costs(operators)
        beside = self.software.overlap_dense_all_reduce
        if beside and has_own_engines(self.problem.cluster.device):
            first = min((last for _, last in buckets), default=len(operators))
            slowed, reductions = contended(costs, reductions, first + 1)
            costs = tuple(slowed)
        last_of_interaction = len(dense.backward) - 1
        reduced: list[list[int]] = [[] for _ in self.ranks]
        gradients: dict[ExchangeGroup, list[int]] = {}
        tasks: list[int] = []
        for index, operator in enumerate(operators):
            tasks = [self.issue_dense(rank, operator, costs[index], ()) for rank in self.ranks]
            if index == last_of_interaction:
                gradients = self._exchange_gradients(tasks)
            if self.software.overlap_dense_all_reduce:
                ready = [
                    cost
                    for cost, (_, last) in zip(reductions, buckets, strict=True)
                    if last == index
                ]
                self._reduce_dense(ready, tasks, reduced)
        if not self.software.overlap_dense_all_reduce:
            self._reduce_dense(reductions, tasks, reduced)
        if self._first_rank_bottom:
            after = [gradients[ExchangeGroup.POOLED][0]]
            self._first_bottom(dense.first_bottom_backward, after)
        self._update_embeddings(gradients)
        return reduced

    def _all_reduce_cost(self, size_bytes: int) -> Cost:
        if self.alone:
            return Cost(0.0, 0.0, DurationClass.COMMUNICATION)
        estimate = collective_estimate(self.problem.cluster, CollectiveOp.ALL_REDUCE, size_bytes)
        return Cost(float(estimate.time_s), float(estimate.spread), DurationClass.COMMUNICATION)

    def _reduce_dense(
        self, costs: Sequence[Cost], after: Sequence[int], reduced: list[list[int]]
    ) -> None:
        if self.alone:
            return
        for cost in costs:
            waits = [[task] for task in after]
            tasks = self.meeting("dense all-reduce", self.ranks, waits, cost)
            for rank in self.ranks:
                reduced[rank].append(tasks[rank])

    def _update_embeddings(self, gradients: dict[ExchangeGroup, list[int]]) -> None:
        for group in self._groups:
            after = [[task] for task in gradients[group]]
            slot = _LOOKUP_SLOTS[group][1]
            name = f"{group.name.lower()} lookup backward"
            updates = self.slot_compute(slot, name, UPDATE_LAUNCHES, after)
            if group is not ExchangeGroup.REPLICATED:
                continue
            if not self.alone:
                waits = [[task] for task in updates]
                updates = self.slot_meeting(
                    "replicated tables all-reduce", self.ranks, waits, Slot.REPLICATED_ALL_REDUCE
                )
            self.slot_compute(
                Slot.REPLICATED_UPDATE,
                "replicated tables update",
                1,
                [[task] for task in updates],
            )

    def _exchange_outputs(self, group: ExchangeGroup, after: list[list[int]]) -> list[int]:
        if group is ExchangeGroup.REPLICATED or self.alone:
            return [tasks[0] for tasks in after]
        if group is ExchangeGroup.POOLED:
            return self.slot_meeting("output all-to-all", self.ranks, after, Slot.POOLED_EXCHANGE)
        if group is ExchangeGroup.ROW:
            return self.slot_meeting("output reduce-scatter", self.ranks, after, Slot.ROW_EXCHANGE)
        inside = self._exchange_inside("output reduce-scatter", after)
        return self._exchange_between("output all-to-all between nodes", inside)

    def _exchange_gradients(self, after_tasks: list[int]) -> dict[ExchangeGroup, list[int]]:
        """Mirrors the output exchange for each group."""
        result: dict[ExchangeGroup, list[int]] = {}
        for group in self._groups:
            after = [[task] for task in after_tasks]
            if group is ExchangeGroup.REPLICATED or self.alone:
                result[group] = after_tasks
            elif group is ExchangeGroup.POOLED:
                result[group] = self.slot_meeting(
                    "gradient all-to-all", self.ranks, after, Slot.POOLED_EXCHANGE
                )
            elif group is ExchangeGroup.ROW:
                result[group] = self.slot_meeting(
                    "gradient all-gather", self.ranks, after, Slot.ROW_EXCHANGE
                )
            else:
                between = self._exchange_between("gradient all-to-all between nodes", after_tasks)
                result[group] = self._exchange_inside(
                    "gradient all-gather", [[task] for task in between]
                )
        return result

    def _exchange_inside(self, name: str, after: list[list[int]]) -> list[int]:
        """One meeting per node."""
        local_size = self.problem.cluster.local_size
        if local_size == 1:
            return [tasks[0] for tasks in after]
        result: list[int] = []
        for start in range(0, len(self.ranks), local_size):
            members = self.ranks[start : start + local_size]
            waits = [after[rank] for rank in members]
            slot = Slot.NODE_EXCHANGE_INSIDE
            result += self.slot_meeting(name, members, waits, slot, Meets.NODE)
        return result

    def _exchange_between(self, name: str, after: list[int]) -> list[int]:
        """One meeting per local rank, across the nodes."""
        cluster = self.problem.cluster
        if cluster.node_count == 1:
            return after
        result = list(after)
        for local_rank in self.ranks[: cluster.local_size]:
            members = self.ranks[local_rank :: cluster.local_size]
            waits = [[after[rank]] for rank in members]
            slot = Slot.NODE_EXCHANGE_BETWEEN
            tasks = self.slot_meeting(name, members, waits, slot, Meets.ACROSS)
            for rank, task in zip(members, tasks, strict=True):
                result[rank] = task
        return result


def node_group(problem: Problem) -> Group:
    """Returns the group of one exchange between nodes: one rank of every node, all at once."""
    cluster = problem.cluster
    return Group(cluster.node_count, 1, card_sharers=cluster.local_size)
