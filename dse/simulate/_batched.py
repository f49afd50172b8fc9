"""Longest-path simulation of one graph under many sets of durations at once.

Within a layout only some durations vary between candidates. At compile time the graph is reduced
to what depends on them:

1. a meeting becomes a node that starts when the last member is ready;
2. whatever depends on constant durations only is folded into a number;
3. a task of constant duration with one varying predecessor becomes a weight on an edge;
4. edges that a longer two-edge path makes redundant are dropped.

What is left is evaluated level by level, a vector of candidates wide: the (max, +) recurrence
``end(v) = max(floor(v), max over u (end(u) + weight(u, v))) + duration(v)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.graph import predecessors, topological_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph

#: Bytes of intermediate ends that one pass may hold; about the size of a last-level cache slice.
_DEFAULT_MAX_BYTES = 2 * 2**20


@dataclass(slots=True)
class _Node:
    """One step of the recurrence while the program is compiled."""

    floor_s: float
    edges: dict[int, float]
    row: int = -1


@dataclass(frozen=True, slots=True)
class _Step:
    """Nodes of one level with the same number of predecessors.

    Attributes:
        start: First slot of the step's nodes in the buffer.
        stop: One behind their last slot.
        floor_s: Their floors; shape `(nodes, 1)`.
        sources: For each predecessor position, the slots to read; shape `(nodes,)` each.
        weights_s: For each predecessor position, the edge weights; shape `(nodes, 1)`, or None
            when all are zero.
        rows: Rows of the durations to add; shape `(nodes,)`, -1 for none.
    """

    start: int
    stop: int
    floor_s: NDArray[np.float64]
    sources: tuple[NDArray[np.int64], ...]
    weights_s: tuple[NDArray[np.float64] | None, ...]
    rows: NDArray[np.int64]


class BatchedSimulator:
    """A compiled graph.

    Args:
        graph: The graph; durations of tasks that do not vary are taken from it.
        variable: Marks the tasks whose duration differs between candidates; all by default.
        max_bytes: Bound on intermediate memory; candidates are processed in chunks to keep it.

    Raises:
        SimulationError: Some tasks wait for each other.
    """

    def __init__(
        self,
        graph: ExecutionGraph,
        variable: NDArray[np.bool_] | None = None,
        *,
        max_bytes: int = _DEFAULT_MAX_BYTES,
    ) -> None:
        mask = np.ones(graph.task_count, dtype=bool) if variable is None else variable
        self._rows = int(mask.sum())
        self._max_bytes = max_bytes
        nodes, final = _reduce(graph, mask)
        self._floor_s = final.floor_s
        self._steps, slots = _schedule(nodes, final)
        self._slots = len(slots)
        self._final = [(slots[node], weight) for node, weight in final.edges.items()]

    @property
    def node_count(self) -> int:
        """Nodes left after the reduction; the cost of a candidate is proportional to it."""
        return self._slots

    def makespan_s(self, durations_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the end of the last task of every candidate.

        Args:
            durations_s: Durations of the variable tasks in ascending order of task; shape
                `(variable tasks, candidates)`.

        Returns:
            Seconds; shape `(candidates,)`.
        """
        if durations_s.shape[0] != self._rows:
            raise ValueError(f"expected {self._rows} rows of durations, found {len(durations_s)}")
        candidates = durations_s.shape[1]
        result = np.full(candidates, self._floor_s)
        chunk = max(64, self._max_bytes // (8 * max(1, self._slots)))
        for first in range(0, candidates, chunk):
            part = durations_s[:, first : first + chunk]
            ends = self._evaluate(part)
            out = result[first : first + chunk]
            for slot, weight in self._final:
                np.maximum(out, ends[slot] + weight, out=out)
        return result

    def _evaluate(self, durations_s: NDArray[np.float64]) -> NDArray[np.float64]:
        ends = np.empty((self._slots, durations_s.shape[1]))
        for step in self._steps:
            out = ends[step.start : step.stop]
            out[:] = step.floor_s
            for source, weight in zip(step.sources, step.weights_s, strict=True):
                value = ends[source]
                if weight is not None:
                    value += weight
                np.maximum(out, value, out=out)
            varying = step.rows >= 0
            if varying.all():
                out += durations_s[step.rows]
            elif varying.any():
                out[varying] += durations_s[step.rows[varying]]
        return ends


def _reduce(graph: ExecutionGraph, variable: NDArray[np.bool_]) -> tuple[dict[int, _Node], _Node]:
    """Returns the varying nodes in topological order, and the node after all tasks."""
    row_of = np.cumsum(variable) - 1
    duration_s = graph.duration_s.tolist()
    meeting = graph.meeting.tolist()
    waits = predecessors(graph)
    order = topological_order(graph)
    followed = np.zeros(graph.task_count, dtype=bool)
    for others in waits:
        followed[others] = True
    # What each task's end is: a floor, and weighted edges from nodes that are kept.
    ends: dict[int, _Node] = {}
    kept: dict[int, _Node] = {}
    next_key = graph.task_count
    meeting_end: dict[int, _Node] = {}
    members: dict[int, list[int]] = {}
    for task in order:
        if meeting[task] >= 0:
            members.setdefault(meeting[task], []).append(task)

    for task in order:
        index = meeting[task]
        if index >= 0:
            if index not in meeting_end:
                joined = [other for member in members[index] for other in waits[member]]
                start = _join(joined, ends, kept)
                meeting_end[index] = _keep_if_join(start, kept, next_key)
                next_key += 1
            start = meeting_end[index]
        else:
            start = _join(waits[task], ends, kept)
        if variable[task]:
            kept[task] = _Node(start.floor_s, start.edges, row=int(row_of[task]))
            ends[task] = _Node(0.0, {task: 0.0})
        else:
            start = _keep_if_join(start, kept, next_key)
            next_key += 1
            ends[task] = _shift(start, duration_s[task])
    last = [task for task in order if not followed[task]]
    return kept, _join(last, ends, kept)


def _join(tasks: list[int], ends: dict[int, _Node], kept: dict[int, _Node]) -> _Node:
    """Returns the maximum of some tasks' ends."""
    floor_s = 0.0
    edges: dict[int, float] = {}
    for task in tasks:
        end = ends[task]
        floor_s = max(floor_s, end.floor_s)
        for source, weight in end.edges.items():
            edges[source] = max(weight, edges.get(source, weight))
    if len(edges) > 1:
        edges = _without_redundant(edges, kept)
    return _Node(floor_s, edges)


def _without_redundant(edges: dict[int, float], kept: dict[int, _Node]) -> dict[int, float]:
    """Drops an edge when another predecessor ends later anyway: one step back or two."""
    redundant = set()
    for middle, weight in edges.items():
        for source, before in kept[middle].edges.items():
            if source in edges and before + weight >= edges[source]:
                redundant.add(source)
            for earlier, first in kept[source].edges.items():
                if earlier in edges and first + before + weight >= edges[earlier]:
                    redundant.add(earlier)
    return {source: weight for source, weight in edges.items() if source not in redundant}


def _keep_if_join(node: _Node, kept: dict[int, _Node], key: int) -> _Node:
    """Makes a maximum of several varying ends a node of its own, so that it is taken once."""
    if len(node.edges) < 2:
        return node
    kept[key] = node
    return _Node(0.0, {key: 0.0})


def _shift(node: _Node, seconds: float) -> _Node:
    return _Node(
        node.floor_s + seconds,
        {source: weight + seconds for source, weight in node.edges.items()},
    )


def _schedule(nodes: dict[int, _Node], final: _Node) -> tuple[tuple[_Step, ...], dict[int, int]]:
    """Groups the nodes that the result needs into steps and gives each a slot."""
    needed: set[int] = set()
    stack = list(final.edges)
    while stack:
        key = stack.pop()
        if key not in needed:
            needed.add(key)
            stack.extend(nodes[key].edges)
    level: dict[int, int] = {}
    for key, node in nodes.items():
        if key in needed:
            level[key] = 1 + max((level[source] for source in node.edges), default=-1)
    groups: dict[tuple[int, int], list[int]] = {}
    for key, depth in level.items():
        groups.setdefault((depth, len(nodes[key].edges)), []).append(key)
    slots: dict[int, int] = {}
    steps: list[_Step] = []
    for group in sorted(groups):
        keys = groups[group]
        start = len(slots)
        for key in keys:
            slots[key] = len(slots)
        pairs = [sorted(nodes[key].edges.items()) for key in keys]
        sources = tuple(
            np.array([slots[edge[position][0]] for edge in pairs], dtype=np.int64)
            for position in range(group[1])
        )
        weights = tuple(
            np.array([[edge[position][1]] for edge in pairs]) for position in range(group[1])
        )
        steps.append(
            _Step(
                start=start,
                stop=len(slots),
                floor_s=np.array([[nodes[key].floor_s] for key in keys]),
                sources=sources,
                weights_s=tuple(weight if weight.any() else None for weight in weights),
                rows=np.array([nodes[key].row for key in keys], dtype=np.int64),
            )
        )
    return tuple(steps), slots
