"""Links within one trace: operator ↔ call ↔ device work, and forward ↔ backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace.cpu._gloo import add_gloo
from dse.trace.links._derived_collectives import derive_collectives
from dse.trace.links._nesting import innermost, nearest_marked, parents
from dse.trace.read._rank_trace import CALLS, DEVICE_WORK, Category, FlowKind

if TYPE_CHECKING:
    from dse.trace.read._collectives import CollectiveInfo
    from dse.trace.read._rank_trace import Ints, Longs, RankTrace


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Links between events; every array has shape `(events,)` and holds event indices or -1.

    Attributes:
        launch: Runtime or driver call that launched this device work; a graph launch has many.
            Also set for synchronisations that a call caused. For a collective of gloo, in traces
            without device work, the c10d operator that issued it.
        operator: Innermost operator that encloses a host event on its thread (for an operator,
            its parent operator), or whose call launched this work.
        parent: Innermost operator or annotation that encloses an operator, annotation or call.
        forward: Forward operator of this backward operator.
        collective: Index into `collectives`, for kernels of collectives, annotations of gloo in
            traces without device work, and host operators that the file describes as collectives.
        collectives: Collectives described in the trace or derived from enclosing annotations.
        notes: What could not be linked, with counts.
    """

    launch: Longs
    operator: Longs
    parent: Longs
    forward: Longs
    collective: Ints
    collectives: tuple[CollectiveInfo, ...]
    notes: tuple[str, ...]


def link(trace: RankTrace) -> Links:
    """Links the events of one trace.

    A call and its work share a correlation. A call belongs to the operator whose external id it
    carries if the trace has such ids, otherwise to the innermost one around it in time.
    """
    notes: list[str] = []
    launch = _launches(trace, notes)
    parent, operator = _enclosing(trace)
    _by_external_id(trace, operator, parent)
    launched = np.flatnonzero(launch >= 0)
    operator[launched] = operator[launch[launched]]
    _work_by_external_id(trace, launch, operator)
    forward = _forward(trace)
    collective, collectives = derive_collectives(trace, launch, parent)
    collectives = add_gloo(trace, launch, operator, collective, collectives, notes)
    work = trace.where(*DEVICE_WORK)
    alone = np.flatnonzero(work & (launch < 0))
    if len(alone):
        notes.append(
            f"{len(alone)} of {work.sum()} device events have no launching call in the trace, the "
            f"last starts at {trace.start_ns[alone[-1]] / 1000:.0f} µs"
        )
    early = launched[trace.start_ns[launched] < trace.start_ns[launch[launched]]]
    if len(early):
        worst = (trace.start_ns[launch[early]] - trace.start_ns[early]).max()
        notes.append(
            f"{len(early)} device events start before their launch, by up to {worst / 1000} µs"
        )
    return Links(launch, operator, parent, forward, collective, collectives, tuple(notes))


def _launches(trace: RankTrace, notes: list[str]) -> Longs:
    result = np.full(len(trace), -1, dtype=np.int64)
    calls = np.flatnonzero(trace.where(*CALLS) & (trace.correlation >= 0))
    work = np.flatnonzero(trace.where(*DEVICE_WORK, Category.SYNC) & (trace.correlation >= 0))
    if not len(calls) or not len(work):
        return result
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    known = trace.correlation[calls]
    at = np.minimum(np.searchsorted(known, trace.correlation[work]), len(known) - 1)
    hit = known[at] == trace.correlation[work]
    result[work[hit]] = calls[at[hit]]
    double = int((known[1:] == known[:-1]).sum())
    if double:
        notes.append(f"{double} calls repeat the correlation of an earlier one")
    return result


