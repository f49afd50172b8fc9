"""Facts about the tasks of a traced step: operator, launch, phase, layer and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from dse.graph import invert_waits, predecessors
from dse.trace._step_graph import TaskRole
from dse.trace.read._rank_trace import CALLS, ON_DEVICE, Category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.graph import ExecutionGraph
    from dse.trace._step_graph import TraceGraph
    from dse.trace.links._link import Links
    from dse.trace.read._collectives import CollectiveInfo
    from dse.trace.read._rank_trace import Bytes, Longs, OperatorInputs, RankTrace

_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = ("Optimizer.step#", "## optimizer ##")
_OPTIMIZER_OPERATORS = ("aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad")
#: Annotations whose work belongs to no pass over the model.
_ASIDE = (
    "Optimizer.zero_grad#",
    "## zero_grad ##",
    "enumerate(DataLoader)#",
    "## copy_batch_to_gpu ##",
)


class TrainingPhase(IntEnum):
    """Part of a training step."""

    #: Loading and moving batches, clearing gradients, and anything outside of operators.
    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


@dataclass(frozen=True, slots=True, eq=False)
class TaskFacts:
    """Facts about the tasks of a :class:`TraceGraph`; arrays have shape `(tasks,)`.

    -1 marks missing values.

    Attributes:
        stack: Index into `stacks`.
        operator: Event of the innermost operator that the task is part of or was launched by, in
            the trace of the task's rank.
        inputs: Index into `input_table` of the nearest operator around it that recorded any; for
            the evaluation of an autograd node those of the node.
        launch: Task of the call that launched this device work.
        owner: Device work that a delay or gap precedes.
        phase: A `TrainingPhase`.
        layer: Number of the top-level forward operator that the task belongs to, or whose gradient
            it computes; counted in order of time on each rank.
        collective: Index into `collectives`.
        size_bytes: Size of a copy or fill.
        stacks: Names of operators and annotations around a task, the outermost first.
        input_table: Shapes and types of inputs.
        collectives: Descriptions of collectives.
    """

    stack: Longs
    operator: Longs
    inputs: Longs
    launch: Longs
    owner: Longs
    phase: Bytes
    layer: Longs
    collective: Longs
    size_bytes: Longs
    stacks: tuple[tuple[str, ...], ...]
    input_table: tuple[OperatorInputs, ...]
    collectives: tuple[CollectiveInfo, ...]


def task_facts(made: TraceGraph, traces: Sequence[RankTrace], links: Sequence[Links]) -> TaskFacts:
    """Collects facts about each task of a graph from its traces.

    The phase follows from the operators and annotations around a task: the evaluation of autograd
    nodes is backward, the annotation of an optimizer's step is optimizer, other operators are
    forward unless they clear gradients or move batches. A gap has the phase of its neighbours.

    Args:
        made: The graph.
        traces: The traces that it was built from, one per rank.
        links: Their links.
    """
    return _Collector(made).collect(traces, links)


class _Collector:
    def __init__(self, made: TraceGraph) -> None:
        count = made.graph.task_count
        self._made = made
        self._stacks: dict[tuple[str, ...], int] = {}
        self._inputs: dict[OperatorInputs, int] = {}
        self._collectives: dict[CollectiveInfo, int] = {}
        self._columns = {
            name: np.full(count, -1, dtype=np.int64)
            for name in ("stack", "operator", "inputs", "launch", "layer", "collective", "bytes")
        }
        self._phase = np.zeros(count, dtype=np.int8)

    def collect(self, traces: Sequence[RankTrace], links: Sequence[Links]) -> TaskFacts:
        for trace, linked in zip(traces, links, strict=True):
            self._rank(trace, linked)
        graph = self._made.graph
        waits = predecessors(graph)
        owner = _owners(self._made, waits)
        owned = np.flatnonzero(owner >= 0)
        for column in ("stack", "operator", "inputs", "layer"):
            self._columns[column][owned] = self._columns[column][owner[owned]]
        self._phase[owned] = self._phase[owner[owned]]
        self._gaps(graph)
        columns = self._columns
        return TaskFacts(
            stack=columns["stack"],
            operator=columns["operator"],
            inputs=columns["inputs"],
            launch=self._launches(graph, waits),
            owner=owner,
            phase=self._phase,
            layer=columns["layer"],
            collective=columns["collective"],
            size_bytes=columns["bytes"],
            stacks=tuple(self._stacks),
            input_table=tuple(self._inputs),
            collectives=tuple(self._collectives),
        )

    def _rank(self, trace: RankTrace, links: Links) -> None:
        made, columns = self._made, self._columns
        tasks = np.flatnonzero((made.rank == trace.rank) & (made.event >= 0))
        events = made.event[tasks]
        nodes = _innermost_nodes(trace, links, events)
        around = _Surroundings(trace, links)
        known: dict[int, tuple[int, int, int, int, int]] = {}
        for task, node in zip(tasks.tolist(), nodes.tolist(), strict=True):
            if node < 0:
                continue
            if node not in known:
                names, operator, inputs = around.of(node)
                known[node] = (
                    self._stacks.setdefault(names, len(self._stacks)),
                    operator,
                    -1 if inputs is None else self._inputs.setdefault(inputs, len(self._inputs)),
                    around.phase(node),
                    around.layer(node),
                )
            (
                columns["stack"][task],
                columns["operator"][task],
                columns["inputs"][task],
                self._phase[task],
                columns["layer"][task],
            ) = known[node]
        columns["bytes"][tasks] = trace.bytes[events]
        for task, event in zip(tasks.tolist(), events.tolist(), strict=True):
            number = int(links.collective[event])
            if number >= 0 and made.role[task] == TaskRole.COLLECTIVE:
                info = links.collectives[number]
                columns["collective"][task] = self._collectives.setdefault(
                    info, len(self._collectives)
                )
        self._number_layers(trace, tasks)

    def _number_layers(self, trace: RankTrace, tasks: Longs) -> None:
        """Numbers forward operators; other backward tasks get the last layer before them."""
        layer = self._columns["layer"]
        events = np.unique(layer[tasks][layer[tasks] >= 0])
        order = np.argsort(trace.start_ns[events], kind="stable")
        number = np.empty(len(events), dtype=np.int64)
        number[order] = np.arange(len(events))
        known = tasks[layer[tasks] >= 0]
        layer[known] = number[np.searchsorted(events, layer[known])]
        last: dict[int, int] = {}
        streams = self._made.graph.stream
        for task in tasks.tolist():
            if self._phase[task] != TrainingPhase.BACKWARD:
                continue
            stream = int(streams[task])
            if layer[task] >= 0:
                last[stream] = int(layer[task])
            else:
                layer[task] = last.get(stream, -1)

    def _gaps(self, graph: ExecutionGraph) -> None:
        """Sets the phase of a thread's gap to that of its neighbours."""
        rows: dict[int, list[int]] = {}
        for task, stream in enumerate(graph.stream.tolist()):
            rows.setdefault(stream, []).append(task)
        gap = (self._made.role == TaskRole.HOST_GAP) & (self._made.event < 0)
        for row in rows.values():
            for before, task, after in zip(row[:-2], row[1:-1], row[2:], strict=True):
                if gap[task] and self._phase[before] == self._phase[after]:
                    self._phase[task] = self._phase[before]

    def _launches(self, graph: ExecutionGraph, waits: list[list[int]]) -> Longs:
        made = self._made
        result = np.full(graph.task_count, -1, dtype=np.int64)
        role = made.role.tolist()
        for task in np.flatnonzero(made.role >= TaskRole.KERNEL).tolist():
            for other in waits[task]:
                source = other
                if role[other] == TaskRole.LAUNCH_DELAY:
                    calls = [before for before in waits[other] if role[before] == TaskRole.CALL]
                    source = calls[0] if calls else other
                if role[source] == TaskRole.CALL and made.rank[source] == made.rank[task]:
                    result[task] = source
                    break
        return result


