"""All copies of one rank's graph as one graph."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.graph import Stream, predecessors
from dse.simulate._symmetric import SyncScope
from dse.simulate._timeline import Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph
    from dse.simulate._symmetric import FoldedRanks, SymmetricRanks


class ExpandedRanks(NamedTuple):
    """A graph with the tasks of several ranks, made of one rank's.

    Attributes:
        graph: Task `t` of the rank in place `p` of `n` has the index `t · n + p`.
        scopes: Which ranks take part in each collective, by its index.
    """

    graph: ExecutionGraph
    scopes: tuple[SyncScope, ...]


def expanded(folded: FoldedRanks, duration_s: NDArray[np.float64]) -> ExpandedRanks:
    """Returns one graph with the tasks of all kept copies.

    Args:
        folded: The copies; their streams belong to the ranks that their numbers say.
        duration_s: Seconds; shape `(tasks, kept)`.
    """
    ranks, kept = folded.ranks, folded.kept
    one, copies = ranks.graph, len(kept)
    every = np.arange(copies)
    counts = np.repeat(np.diff(one.dependency_offsets), copies)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    # Entry k of a task's list is entry k of the list of the task that it is a copy of.
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    entry = np.repeat(np.repeat(one.dependency_offsets[:-1], copies), counts) + inside
    copy = np.repeat(np.tile(every, one.task_count), counts)
    collective, scopes = _collectives(ranks)
    graph = replace(
        one,
        streams=tuple(
            Stream(rank, stream.name) for stream in one.streams for rank in kept.tolist()
        ),
        names=tuple(name for name in one.names for _ in range(copies)),
        kind=np.repeat(one.kind, copies),
        stream=(one.stream[:, None] * copies + every).ravel().astype(np.int32),
        duration_s=np.ascontiguousarray(duration_s).ravel(),
        collective=collective,
        dependency_offsets=offsets.astype(np.int32),
        dependency_tasks=(one.dependency_tasks[entry] * copies + copy).astype(np.int32),
    )
    return ExpandedRanks(graph, scopes)


def timeline_of_copies(
    ranks: SymmetricRanks, graph: ExecutionGraph, duration_s: NDArray[np.float64]
) -> Timeline:
    """Simulates copies of one rank's graph and returns the time line of all of them.

    Args:
        ranks: The copies.
        graph: The same as one graph, see :func:`expanded`.
        duration_s: Seconds; shape `(tasks, copies)`.
    """
    start_s, end_s = (times[..., 0] for times in ranks.times_s(duration_s[..., None]))
    ready_s = start_s.copy()
    waits = predecessors(ranks.graph)
    for task in np.flatnonzero(ranks.graph.collective >= 0).tolist():
        ready_s[task] = end_s[waits[task]].max(axis=0, initial=0.0)
    return Timeline(graph, ready_s.ravel(), start_s.ravel(), end_s.ravel())


def _collectives(ranks: SymmetricRanks) -> tuple[NDArray[np.int32], tuple[SyncScope, ...]]:
    """Returns the collective of each task of each copy, or -1, and the scopes of these."""
    one, copies = ranks.graph, ranks.copies
    node, local = np.divmod(np.arange(copies), ranks.local_size)
    # Copies of one scope take part in one collective.
    group = {SyncScope.ALL: 0 * node, SyncScope.NODE: node, SyncScope.ACROSS: local}
    number = np.full((one.task_count, copies), -1)
    for task in np.flatnonzero(one.collective >= 0).tolist():
        index = int(one.collective[task])
        number[task] = index * copies + group[ranks.scopes[index]]
    used, place = np.unique(number, return_inverse=True)
    issued = used[used >= 0]
    collective = place.reshape(-1) - (len(used) - len(issued))
    scopes = tuple(ranks.scopes[index] for index in (issued // copies).tolist())
    return collective.astype(np.int32), scopes
