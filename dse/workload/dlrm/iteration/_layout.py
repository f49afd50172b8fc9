"""The execution graph of one DLRM iteration on all ranks.

Within one *layout* (which exchange groups are in use) a sharding plan changes only durations, so
the plan-dependent tasks are *slots* that the scorer fills for thousands of plans at once. Problems
of one shape (:mod:`dse.workload.dlrm.iteration._shape`) differ in durations alone as well and
share a graph.

One iteration, on every rank (TPDS'24, and TorchRec's pipelined loop):

* copy stream: the batch from host memory;
* communication stream: input distribution, pooled output exchange, gradient exchange, dense
  all-reduce buckets, in the order in which the host issues them;
* compute stream: lookups, bottom MLP (during the output exchange), interaction, top MLP, backward
  in reverse, lookup backward with update, dense optimizer; before and after exchanges in another
  format than FP32 their conversion;
* communication stream, at the end: replicas of a sharding group average their tables, an
  iteration's part of what happens every few iterations;
* host thread: one dispatch per operator (T1–T5), or one launch of a captured graph; what the
  program does on the host before the devices start, and the loading of the next batch at the end.

What the pipeline does ahead (:mod:`dse.workload.dlrm.program._pipelines`) belongs to the next
batch: it occupies its stream, but nothing in this iteration waits for it. With lookups right
behind the update, the iteration begins with the interaction and ends with the next batch's bottom
MLP. It starts with idle devices and ends with the last task, which is conservative by the first
dispatches.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dse.machine.kernels import LOOKUP_LAUNCHES, UPDATE_LAUNCHES
from dse.simulate import SyncScope
from dse.workload._iteration import DurationClass
from dse.workload._launch import LaunchMode
from dse.workload.dlrm.iteration._codec import decode_slot, encode_slot
from dse.workload.dlrm.iteration._costs import WAIT
from dse.workload.dlrm.iteration._issue import Issuer
from dse.workload.dlrm.iteration._shape import make_shape
from dse.workload.dlrm.program._pipelines import TrainPipeline
from dse.workload.dlrm.program._software import InputPath
from dse.workload.dlrm.scoring._features import ExchangeGroup
from dse.workload.dlrm.scoring._slots import GRADIENT_SLOTS, Slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.workload.dlrm._problem import DlrmProblem
    from dse.workload.dlrm.iteration._issue import Structure
    from dse.workload.dlrm.iteration._shape import Phase, Shape
    from dse.workload.dlrm.scoring._slots import LayoutGraph

#: Graphs that are kept, and their most ranks: those of large clusters have many thousand tasks.
_KEPT = 64
_KEPT_RANKS = 16

#: A conversion streams, like the operators of the dense part.
_CONVERSION = DurationClass.DENSE

_LOOKUP_SLOTS = {
    ExchangeGroup.POOLED: (Slot.POOLED_LOOKUP, Slot.POOLED_UPDATE),
    ExchangeGroup.ROW: (Slot.ROW_LOOKUP, Slot.ROW_UPDATE),
    ExchangeGroup.NODE: (Slot.NODE_LOOKUP, Slot.NODE_UPDATE),
    ExchangeGroup.REPLICATED: (Slot.REPLICATED_LOOKUP, Slot.REPLICATED_GRADIENT),
}


def build_layout(
    problem: DlrmProblem, layout: int, *, one_rank: bool = False, forward_only: bool = False
) -> LayoutGraph:
    """Builds the graph of one iteration.

    Args:
        problem: Everything but the plan.
        layout: Bit set of the `ExchangeGroup` members in use.
        one_rank: Only the tasks of rank 0, with the durations that they have in the whole cluster;
            its collectives wait for no other rank. Where all ranks do the same, they share its
            makespan; what only the first rank does is left out.
        forward_only: Only the forward pass, as in an evaluation.
    """
    shape = make_shape(problem, layout, one_rank=one_rank, forward_only=forward_only)
    made = _structure if shape.ranks <= _KEPT_RANKS else _structure.__wrapped__
    return made(shape).priced(problem)


@lru_cache(maxsize=_KEPT)
def _structure(shape: Shape) -> Structure:
    return _Iteration(shape).build()


class _Iteration(Issuer):
    """The phases of an iteration in program order."""

    def build(self) -> Structure:
        """Issues all phases and returns the graph."""
        shape = self.shape
        nothing: list[list[int]] = [[] for _ in self.ranks]
        ahead = shape.pipeline.distributes_ahead
        input_ready = self._input()
        if ahead:
            input_ready = nothing
        if shape.pipeline is TrainPipeline.PREFETCH:
            self.slot_copy(Slot.ROW_PREFETCH, "prefetch rows")
        if shape.pipeline is TrainPipeline.FUSED_SPARSE_DIST and not shape.forward_only:
            self.dense_phase(shape.forward)
            reduced = self._backward()
            embeddings_ready = self._look_up(input_ready)
            self._optimize(reduced)
            self.dense_phase(shape.bottom_forward)
            self._decoded_outputs(embeddings_ready)
        else:
            embeddings_ready = self._look_up(input_ready)
            bottom = self.dense_phase(shape.bottom_forward)
            if shape.pipeline.looks_up_ahead and not shape.forward_only:
                self.dense_phase(shape.forward)
                reduced = self._backward()
                self._decoded_outputs(embeddings_ready)
                self._optimize(reduced)
            else:
                embeddings_ready = self._decoded_outputs(embeddings_ready)
                after = [bottom[rank] + embeddings_ready[rank] for rank in self.ranks]
                self.dense_phase(shape.forward, after)
                if not shape.forward_only:
                    self._optimize(self._backward())
        if ahead:
            # The host is ahead of the devices by that much: it stops for lengths of the next
            # batch, not for lookups of this one.
            self.handle("features", 2 * shape.groups, batch=True)
        return self.finish()

    def _optimize(self, reduced: list[list[int]]) -> None:
        """Updates dense parameters, and now and then makes replicas of the tables alike."""
        updated = self.dense_phase(self.shape.optimizer, reduced)
        if self.shape.averages_weights:
            self.occasional_collective("weight sync", updated, Slot.WEIGHT_SYNC)

    def _look_up(self, input_ready: list[list[int]]) -> list[list[int]]:
        """Lookups and output exchange; returns what the interaction waits for, per rank."""
        ready: list[list[int]] = [[] for _ in self.ranks]
        self.dense_phase(self.shape.key_search, input_ready)
        for group in self.shape.groups:
            slot = _LOOKUP_SLOTS[group][0]
            if not self.shape.pipeline.distributes_ahead:
                self.handle(f"{group.name.lower()} lookups", (group,))
            lookups = self.slot_compute(
                slot, f"{group.name.lower()} lookup", LOOKUP_LAUNCHES, input_ready
            )
            produced = [[task] for task in lookups]
            if group is ExchangeGroup.POOLED and self.shape.first_rank_bottom:
                produced[0] += self._first_bottom(self.shape.first_bottom_forward)
            produced = self._converted(encode_slot(group), "output encode", produced)
            outputs = self._exchange_outputs(group, produced)
            for rank in self.ranks:
                ready[rank].append(outputs[rank])
        return ready

    def _converted(self, slot: Slot | None, name: str, after: list[list[int]]) -> list[list[int]]:
        """Issues a conversion for the wire, if there is one; returns what comes after waits for.

        Args:
            slot: The conversion; None of tables that nothing is exchanged of.
            name: Name of its tasks.
            after: What it waits for, per rank.
        """
        kernels = dict(self.shape.codecs).get(slot) if slot is not None else None
        if slot is None or kernels is None:
            return after
        return [[task] for task in self.slot_compute(slot, name, kernels, after, _CONVERSION)]

    def _decoded_outputs(self, ready: list[list[int]]) -> list[list[int]]:
        """Issues the conversions of what has been received; `ready` as the result, per rank."""
        ready = [list(tasks) for tasks in ready]
        for number, group in enumerate(self.shape.groups):
            received = [[tasks[number]] for tasks in ready]
            decoded = self._converted(decode_slot(group), "output decode", received)
            for rank in self.ranks:
                ready[rank][number] = decoded[rank][0]
        return ready

    def _input(self) -> list[list[int]]:
        """Copy from the host and index exchange; returns what a lookup of that batch waits for."""
        shape = self.shape
        copies: list[list[int]] = [[] for _ in self.ranks]
        for number, name in enumerate(shape.copies):
            for rank in self.ranks:
                copies[rank].append(self.issue_copy(rank, name, 1 + number))
        if not shape.pipeline.distributes_ahead:
            self.handle("features", shape.groups, batch=True)
        exchanged = [group for group in shape.groups if group is not ExchangeGroup.REPLICATED]
        by_sample = shape.input_path is InputPath.BY_SAMPLE
        if not exchanged or shape.alone or not by_sample:
            return copies
        # The next batch was copied an iteration ago: its exchange waits for no copy of this one.
        ahead = shape.pipeline.distributes_ahead
        after = [[] for _ in self.ranks] if ahead else copies
        tasks = self.plan_collective("input all-to-all", self.ranks, after, Slot.INPUT_EXCHANGE)
        if not ahead and shape.launch is LaunchMode.EAGER:
            # The host reads the exchanged lengths before it can size the lookups' inputs.
            for rank, task in zip(self.ranks, tasks, strict=True):
                self.host_task(rank, WAIT.name, WAIT, (task,))
        return [[*copies[rank], tasks[rank]] for rank in self.ranks]

    def _first_bottom(self, phase: Phase, after: Sequence[int] = ()) -> list[int]:
        """Issues the bottom MLP of the first rank; returns its last task, if any."""
        last: list[int] = []
        for index in range(len(phase.operators)):
            last = [self.issue_dense(0, phase, index, tuple(after) if index == 0 else ())]
        return last

    def _backward(self) -> list[list[int]]:
        """Backward pass; returns what the dense optimizer waits for, per rank."""
        shape, phase = self.shape, self.shape.backward
        reduced: list[list[int]] = [[] for _ in self.ranks]
        gradients: dict[ExchangeGroup, list[int]] = {}
        tasks: list[int] = []
        for index in range(len(phase.operators)):
            tasks = [self.issue_dense(rank, phase, index) for rank in self.ranks]
            if index == shape.top_operators - 1 and shape.overlap_gradient_exchange:
                gradients = self._exchange_gradients(tasks)
            if shape.overlap_dense_all_reduce:
                self._reduce_dense(index, tasks, reduced)
        if not shape.overlap_dense_all_reduce:
            for index in sorted(set(shape.buckets)):
                self._reduce_dense(index, tasks, reduced)
        if not shape.overlap_gradient_exchange:
            gradients = self._exchange_gradients(tasks)
        if shape.first_rank_bottom:
            after = [gradients[ExchangeGroup.POOLED][0]]
            self._first_bottom(shape.first_bottom_backward, after)
        self._update_embeddings(gradients)
        return reduced

    def _reduce_dense(self, ready: int, after: Sequence[int], reduced: list[list[int]]) -> None:
        """Reduces the buckets that an operator of the backward pass completes."""
        if self.shape.alone:
            return
        for number, last in enumerate(self.shape.buckets):
            if last != ready:
                continue
            cost = self.shape.first_bucket_cost + number
            waits = [[task] for task in after]
            tasks = self.collective("dense all-reduce", self.ranks, waits, cost)
            for rank in self.ranks:
                reduced[rank].append(tasks[rank])

    def _update_embeddings(self, gradients: dict[ExchangeGroup, list[int]]) -> None:
        for group in self.shape.groups:
            after = [[task] for task in gradients[group]]
            after = self._converted(decode_slot(group, backward=True), "gradient decode", after)
            slot = _LOOKUP_SLOTS[group][1]
            name = f"{group.name.lower()} lookup backward"
            self.handle(f"{group.name.lower()} gradients", (group,))
            updates = self.slot_compute(slot, name, UPDATE_LAUNCHES, after)
            if group is not ExchangeGroup.REPLICATED:
                continue
            if not self.shape.alone:
                waits = [[task] for task in updates]
                updates = self.plan_collective(
                    "replicated tables all-reduce", self.ranks, waits, Slot.REPLICATED_ALL_REDUCE
                )
            self.slot_compute(
                Slot.REPLICATED_UPDATE,
                "replicated tables update",
                1,
                [[task] for task in updates],
            )

    def _exchange_outputs(self, group: ExchangeGroup, after: list[list[int]]) -> list[int]:
        if group is ExchangeGroup.REPLICATED or self.shape.alone:
            return [tasks[0] for tasks in after]
        if group is ExchangeGroup.POOLED:
            return self.plan_collective(
                "output all-to-all", self.ranks, after, Slot.POOLED_EXCHANGE
            )
        if group is ExchangeGroup.ROW:
            return self.plan_collective(
                "output reduce-scatter", self.ranks, after, Slot.ROW_EXCHANGE
            )
        inside = self._exchange_inside("output reduce-scatter", after)
        return self._exchange_between("output all-to-all between nodes", inside)

    def _exchange_gradients(self, after_tasks: list[int]) -> dict[ExchangeGroup, list[int]]:
        """Mirrors the output exchange for each group."""
        result: dict[ExchangeGroup, list[int]] = {}
        for group in self.shape.groups:
            after = [[task] for task in after_tasks]
            after = self._converted(encode_slot(group, backward=True), "gradient encode", after)
            if group is ExchangeGroup.REPLICATED or self.shape.alone:
                result[group] = after_tasks
            elif group is ExchangeGroup.POOLED:
                result[group] = self.plan_collective(
                    "gradient all-to-all", self.ranks, after, self._back(Slot.POOLED_EXCHANGE)
                )
            elif group is ExchangeGroup.ROW:
                result[group] = self.plan_collective(
                    "gradient all-gather", self.ranks, after, self._back(Slot.ROW_EXCHANGE)
                )
            else:
                between = self._exchange_between(
                    "gradient all-to-all between nodes",
                    [tasks[0] for tasks in after],
                    self._back(Slot.NODE_EXCHANGE_BETWEEN),
                )
                result[group] = self._exchange_inside(
                    "gradient all-gather",
                    [[task] for task in between],
                    self._back(Slot.NODE_EXCHANGE_INSIDE),
                )
        return result

    def _back(self, slot: Slot) -> Slot:
        """Returns the exchange of gradients that mirrors one of outputs."""
        return slot if self.shape.mirrored else GRADIENT_SLOTS[slot]

    def _exchange_inside(
        self, name: str, after: list[list[int]], slot: Slot = Slot.NODE_EXCHANGE_INSIDE
    ) -> list[int]:
        """One collective per node."""
        local_size = self.shape.local_size
        if local_size == 1:
            return [tasks[0] for tasks in after]
        result: list[int] = []
        for start in range(0, len(self.ranks), local_size):
            members = self.ranks[start : start + local_size]
            waits = [after[rank] for rank in members]
            result += self.plan_collective(name, members, waits, slot, SyncScope.NODE)
        return result

    def _exchange_between(
        self, name: str, after: list[int], slot: Slot = Slot.NODE_EXCHANGE_BETWEEN
    ) -> list[int]:
        """One collective per local rank, across the nodes."""
        local_size = self.shape.local_size
        if self.shape.node_count == 1:
            return after
        result = list(after)
        for local_rank in self.ranks[:local_size]:
            members = self.ranks[local_rank::local_size]
            waits = [[after[rank]] for rank in members]
            tasks = self.plan_collective(name, members, waits, slot, SyncScope.ACROSS)
            for rank, task in zip(members, tasks, strict=True):
                result[rank] = task
        return result
