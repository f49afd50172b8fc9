"""Simplification of (max, +) expressions.

Times are (max, +) expressions: a *moment* is the maximum of a constant and of the ends of some
nodes, each plus a constant. A *node* starts at a moment and lasts one varying duration, or none.
While :mod:`dse.simulate._compiled` walks a graph in topological order,

1. a collective starts at the maximum of all moments that its members wait for;
2. what depends only on constant durations stays a number;
3. a task of constant duration adds to the constants of the moment at which it starts;
4. a term that can never exceed another term of the same maximum is dropped: a predecessor that
   precedes another one anyway, or a constant that passes before any possible end (durations are
   never negative);
5. equal maxima of several ends become one node.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import NamedTuple


class Moment(NamedTuple):
    """A point in time, as the maximum of its terms.

    Attributes:
        floor_s: The constant term; minus infinity when another term is never smaller.
        edges: Node → seconds after its end.
    """

    floor_s: float
    edges: dict[int, float]

    def later(self, seconds: float) -> Moment:
        """Returns this moment plus a constant."""
        if seconds == 0:
            return self
        floor_s, edges = self
        if edges:
            edges = {source: weight + seconds for source, weight in edges.items()}
        return Moment(floor_s + seconds, edges)


@dataclass(frozen=True, slots=True)
class Node:
    """A step of the recurrence.

    Attributes:
        start: When it starts.
        row: Row of the varying durations that it takes, or -1 for none.
        earliest_end_s: What its end is at least, whatever the varying durations are.
    """

    start: Moment
    row: int
    earliest_end_s: float


class Maxima:
    """Makes nodes and simplifies maxima of their ends.

    Attributes:
        nodes: Those made so far, in topological order.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[tuple[float, frozenset[tuple[int, float]]], int] = {}

    def join(self, moments: list[Moment]) -> Moment:
        """Returns the maximum of moments, or the start of the iteration when there are none."""
        if len(moments) == 1:
            return moments[0]
        if not moments:
            return Moment(0.0, {})
        latest = moments[0]
        edges: dict[int, float] = {}
        for moment in moments:
            if moment.floor_s > latest.floor_s:
                latest = moment
            for source, weight in moment.edges.items():
                known = edges.get(source)
                if known is None or weight > known:
                    edges[source] = weight
        floor_s = latest.floor_s
        if not edges:
            # Most of a graph depends on constants only.
            return latest
        if len(edges) > 1:
            edges = self._without_redundant(edges)
        if self._earliest_s(edges) >= floor_s:
            floor_s = -math.inf
        return Moment(floor_s, edges)

    def single(self, moment: Moment) -> Moment:
        """Turns a maximum of several ends into a node, so that it is computed only once."""
        if len(moment.edges) < 2:
            return moment
        key = (moment.floor_s, frozenset(moment.edges.items()))
        if key not in self._known:
            self._known[key] = self._add(moment, -1)
        return Moment(-math.inf, {self._known[key]: 0.0})

    def lasting(self, start: Moment, row: int) -> Moment:
        """Returns the end of a task of varying duration."""
        return Moment(-math.inf, {self._add(start, row): 0.0})

    def _add(self, start: Moment, row: int) -> int:
        earliest_s = max(start.floor_s, self._earliest_s(start.edges))
        self.nodes.append(Node(start, row, earliest_s))
        return len(self.nodes) - 1

    def _earliest_s(self, edges: dict[int, float]) -> float:
        earliest_s = -math.inf
        for source, weight in edges.items():
            end_s = self.nodes[source].earliest_end_s + weight
            if end_s > earliest_s:
                earliest_s = end_s
        return earliest_s

    def _without_redundant(self, edges: dict[int, float]) -> dict[int, float]:
        """Drops a source when the way from it over another source, in one step or two, is longer.

        Looking further back finds next to nothing more in execution graphs, and costs more.
        """
        redundant = set()
        for last, weight in edges.items():
            for middle, before in self.nodes[last].start.edges.items():
                if before + weight >= edges.get(middle, math.inf):
                    redundant.add(middle)
                for first, earlier in self.nodes[middle].start.edges.items():
                    if earlier + before + weight >= edges.get(first, math.inf):
                        redundant.add(first)
        if not redundant:
            return edges
        return {source: weight for source, weight in edges.items() if source not in redundant}
