"""Turning (max, +) nodes into few large vector instructions.

Each node gets a row of a buffer, *slots* × candidates. Nodes are taken level by level; those of
one level that read and write rows in equal strides, typically the same task on all ranks, become
one instruction on slices of the buffer: no row is gathered or copied.

Rows hold times relative to a *potential*, a constant per node that is chosen so that the constant
on one edge into every node becomes zero. Most edges of a layered graph of equal ranks then need no
addition at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from dse.simulate._reduce import Node

#: From so many predecessors on, a node is evaluated by reductions over blocks of rows.
_WIDE = 4


class Term(NamedTuple):
    """Rows of the buffer that enter a maximum.

    Attributes:
        slots: One row per row of the result, or a single row for all of them; in a reducing
            instruction any number of rows, all of which enter the one result.
        weight_s: Seconds to add; shape `(rows, 1)`. None for zero.
    """

    slots: slice
    weight_s: NDArray[np.float64] | None


@dataclass(frozen=True, slots=True)
class Instruction:
    """``out = max(terms, floor) + durations[rows]``.

    Attributes:
        out: Rows of the buffer to write.
        terms: What to take the maximum of; weighted ones first.
        floor_s: A further, constant term; shape `(rows, 1)`, or None.
        rows: Rows of the durations to add, or None.
        reduces: The single result is the maximum over all rows of all terms.
    """

    out: slice
    terms: tuple[Term, ...]
    floor_s: NDArray[np.float64] | None
    rows: slice | None
    reduces: bool

    def run(
        self,
        ends: NDArray[np.float64],
        durations_s: NDArray[np.float64],
        scratch: NDArray[np.float64],
    ) -> None:
        """Evaluates the instruction for a block of candidates.

        Args:
            ends: The buffer; shape `(slots, candidates)`.
            durations_s: Varying durations; shape `(rows, candidates)`.
            scratch: Space for intermediate terms; shape `(scratch rows, candidates)`.
        """
        out = ends[self.out]
        value: NDArray[np.float64] | None = None
        for slots, weight_s in self.terms:
            term = ends[slots]
            if weight_s is not None:
                # The first term can be built in place; later ones must not overwrite it.
                in_place = value is None and not self.reduces
                term = np.add(term, weight_s, out=out if in_place else scratch[: len(weight_s)])
            if self.reduces and len(term) > 1:
                target = out if value is None else scratch[-1:]
                term = np.maximum.reduce(term, axis=0, keepdims=True, out=target)
            value = term if value is None else np.maximum(value, term, out=out)
        if self.floor_s is not None and value is not None:
            value = np.maximum(value, self.floor_s, out=out)
        if self.rows is None:
            return
        if value is None:
            np.copyto(out, durations_s[self.rows])
        else:
            np.add(value, durations_s[self.rows], out=out)


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions in order of evaluation.

    Attributes:
        instructions: To be run one after the other.
        slot_count: Rows of the buffer.
        scratch_count: Rows of space for intermediate terms.
        slot: Row of the buffer of each node; -1 for a node that is not evaluated.
        potential_s: What to add to a row of the buffer to get the end of its node; by node.
    """

    instructions: tuple[Instruction, ...]
    slot_count: int
    scratch_count: int
    slot: NDArray[np.int64]
    potential_s: NDArray[np.float64]

    def run(
        self,
        ends: NDArray[np.float64],
        durations_s: NDArray[np.float64],
        scratch: NDArray[np.float64],
    ) -> None:
        """Fills the buffer; for the arguments see :meth:`Instruction.run`."""
        for instruction in self.instructions:
            instruction.run(ends, durations_s, scratch)


def compile_nodes(nodes: list[Node], wanted: Iterable[int]) -> Program:
    """Compiles the nodes that some wanted nodes depend on.

    Args:
        nodes: All nodes, in topological order.
        wanted: Those whose ends are to be known.
    """
    return _Compiler(nodes).compile(_needed(nodes, wanted))


def _needed(nodes: list[Node], wanted: Iterable[int]) -> list[int]:
    needed: set[int] = set()
    stack = list(wanted)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(nodes[node].start.edges)
    return sorted(needed)


