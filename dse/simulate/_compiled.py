"""Compiled evaluation of a graph under many sets of durations at once.

Within a layout only some durations vary between candidates. The graph is reduced once to what
depends on them (:mod:`dse.simulate._reduce`); the rest is a short program over the (max, +)
recurrence ``end(v) = max(floor(v), max over u (end(u) + weight(u, v))) + duration(v)``, evaluated
for a vector of candidates at a time (Baccelli et al., *Synchronization and Linearity*, Wiley 1992,
on event graphs as linear systems over this algebra).

A node is an array over all ranks and a collective a maximum over its members, so neither the
reduction nor the number of calls grows with the number of ranks. Values that a collective has made
equal on several ranks are stored once. :func:`dse.simulate.simulate` is the oracle in tests.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import SimulationError
from dse.simulate._reduce import Maxima, Moment
from dse.simulate._symmetric import SyncScope
from dse.simulate._walk import walk_graph

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from dse.simulate._symmetric import SymmetricRanks

#: Bytes of all nodes at which throughput levels off: more leave the cache, fewer spend their time
#: in calls. A pass takes at least so many candidates that calls are worth their overhead.
_CACHE_BYTES = 2 * 2**20
_MIN_WIDTH = 512


@dataclass(frozen=True, slots=True)
class _Step:
    """``end = max(terms, floor) + durations[row]`` on every rank.

    Attributes:
        terms: Numbers of earlier steps, with seconds to add.
        floor_s: A further, constant term; minus infinity for none.
        scope: Axes over which the maximum is taken, as the bits of `SyncScope`.
        row: Row of the durations to add, or -1.
        shape: Nodes and ranks of a node; 1 where all have the same.
    """

    terms: tuple[tuple[int, float], ...]
    floor_s: float
    scope: int
    row: int
    shape: tuple[int, int]


class CompiledGraph:
    """A graph of symmetric ranks, compiled for fast evaluation.

    Durations must be finite and not negative. This is not checked: looking at every value would
    take as long as the evaluation.

    Args:
        ranks: The graph; durations of tasks that do not vary are taken from it.
        row_of: Row of the varying durations that each task lasts, or -1; shape `(tasks,)`.
        equal_rows: Rows in which all ranks have the same durations.

    Raises:
        SimulationError: Some tasks wait for each other, or `row_of` does not fit the graph.
    """

    def __init__(
        self, ranks: SymmetricRanks, row_of: NDArray[np.int64], equal_rows: Collection[int] = ()
    ) -> None:
        if row_of.shape != (ranks.graph.task_count,):
            raise SimulationError(
                f"`row_of` has shape {row_of.shape}; expected ({ranks.graph.task_count},), one "
                "row, or -1, for each task"
            )
        self._ranks = ranks
        self._rows = int(row_of.max(initial=-1)) + 1
        maxima = _RankMaxima(ranks, equal_rows)
        last = _reduced(ranks, row_of.tolist(), maxima)
        self._floor_s = last.floor_s
        self._steps, self._shift_s = maxima.steps(last)
        self._values = sum(math.prod(step.shape) for step in self._steps)

    def makespan_s(self, durations_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the end of the last task of every candidate.

        Args:
            durations_s: Varying durations; shape `(rows, copies, candidates)`.

        Returns:
            Seconds; shape `(candidates,)`.

        Raises:
            SimulationError: There are too few rows, or not as many copies.
        """
        rows, copies, count = durations_s.shape
        if rows < self._rows or copies != self._ranks.copies:
            raise SimulationError(
                f"durations of shape {durations_s.shape}; expected at least {self._rows} rows of "
                f"{self._ranks.copies} copies"
            )
        result = np.full(count, self._floor_s)
        if not self._steps:
            return result
        by_node = durations_s.reshape(rows, self._ranks.node_count, self._ranks.local_size, count)
        width = max(_MIN_WIDTH, _CACHE_BYTES // (8 * self._values))
        for first in range(0, count, width):
            chunk = slice(first, first + width)
            last = self._last_end_s(by_node[..., chunk])
            np.add(last[0, 0], self._shift_s, out=result[chunk])
        if self._floor_s > -math.inf:
            np.maximum(result, self._floor_s, out=result)
        return result

    def _last_end_s(self, durations_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluates all steps and returns the last one."""
        ends: list[NDArray[np.float64]] = []
        for step in self._steps:
            value: NDArray[np.float64] | None = None
            own = False
            for number, weight_s in step.terms:
                term, made = ends[number], False
                if step.scope:
                    term, made = _latest(term, step.scope)
                if weight_s:
                    term, made = np.add(term, weight_s, out=term if made else None), True
                if value is None:
                    value, own = term, made
                else:
                    fits = own and _covers(value, term)
                    value, own = np.maximum(value, term, out=value if fits else None), True
            if value is not None and step.floor_s > -math.inf:
                value = np.maximum(value, step.floor_s, out=value if own else None)
                own = True
            if step.row >= 0:
                nodes, local = step.shape
                lasts_s = durations_s[step.row, :nodes, :local]
                if value is None:
                    value = lasts_s
                else:
                    fits = own and _covers(value, lasts_s)
                    value = np.add(value, lasts_s, out=value if fits else None)
            if value is None:
                raise AssertionError("a node without predecessors lasts a varying duration")
            ends.append(value)
        return ends[-1]


def _covers(larger: NDArray[np.float64], smaller: NDArray[np.float64]) -> bool:
    """Returns whether two arrays broadcast to the shape of the first one."""
    return bool(larger.shape[0] >= smaller.shape[0] and larger.shape[1] >= smaller.shape[1])


def _latest(term: NDArray[np.float64], scope: int) -> tuple[NDArray[np.float64], bool]:
    """Returns the latest values within a scope, and whether they are a new array."""
    nodes, local, count = term.shape
    if scope == SyncScope.ALL and nodes > 1 and local > 1:
        flat = term.reshape(1, nodes * local, count)
        return np.maximum.reduce(flat, axis=1, keepdims=True), True
    if scope & SyncScope.NODE and local > 1:
        return np.maximum.reduce(term, axis=1, keepdims=True), True
    if scope & SyncScope.ACROSS and nodes > 1:
        return np.maximum.reduce(term, axis=0, keepdims=True), True
    return term, False


def _reduced(ranks: SymmetricRanks, row_of: list[int], maxima: _RankMaxima) -> Moment:
    """Walks through one copy and returns the end of the last task of all of them."""
    graph = ranks.graph
    durations_s: list[float] = graph.duration_s.tolist()
    walk = walk_graph(graph)
    ends: dict[int, Moment] = {}
    collective_starts: dict[int, Moment] = {}
    for task, index, waits in walk.visits:
        if waits is None:
            start = collective_starts[index]
        else:
            start = maxima.join([ends[other] for other in waits])
            if index >= 0:
                start = collective_starts[index] = maxima.synchronized(start, ranks.scopes[index])
        if row_of[task] >= 0:
            ends[task] = maxima.lasting(start, row_of[task])
        else:
            ends[task] = maxima.single(start).later(durations_s[task])
    return maxima.synchronized(maxima.join([ends[task] for task in walk.last]), SyncScope.ALL)


class _RankMaxima(Maxima):
    """Makes nodes of all ranks at once.

    Dropping terms looks at each rank separately. That is safe: a maximum over ranks is not below
    any of them, so a path through a collective is never shorter than it appears.
    """

    def __init__(self, ranks: SymmetricRanks, equal_rows: Collection[int]) -> None:
        super().__init__()
        self._sizes = (ranks.node_count, ranks.local_size)
        self._equal_rows = frozenset(equal_rows)
        #: Axes of one entry; by node: over which axes it is equal, and over which a maximum.
        self._single_axes = sum(1 << axis for axis in (0, 1) if self._sizes[axis] == 1)
        self._equal: list[int] = []
        self._scope: list[int] = []
        self._known_collectives: dict[tuple[int, float, frozenset[tuple[int, float]]], int] = {}

    def synchronized(self, moment: Moment, scope: SyncScope) -> Moment:
        """Returns when the last rank of a collective is ready."""
        if not moment.edges:
            return moment
        if not scope & ~self._equal_of(moment) and len(moment.edges) == 1:
            return moment
        key = (int(scope), moment.floor_s, frozenset(moment.edges.items()))
        if key not in self._known_collectives:
            number = self._known_collectives[key] = self._add(moment, -1)
            self._scope[number] = int(scope)
            self._equal[number] |= int(scope)
        return Moment(-math.inf, {self._known_collectives[key]: 0.0})

    def _add(self, start: Moment, row: int) -> int:
        number = super()._add(start, row)
        equal = self._equal_of(start)
        if row >= 0 and row not in self._equal_rows:
            equal = self._single_axes
        self._equal.append(equal)
        self._scope.append(0)
        return number

    def _equal_of(self, moment: Moment) -> int:
        """Returns the axes over which a moment is the same for all ranks."""
        equal = int(SyncScope.ALL)
        for source in moment.edges:
            equal &= self._equal[source]
        return equal | self._single_axes

    def steps(self, last: Moment) -> tuple[tuple[_Step, ...], float]:
        """Returns the steps that the last end depends on, and the seconds after the last step.

        Rows hold times relative to a constant for each node, chosen so that one term of every
        step needs no addition.
        """
        needed: set[int] = set()
        stack = list(last.edges)
        while stack:
            node = stack.pop()
            if node not in needed:
                needed.add(node)
                stack.extend(self.nodes[node].start.edges)
        place: dict[int, int] = {}
        potential_s: dict[int, float] = {}
        steps: list[_Step] = []
        for node in sorted(needed):
            start = self.nodes[node].start
            potential_s[node] = max(
                (potential_s[source] + weight for source, weight in start.edges.items()),
                default=start.floor_s,
            )
            terms = [
                (place[source], (potential_s[source] + weight) - potential_s[node])
                for source, weight in start.edges.items()
            ]
            # Terms that need their own array come first; the others are folded into it.
            terms.sort(key=lambda term: term[1] == 0.0)
            # Without edges the floor is the potential, and the relative floor is zero.
            floor_s = start.floor_s - potential_s[node] if start.edges else -math.inf
            equal = self._equal[node]
            shape = (1 if equal & 1 else self._sizes[0], 1 if equal & 2 else self._sizes[1])
            place[node] = len(steps)
            steps.append(
                _Step(tuple(terms), floor_s, self._scope[node], self.nodes[node].row, shape)
            )
        shift_s = sum(potential_s[node] + weight for node, weight in last.edges.items())
        return tuple(steps), shift_s
