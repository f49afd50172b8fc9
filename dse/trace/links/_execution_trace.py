"""Links between nodes of an execution trace and operators of a Kineto trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace.links._align import align
from dse.trace.links._link import Links, link
from dse.trace.read._rank_trace import DEVICE_WORK, Category

if TYPE_CHECKING:
    from dse.trace.read._execution_trace import ExecutionTrace
    from dse.trace.read._rank_trace import Longs, RankTrace

#: Ids are trusted if this share of the nodes with one find an operator of the same name.
_ENOUGH = 0.5
_SEQUENCE = 2**40


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionTraceLinks:
    """Links between an execution trace and a Kineto trace of the same rank.

    Attributes:
        event: Event of each node, or -1; shape `(nodes,)`.
        node: Node of each event, or -1; shape `(events,)`.
        method: `record function` or `order`.
        share: Linked share of the operators that launched work, in the part of the Kineto trace
            that the execution trace covers (from the first to the last link of each thread); 0
            without such operators.
        launching: Number of operators that launched work, in the covered part.
        notes: Doubts about the links.
    """

    event: Longs
    node: Longs
    method: str
    share: float
    launching: int
    notes: tuple[str, ...]


def link_execution_trace(
    et: ExecutionTrace, trace: RankTrace, links: Links | None = None
) -> ExecutionTraceLinks:
    """Links nodes to operators and annotations.

    Record-function ids decide where both traces have them (PyTorch 2.1 and later, both recorded
    together). Otherwise names and sequence numbers in order do, thread by thread.

    Args:
        et: The execution trace.
        trace: The Kineto trace of the same rank and run.
        links: The links of the Kineto trace; computed if left out.
    """
    links = link(trace) if links is None else links
    notes = _doubts(et, trace)
    event = _by_id(et, trace)
    method = "record function"
    if event is None:
        event = _by_order(et, trace)
        method = "order"
    node = np.full(len(trace), -1, dtype=np.int64)
    linked = np.flatnonzero(event >= 0)
    node[event[linked]] = linked
    work = np.flatnonzero(trace.where(*DEVICE_WORK) & (links.launch >= 0) & (links.operator >= 0))
    launching = np.unique(links.operator[work])
    covered = launching[_covered(trace, node, launching)]
    if not len(linked):
        notes.append("no node could be linked; the traces probably belong to different runs")
    return ExecutionTraceLinks(
        event=event,
        node=node,
        method=method,
        share=float((node[covered] >= 0).mean()) if len(covered) else 0.0,
        launching=len(covered),
        notes=tuple(notes),
    )


def _doubts(et: ExecutionTrace, trace: RankTrace) -> list[str]:
    notes = []
    if et.rank != trace.rank:
        notes.append(f"{et.file} belongs to rank {et.rank}, {trace.file} to rank {trace.rank}")
    processes = {thread.process for thread in trace.threads}
    if et.process_id >= 0 and processes and str(et.process_id) not in processes:
        notes.append(
            f"{et.file} belongs to process {et.process_id}, {trace.file} to "
            f"{', '.join(sorted(processes))}: they are from different runs"
        )
    return notes


def _operators(trace: RankTrace) -> Longs:
    return np.flatnonzero(trace.where(Category.CPU_OP, Category.ANNOTATION) & (trace.thread >= 0))


def _common_names(et: ExecutionTrace, trace: RankTrace) -> Longs:
    """Returns the number in `trace.names` of each name of the execution trace, or -1."""
    number = {name: at for at, name in enumerate(trace.names)}
    return np.array([number.get(name, -1) for name in et.names], dtype=np.int64)


def _by_id(et: ExecutionTrace, trace: RankTrace) -> Longs | None:
    operators = _operators(trace)
    operators = operators[trace.record_function[operators] >= 0]
    asking = np.flatnonzero(et.record_function > 0)
    if not len(operators) or not len(asking):
        return None
    operators = operators[np.argsort(trace.record_function[operators], kind="stable")]
    known = trace.record_function[operators]
    at = np.minimum(np.searchsorted(known, et.record_function[asking]), len(known) - 1)
    names = _common_names(et, trace)[et.name[asking]]
    hit = (known[at] == et.record_function[asking]) & (trace.name[operators[at]] == names)
    if hit.sum() < _ENOUGH * min(len(asking), len(operators)):
        return None
    event = np.full(len(et), -1, dtype=np.int64)
    event[asking[hit]] = operators[at[hit]]
    return event


def _by_order(et: ExecutionTrace, trace: RankTrace) -> Longs:
    event = np.full(len(et), -1, dtype=np.int64)
    operators = _operators(trace)
    names = _common_names(et, trace)[et.name]
    threads = np.unique(trace.thread[operators]).tolist()
    sides, counts = np.unique(et.thread, return_counts=True)
    for side in sides[np.argsort(-counts, kind="stable")].tolist():
        nodes = np.flatnonzero((et.thread == side) & (names >= 0))
        best: tuple[int, int, Longs] | None = None
        for thread in threads:
            events = operators[trace.thread[operators] == thread]
            found = _aligned(et, trace, nodes, names[nodes], events)
            hits = int((found >= 0).sum())
            if hits and (best is None or hits > best[0]):
                best = hits, thread, found
        if best is not None:
            event[nodes] = best[2]
            threads.remove(best[1])
    return event


def _aligned(
    et: ExecutionTrace, trace: RankTrace, nodes: Longs, names: Longs, events: Longs
) -> Longs:
    """Returns the event of each node: names in order, anchored by sequence numbers."""
    left = names * _SEQUENCE
    right = trace.name[events].astype(np.int64) * _SEQUENCE
    numbered = left + et.sequence[nodes] + 1, right + trace.sequence[events] + 1
    best = np.full(len(nodes), -1, dtype=np.int64)
    for anchors in (numbered, (left, right)):
        finer = anchors[0].tolist(), anchors[1].tolist()
        places = align(left.tolist(), right.tolist(), finer)
        if (places >= 0).sum() > (best >= 0).sum():
            best = np.where(places >= 0, events[places], -1)
        if (best >= 0).sum() > _ENOUGH * len(best):
            break
    return best


def _covered(trace: RankTrace, node: Longs, events: Longs) -> np.ndarray:
    linked = np.flatnonzero(node >= 0)
    first = np.full(len(trace.threads) + 1, np.iinfo(np.int64).max)
    last = np.full(len(trace.threads) + 1, -1)
    np.minimum.at(first, trace.thread[linked], linked)
    np.maximum.at(last, trace.thread[linked], linked)
    thread = trace.thread[events]
    return np.asarray((events >= first[thread]) & (events <= last[thread]))