class _Compiler:
    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._slot = [-1] * len(nodes)
        self._potential_s = [0.0] * len(nodes)
        self._slot_count = 0
        self._scratch_count = 1

    def compile(self, needed: list[int]) -> Program:
        """Emits the instructions of all levels."""
        self._set_potentials(needed)
        instructions: list[Instruction] = []
        for group in self._groups(needed):
            # Slots of earlier levels are known by now: order by them, and by rows.
            ordered = sorted((self._places(node), node) for node in group)
            start = 0
            while start < len(ordered):
                length = _run_length([places for places, _ in ordered[start:]])
                bundle = [node for _, node in ordered[start : start + length]]
                instructions.append(self._emit(bundle))
                start += length
        return Program(
            instructions=tuple(instructions),
            slot_count=self._slot_count,
            scratch_count=self._scratch_count,
            slot=np.array(self._slot, dtype=np.int64),
            potential_s=np.array(self._potential_s),
        )

    def _set_potentials(self, needed: list[int]) -> None:
        for node in needed:
            start = self._nodes[node].start
            self._potential_s[node] = max(
                (self._potential_s[source] + weight for source, weight in start.edges.items()),
                default=start.floor_s,
            )

    def _groups(self, needed: list[int]) -> list[list[int]]:
        """Nodes that may share an instruction, level by level; a wide node stays alone."""
        level: dict[int, int] = {}
        groups: dict[tuple[int, int, bool, bool, int], list[int]] = {}
        for key in needed:
            node = self._nodes[key]
            edges = node.start.edges
            level[key] = 1 + max((level[source] for source in edges), default=-1)
            alone = key if len(edges) >= _WIDE else -1
            signature = (level[key], len(edges), self._has_floor(node), node.row >= 0, alone)
            groups.setdefault(signature, []).append(key)
        return [groups[signature] for signature in sorted(groups)]

    def _has_floor(self, node: Node) -> bool:
        # Without edges the floor is the potential, and the relative floor is zero.
        return bool(node.start.edges) and node.start.floor_s > -math.inf

    def _places(self, node: int) -> tuple[int, ...]:
        """Slots that a node reads in ascending order, and its row of durations."""
        slots = sorted(self._slot[source] for source in self._nodes[node].start.edges)
        return (*slots, self._nodes[node].row)

    def _emit(self, bundle: list[int]) -> Instruction:
        for node in bundle:
            self._slot[node] = self._slot_count
            self._slot_count += 1
        first = self._nodes[bundle[0]]
        reduces = len(first.start.edges) >= _WIDE
        terms = self._blocks(bundle[0]) if reduces else self._columns(bundle)
        floor_s = None
        if self._has_floor(first):
            floor_s = np.array(
                [[self._nodes[node].start.floor_s - self._potential_s[node]] for node in bundle]
            )
        rows = None
        if first.row >= 0:
            rows = _as_slice([self._nodes[node].row for node in bundle])
        return Instruction(
            out=slice(self._slot[bundle[0]], self._slot_count),
            terms=tuple(sorted(terms, key=lambda term: term.weight_s is None)),
            floor_s=floor_s,
            rows=rows,
            reduces=reduces,
        )

    def _columns(self, bundle: list[int]) -> list[Term]:
        """One term per predecessor: its slots over all nodes of the bundle."""
        by_node = [self._sources(node) for node in bundle]
        terms = [
            Term(_as_slice([slot for slot, _ in column]), self._weights([*column]))
            for column in zip(*by_node, strict=True)
        ]
        weighted = sum(term.weight_s is not None for term in terms)
        if weighted > 1:
            self._scratch_count = max(self._scratch_count, len(bundle))
        return terms

    def _blocks(self, node: int) -> list[Term]:
        """Terms of a wide node: blocks of slots in equal strides."""
        sources = self._sources(node)
        terms = []
        start = 0
        while start < len(sources):
            length = _run_length([(slot,) for slot, _ in sources[start:]])
            block = sources[start : start + length]
            terms.append(Term(_as_slice([slot for slot, _ in block]), self._weights(block)))
            start += length
        # One row more: the result of a block while its weighted rows are still there.
        self._scratch_count = max(self._scratch_count, len(sources) + 1)
        return terms

    def _sources(self, node: int) -> list[tuple[int, float]]:
        """Slots that a node reads, with weights relative to the potentials."""
        return sorted(
            (
                self._slot[source],
                # In this order the largest sum gives exactly zero.
                (self._potential_s[source] + weight) - self._potential_s[node],
            )
            for source, weight in self._nodes[node].start.edges.items()
        )

    @staticmethod
    def _weights(sources: list[tuple[int, float]]) -> NDArray[np.float64] | None:
        weights = np.array([[weight] for _, weight in sources])
        return weights if weights.any() else None


def _run_length(places: list[tuple[int, ...]]) -> int:
    """Returns how many tuples from the first on grow by the same, non-negative steps."""
    if len(places) < 2:
        return len(places)
    steps = [after - before for before, after in zip(places[0], places[1], strict=True)]
    if min(steps) < 0:
        return 1
    length = 1
    for before, after in pairwise(places):
        if any(b - a != step for a, b, step in zip(before, after, steps, strict=True)):
            break
        length += 1
    return length


def _as_slice(progression: list[int]) -> slice:
    """Returns the slice that yields a progression; equal numbers give one row to broadcast."""
    first, last = progression[0], progression[-1]
    step = progression[1] - first if len(progression) > 1 else 1
    return slice(first, last + 1, max(1, step))
