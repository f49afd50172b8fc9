"""Symmetric ranks: one graph that stands for all ranks of an SPMD program.

In data-parallel training every rank runs the same tasks in the same order; only their durations
differ. One rank's graph with the scope of each collective describes all of them, and the cost of
building and reducing it does not grow with the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.errors import SimulationError
from dse.simulate._walk import live_walk, walk_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph


class SyncScope(IntEnum):
    """Which ranks take part in a collective, as bits of the axes (node, local rank) it spans.

    ACROSS: the same local rank on every node. NODE: all ranks of a node. ALL: all ranks.
    """

    ACROSS = 1
    NODE = 2
    ALL = 3


class FoldedRanks(NamedTuple):
    """Copies of a graph of which equal ones are held once.

    Attributes:
        ranks: The graph and the copies that are left.
        kept: Which copies these are, ascending; shape `(kept,)`.
        of_copy: Which of them stands for each copy; shape `(copies,)`.
        local_size: Copies on a node before any was left out.
    """

    ranks: SymmetricRanks
    kept: NDArray[np.int64]
    of_copy: NDArray[np.int64]
    local_size: int

    @property
    def stands_for(self) -> NDArray[np.int64]:
        """How many copies each kept one stands for, itself included; shape `(kept,)`."""
        return np.bincount(self.of_copy, minlength=len(self.kept))

    @property
    def representatives(self) -> zip[tuple[int, int]]:
        """Each copy with the one that stands for it."""
        return zip(range(len(self.of_copy)), self.kept[self.of_copy].tolist(), strict=True)

    def scope_of(self, task: int) -> SyncScope:
        """Returns which ranks take part in a collective.

        Args:
            task: Any member, as a task of the graph of kept copies (:func:`expanded`).
        """
        index = self.ranks.graph.collective[task // self.ranks.copies]
        return self.ranks.scopes[int(index)]

    def task_of_all(self, task: int) -> int:
        """Returns the number in the graph of all copies of a task of that of kept copies."""
        own, place = divmod(task, len(self.kept))
        return own * len(self.of_copy) + int(self.kept[place])

    def met(self, scope: SyncScope, other: int, copy: int) -> int:
        """Returns whom a copy meets where the one that stands for it meets `other`."""
        node = (other if scope & SyncScope.ACROSS else copy) // self.local_size
        return node * self.local_size + (other if scope & SyncScope.NODE else copy) % (
            self.local_size
        )


@dataclass(frozen=True, slots=True)
class SymmetricRanks:
    """Several copies of one graph, synchronised by collectives.

    Attributes:
        graph: Tasks of one rank, or of all ranks where these differ. A member of a collective
            stands for one in each copy.
        node_count: Nodes of copies.
        local_size: Copies on a node; they are numbered node by node.
        scopes: Which copies take part in each collective, by its index.
    """

    graph: ExecutionGraph
    node_count: int
    local_size: int
    scopes: tuple[SyncScope, ...]

    @staticmethod
    def single(graph: ExecutionGraph) -> SymmetricRanks:
        """Returns a graph that holds all ranks already, as its only copy."""
        count = int(graph.collective.max(initial=-1)) + 1
        return SymmetricRanks(graph, 1, 1, (SyncScope.ALL,) * count)

    @property
    def copies(self) -> int:
        """Number of copies."""
        return self.node_count * self.local_size

    def folded(self, durations_s: NDArray[np.float64]) -> FoldedRanks:
        """Returns the copies without nodes, and local ranks, that repeat another one.

        Equal nodes have the same times, and so have local ranks that are equal on every node, so
        one of them gives the times of all. This is what keeps tens of thousands of ranks cheap:
        only a few of them hold shards of their own.

        Args:
            durations_s: Seconds; shape `(tasks, copies)`.
        """
        shape = (len(durations_s), self.node_count, self.local_size)
        by_node = durations_s.reshape(shape).transpose(1, 2, 0)
        nodes, of_node = _distinct(by_node)
        locals_, of_local = _distinct(by_node[nodes].transpose(1, 0, 2))
        ranks = replace(self, node_count=len(nodes), local_size=len(locals_))
        kept = nodes[:, None] * self.local_size + locals_
        of_copy = of_node[:, None] * len(locals_) + of_local
        return FoldedRanks(ranks, kept.ravel(), of_copy.ravel(), self.local_size)

    def unfolded(self) -> FoldedRanks:
        """Returns all copies, each of which stands for itself."""
        every = np.arange(self.copies)
        return FoldedRanks(self, every, every, self.local_size)

    def times_s(
        self, durations_s: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns when each task starts and ends in each copy.

        Args:
            durations_s: Seconds; shape `(tasks, copies, candidates)`.

        Returns:
            Two arrays of the same shape.

        Raises:
            SimulationError: The shape does not fit, or some tasks wait for each other.
        """
        self._check(durations_s)
        walk = walk_graph(self.graph)
        start_s, end_s = np.empty_like(durations_s), np.empty_like(durations_s)
        for task, index, waits in walk.visits:
            if waits is not None:
                _latest(end_s, waits, out=start_s[task])
                if index >= 0:
                    self.synchronize(self.scopes[index], start_s[task])
                    start_s[walk.members[index]] = start_s[task]
            np.add(start_s[task], durations_s[task], out=end_s[task])
        return start_s, end_s

    def last_end_s(
        self, durations_s: NDArray[np.float64], row: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Returns when the last task of all copies ends.

        Args:
            durations_s: Seconds, not negative; shape `(rows, copies, candidates)`.
            row: Row of each task's durations; shape `(tasks,)`. Each task has its own by default.

        Returns:
            Shape `(candidates,)`.

        Raises:
            SimulationError: The shape does not fit, or some tasks wait for each other.
        """
        self._check(durations_s, None if row is None else int(row.max(initial=-1)) + 1)
        walk = live_walk(self.graph)
        rows = list(durations_s)
        lasts_s = rows if row is None else [rows[number] for number in row.tolist()]
        moments_s = list(np.empty((walk.places, *durations_s.shape[1:])))
        latest_s = np.zeros(durations_s.shape[1:])
        for task, index, waits, start, end, last in walk.visits:
            own_s, end_s = lasts_s[task], moments_s[end]
            if index >= 0:
                start_s = moments_s[start]
                _latest(moments_s, waits, out=start_s)
                self.synchronize(self.scopes[index], start_s)
                np.add(start_s, own_s, out=end_s)
            elif len(waits) == 1:
                np.add(moments_s[waits[0]], own_s, out=end_s)
            elif waits:
                np.maximum(moments_s[waits[0]], moments_s[waits[1]], out=end_s)
                for other in waits[2:]:
                    np.maximum(end_s, moments_s[other], out=end_s)
                end_s += own_s
            else:
                end_s[:] = own_s
            if last:
                np.maximum(latest_s, end_s, out=latest_s)
        return np.asarray(latest_s.max(axis=0, initial=0.0))

    def _check(self, durations_s: NDArray[np.float64], rows: int | None = None) -> None:
        rows = self.graph.task_count if rows is None else rows
        if durations_s.ndim != 3 or durations_s.shape[:2] != (rows, self.copies):
            raise SimulationError(
                f"durations of shape {durations_s.shape}; expected ({rows}, "
                f"{self.copies}, candidates), one for each row of each copy"
            )

    def together(self, scope: SyncScope, copy: int) -> NDArray[np.int64]:
        """Returns the copies that take part in a collective with one of them, ascending."""
        numbers = np.arange(self.copies).reshape(self.node_count, self.local_size)
        node, local = divmod(copy, self.local_size)
        nodes = slice(None) if scope & SyncScope.ACROSS else slice(node, node + 1)
        locals_ = slice(None) if scope & SyncScope.NODE else slice(local, local + 1)
        return numbers[nodes, locals_].ravel()

    def synchronize(self, scope: SyncScope, ready_s: NDArray[np.float64]) -> None:
        """Replaces the times of all copies by the latest in their scope.

        Args:
            scope: Which copies take part in the collective.
            ready_s: Seconds, changed in place; shape `(copies, candidates)`.
        """
        by_node = ready_s.reshape(self.node_count, self.local_size, -1)
        axes = tuple(axis for axis in (0, 1) if scope >> axis & 1)
        by_node[:] = by_node.max(axis=axes, keepdims=True)


def _distinct(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first of each group of equal entries, and the group of each entry."""
    groups: dict[bytes, int] = {}
    of_entry = [groups.setdefault(entry.tobytes(), len(groups)) for entry in values]
    first = np.unique(of_entry, return_index=True)[1]
    return first.astype(np.int64), np.array(of_entry, dtype=np.int64)


def _latest(
    end_s: NDArray[np.float64] | Sequence[NDArray[np.float64]],
    tasks: Sequence[int],
    out: NDArray[np.float64],
) -> None:
    """Writes the latest end of some tasks, or the start of the iteration if there are no tasks."""
    out[:] = end_s[tasks[0]] if tasks else 0.0
    for task in tasks[1:]:
        np.maximum(out, end_s[task], out=out)