class _Surroundings:
    """Operators and annotations around an event of one trace."""

    def __init__(self, trace: RankTrace, links: Links) -> None:
        self._trace = trace
        self._links = links
        self._chains: dict[int, tuple[int, ...]] = {}
        evaluates = trace.named(lambda name: name.startswith(_BACKWARD))
        inner = np.flatnonzero((trace.inputs >= 0) & (links.parent >= 0))
        inner = inner[evaluates[links.parent[inner]]]
        nodes = [
            event
            for event in inner.tolist()
            if trace.name_of(int(links.parent[event])) == f"{_BACKWARD}: {trace.name_of(event)}"
        ]
        self._evaluated = {int(links.parent[event]): event for event in nodes}

    def of(self, node: int) -> tuple[tuple[str, ...], int, OperatorInputs | None]:
        """Returns the enclosing names, the innermost operator, and the nearest inputs."""
        trace, chain = self._trace, self._chain(node)
        operators = [event for event in chain if trace.category[event] == Category.CPU_OP]
        recorded = [event for event in operators if trace.inputs[event] >= 0]
        # The evaluation of an autograd node records no inputs, the node inside does.
        if not recorded and node in self._evaluated:
            recorded = [self._evaluated[node]]
        inputs = trace.input_table[trace.inputs[recorded[-1]]] if recorded else None
        names = tuple(trace.name_of(event) for event in chain)
        return names, operators[-1] if operators else -1, inputs

    def phase(self, node: int) -> TrainingPhase:
        chain = self._chain(node)
        names = [self._trace.name_of(event) for event in chain]
        if any(name.startswith((*_OPTIMIZER, *_OPTIMIZER_OPERATORS)) for name in names):
            return TrainingPhase.OPTIMIZER
        if any(name.startswith(_ASIDE) for name in names):
            return TrainingPhase.OTHER
        trace, forward = self._trace, self._links.forward
        if any(
            name.startswith(_BACKWARD) or forward[event] >= 0 or trace.forward_thread[event] > 0
            for name, event in zip(names, chain, strict=True)
        ):
            return TrainingPhase.BACKWARD
        operators = (trace.category[event] == Category.CPU_OP for event in chain)
        return TrainingPhase.FORWARD if any(operators) else TrainingPhase.OTHER

    def layer(self, node: int) -> int:
        """Returns the top-level forward operator that it belongs to, or -1."""
        phase = self.phase(node)
        if phase == TrainingPhase.FORWARD:
            return self._top(node)
        if phase == TrainingPhase.BACKWARD:
            for event in reversed(self._chain(node)):
                if self._links.forward[event] >= 0:
                    return self._top(int(self._links.forward[event]))
        return -1

    def _top(self, node: int) -> int:
        category = self._trace.category
        operators = [event for event in self._chain(node) if category[event] == Category.CPU_OP]
        return operators[0] if operators else -1

    def _chain(self, node: int) -> tuple[int, ...]:
        """Returns the operators and annotations around an event and itself, outermost first."""
        known = self._chains.get(node)
        if known is None:
            chain = [node]
            parent = int(self._links.parent[node])
            while parent >= 0:
                chain.append(parent)
                parent = int(self._links.parent[parent])
            known = self._chains[node] = tuple(reversed(chain))
        return known


def _innermost_nodes(trace: RankTrace, links: Links, events: Longs) -> Longs:
    """Returns the innermost operator or annotation of each event, or -1."""
    # A call launches device work, an operator launches a collective of gloo.
    launch = links.launch[events]
    source = np.where(launch >= 0, launch, events)
    calls = np.isin(trace.category[source], CALLS)
    device = np.isin(trace.category[source], ON_DEVICE)
    result = np.where(calls, links.parent[source], np.where(device, -1, source))
    return np.where((calls | device) & (result < 0), links.operator[events], result)


def _owners(made: TraceGraph, waits: list[list[int]]) -> Longs:
    """Returns the work that each delay and gap of a device precedes."""
    role = made.role
    result = np.full(made.graph.task_count, -1, dtype=np.int64)
    followers = invert_waits(waits)
    stream = made.graph.stream
    for task in np.flatnonzero(
        (role == TaskRole.LAUNCH_DELAY) | ((role == TaskRole.STREAM_GAP) & (made.event < 0))
    ).tolist():
        for other in followers[task]:
            if role[other] < TaskRole.KERNEL:
                continue
            if role[task] == TaskRole.LAUNCH_DELAY or stream[other] == stream[task]:
                result[task] = other
                break
    return result