def _enclosing(trace: RankTrace) -> tuple[Longs, Longs]:
    """Returns parents among operators and annotations, and the innermost operators."""
    nodes = np.flatnonzero(trace.where(Category.CPU_OP, Category.ANNOTATION) & (trace.thread >= 0))
    nodes = nodes[np.argsort(trace.thread[nodes], kind="stable")]
    thread, start, end = trace.thread[nodes], trace.start_ns[nodes], trace.end_ns[nodes]
    local = parents(thread, start, end)
    nearest = nearest_marked(local, trace.category[nodes] == Category.CPU_OP)
    parent = np.full(len(trace), -1, dtype=np.int64)
    operator = parent.copy()
    inner = local >= 0
    parent[nodes[inner]] = nodes[local[inner]]
    above = np.full(len(nodes), -1, dtype=np.int64)
    above[inner] = nearest[local[inner]]
    operator[nodes] = np.where(above >= 0, nodes[above], -1) if len(nodes) else above
    others = np.flatnonzero(trace.where(*CALLS, Category.PYTHON) & (trace.thread >= 0))
    found = innermost(
        thread,
        start,
        end,
        local,
        trace.thread[others],
        trace.start_ns[others],
        trace.end_ns[others],
    )
    inside = found >= 0
    parent[others[inside]] = nodes[found[inside]]
    known = inside.copy()
    known[inside] = nearest[found[inside]] >= 0
    operator[others[known]] = nodes[nearest[found[known]]]
    return parent, operator


def has_external_links(trace: RankTrace) -> bool:
    """Returns whether external ids name operators rather than repeat correlations."""
    calls = trace.where(*CALLS) & (trace.external_id >= 0)
    repeated = trace.external_id[calls] == trace.correlation[calls]
    return bool(calls.any()) and float(repeated.mean()) < 0.5


def _operators_by_external_id(trace: RankTrace, wanted: Longs) -> Longs:
    """Returns the last operator with each external id, or -1."""
    operators = np.flatnonzero(
        trace.where(Category.CPU_OP, Category.ANNOTATION) & (trace.external_id >= 0)
    )
    if not len(operators):
        return np.full(len(wanted), -1, dtype=np.int64)
    operators = operators[np.argsort(trace.external_id[operators], kind="stable")]
    known = trace.external_id[operators]
    at = np.searchsorted(known, wanted, side="right") - 1
    hit = (at >= 0) & (known[at] == wanted) & (wanted >= 0)
    return np.where(hit, operators[at], -1)


def _by_external_id(trace: RankTrace, operator: Longs, parent: Longs) -> None:
    """Links calls to operators by external id, where thread and time agree."""
    if not has_external_links(trace):
        return
    calls = np.flatnonzero(trace.where(*CALLS))
    named = _operators_by_external_id(trace, trace.external_id[calls])
    agree = (
        (named >= 0)
        & (trace.thread[named] == trace.thread[calls])
        & (trace.start_ns[named] <= trace.start_ns[calls])
        & (trace.end_ns[named] >= trace.start_ns[calls])
    )
    calls, named = calls[agree], named[agree]
    parent[calls] = named
    is_operator = trace.category[named] == Category.CPU_OP
    operator[calls] = np.where(is_operator, named, operator[named])


def _work_by_external_id(trace: RankTrace, launch: Longs, operator: Longs) -> None:
    """Links device work without a call in the trace to the operator that it names."""
    if not has_external_links(trace):
        return
    work = np.flatnonzero(trace.where(*DEVICE_WORK) & (launch < 0) & (operator < 0))
    named = _operators_by_external_id(trace, trace.external_id[work])
    known = named >= 0
    is_operator = trace.category[named] == Category.CPU_OP
    operator[work[known]] = np.where(is_operator, named, operator[named])[known]


def _forward(trace: RankTrace) -> Longs:
    """Links backward operators to forward ones by sequence number, or by a flow if recorded.

    Of several forward operators with one number the last one created the backward node: the outer
    ones only read the upcoming number.
    """
    result = np.full(len(trace), -1, dtype=np.int64)
    numbered = trace.where(Category.CPU_OP) & (trace.sequence >= 0)
    backward = np.flatnonzero(numbered & (trace.forward_thread > 0))
    forward = np.flatnonzero(numbered & (trace.forward_thread <= 0))
    if len(backward) and len(forward):
        order = np.lexsort((forward, trace.sequence[forward]))
        forward = forward[order]
        count = len(trace) + 1
        keys = trace.sequence[forward] * count + forward
        wanted = trace.sequence[backward] * count + backward
        at = np.searchsorted(keys, wanted) - 1
        hit = (at >= 0) & (trace.sequence[forward[at]] == trace.sequence[backward])
        result[backward[hit]] = forward[at[hit]]
    flows = trace.flows
    drawn = flows.kind == FlowKind.FORWARD_BACKWARD
    arrows = drawn & (trace.forward_thread[flows.target] > 0) if len(flows) else drawn
    result[flows.target[arrows]] = flows.source[arrows]
    return result
