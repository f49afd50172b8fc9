"""Summary of captured traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.graph import union_length
from dse.trace._step_graph import TaskRole
from dse.trace.analyse._collective_times import (
    collective_times,
    stragglers,
    waited_until_ns,
)
from dse.trace.analyse._summary_types import (
    NamedTotal,
    RankSummary,
    StepSummary,
    StepTimes,
    TraceSummary,
)
from dse.trace.cpu._gloo import gloo_events
from dse.trace.graph._host import host_rows
from dse.trace.graph._step import traced_step
from dse.trace.links._link import Links, link
from dse.trace.links._matched_collectives import match_collectives
from dse.trace.read._rank_trace import CALLS, DEVICE_WORK, Category

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dse.trace._step_graph import TracedStep
    from dse.trace.links._matched_collectives import MatchedCollective
    from dse.trace.read._rank_trace import Ints, Longs, RankTrace

#: Most kernels and operators listed.
_MOST = 12


def summarise(
    traces: Sequence[RankTrace],
    links: Sequence[Links] | None = None,
    collectives: Sequence[MatchedCollective] | None = None,
) -> TraceSummary:
    """Counts and adds up the contents of traces.

    The ranks' clocks, checked but not aligned by the reader, separate waiting from transfer of a
    collective: if the hosts' clocks differ, both are off by the difference.

    Args:
        traces: One trace per rank.
        links: The links of each trace; computed if left out.
        collectives: The collectives matched across these ranks; computed if left out.
    """
    links = [link(trace) for trace in traces] if links is None else links
    matched = match_collectives(traces, links) if collectives is None else collectives
    waits = waited_until_ns(traces, matched)
    ranks = tuple(
        _rank(trace, linked, waits[trace.rank])
        for trace, linked in zip(traces, links, strict=True)
    )
    summaries = collective_times(traces, matched)
    return TraceSummary(ranks, summaries, stragglers(summaries), _imbalance(ranks))


def _rank(trace: RankTrace, links: Links, waits: Mapping[int, int]) -> RankSummary:
    work = np.flatnonzero(trace.where(*DEVICE_WORK))
    kernels = np.flatnonzero(trace.where(Category.KERNEL))
    calls = trace.where(*CALLS)
    launched = work[links.operator[work] >= 0]
    start, end, duration = trace.start_ns, trace.end_ns, trace.duration_ns
    span_ns = int(end.max() - start.min()) if len(trace) else 0
    operators = np.flatnonzero(trace.where(Category.CPU_OP))
    called_ns = sum(
        int(union_length(start[mine], end[mine]))
        for thread in np.unique(trace.thread[calls]).tolist()
        for mine in [calls & (trace.thread == thread)]
    )
    return RankSummary(
        rank=trace.rank,
        file=trace.file,
        world_size=trace.world_size,
        devices=trace.device_names,
        events=len(trace),
        steps=tuple(
            StepSummary(step.number, (step.end_ns - step.start_ns) / 1e9) for step in trace.steps
        ),
        last_step=_last_step(trace, links, waits),
        device_events=len(work),
        device_busy_s=int(union_length(start[work], end[work])) / 1e9,
        unlaunched_events=int(np.count_nonzero(links.launch[work] < 0)),
        calls=int(np.count_nonzero(calls)),
        calls_s=called_ns / 1e9,
        span_s=span_ns / 1e9,
        top_kernels=_top(trace, kernels, duration[kernels]),
        top_operators=_top(trace, links.operator[launched], duration[launched]),
        top_host_operators=_top(trace, operators, _own_ns(trace, links)[operators]),
        notes=(*trace.notes, *links.notes),
    )


def _last_step(trace: RankTrace, links: Links, waits: Mapping[int, int]) -> StepTimes | None:
    """Splits the time of the last step by what ran: on devices, or else on the CPU.

    Args:
        trace: The trace.
        links: Its links.
        waits: Collectives, with the moment until which each waited for other ranks, in ns.
    """
    if not trace.where(Category.CPU_OP, *DEVICE_WORK).any():
        return None
    step = traced_step(trace, None)
    if trace.has_kernels:
        transfers = trace.where(Category.KERNEL) & (links.collective >= 0)
        moved = np.flatnonzero(transfers)
        worked = trace.where(*DEVICE_WORK) & ~transfers
        work = _spans(trace, np.flatnonzero(worked))
        kernels = _spans(trace, np.flatnonzero(worked & ~trace.where(Category.MEMCPY)))
    else:
        moved = gloo_events(trace)
        kernels = work = _computed(trace, links, step)
    begin = trace.start_ns.copy()
    for event, until_ns in waits.items():
        begin[event] = max(begin[event], until_ns)
    transfer = np.stack((begin[moved], trace.end_ns[moved]))

    def covered_s(*spans: Longs) -> float:
        start, end = np.hstack(spans).clip(step.start_ns, step.end_ns)
        return int(union_length(start, end)) / 1e9

    exposed_s = covered_s(kernels, transfer) - covered_s(kernels)
    busy_s = covered_s(work, transfer)
    return StepTimes(
        cut_by=step.cut_by,
        measured_s=step.measured_s,
        compute_s=busy_s - exposed_s,
        communication_s=covered_s(transfer),
        exposed_communication_s=exposed_s,
        idle_s=step.measured_s - busy_s,
        wait_s=covered_s(work, _spans(trace, moved)) - busy_s,
    )


def _spans(trace: RankTrace, events: Longs | NDArray[np.intp]) -> Longs:
    """Returns starts and ends of events, in ns; shape `(2, events)`."""
    return np.stack((trace.start_ns[events], trace.end_ns[events]))


def _computed(trace: RankTrace, links: Links, step: TracedStep) -> Longs:
    """Returns when the threads of a CPU compute, as in the graph of the step; shape `(2, times)`.

    Operators that compute may call others that do not, whose time does not count.
    """
    found = [
        (part.start, part.end)
        for row in host_rows(trace, links, step).rows.values()
        for part in row
        if part.role == TaskRole.KERNEL
    ]
    return np.array(found, dtype=np.int64).reshape(-1, 2).T + step.start_ns


def _own_ns(trace: RankTrace, links: Links) -> Longs:
    """Returns durations without those of nested operators, in ns."""
    inner = np.flatnonzero(trace.where(Category.CPU_OP) & (links.operator >= 0))
    inside = np.bincount(links.operator[inner], trace.duration_ns[inner], minlength=len(trace))
    return np.maximum(0, trace.duration_ns - np.rint(inside).astype(np.int64))


def _top(
    trace: RankTrace, events: Longs | NDArray[np.intp], duration_ns: Longs
) -> tuple[NamedTotal, ...]:
    names: Ints = trace.name[events]
    size = len(trace.names)
    totals = np.bincount(names, duration_ns, minlength=size)
    counts = np.bincount(names, minlength=size)
    order = np.argsort(-totals, kind="stable")[:_MOST]
    return tuple(
        NamedTotal(trace.names[index], int(counts[index]), float(totals[index]) / 1e9)
        for index in order.tolist()
        if counts[index]
    )


def _imbalance(ranks: Sequence[RankSummary]) -> float | None:
    compute_s = [rank.last_step.compute_s for rank in ranks if rank.last_step is not None]
    mean_s = sum(compute_s) / max(1, len(compute_s))
    return max(compute_s) / mean_s - 1 if len(compute_s) > 1 and mean_s else None
