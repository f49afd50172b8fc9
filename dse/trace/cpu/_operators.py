"""CPU operators that compute, and threads cut by their innermost operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.trace._step_graph import TaskRole
from dse.trace.cpu._gloo import c10d_operators, gloo_events, inside_gloo
from dse.trace.read._rank_trace import CALLS, Category

if TYPE_CHECKING:
    from dse.trace._step_graph import TracedStep
    from dse.trace.links._link import Links
    from dse.trace.read._rank_trace import Longs, RankTrace

#: An operator with nested operators computes if at least this share of its time is its own.
_OWN_SHARE = 0.5
#: Operators that last until a collective has ended.
WAIT_OPERATORS = ("_c10d_functional::wait_tensor", "c10d_functional::wait_tensor")

#: Start, end and event of a stretch of a thread; the event is -1 between operators.
Stretch = tuple[int, int, int]


def computing(trace: RankTrace, links: Links) -> np.ndarray:
    """Returns which events are operators that compute rather than only call others.

    An operator without nested operators computes. One with some may, too: `aten::addmm` copies its
    bias with another operator and multiplies itself, while `aten::linear` only calls. It computes
    if half of its time is its own: by the median over all operators of the trace with the same
    name and the same nested names, so that the answer is the same in every step and one preempted
    operator does not matter. Issuing a collective or waiting for one is not computing.

    Args:
        trace: The trace.
        links: Its links.

    Returns:
        Shape `(events,)`.
    """
    operators = trace.where(Category.CPU_OP) & (trace.thread >= 0)
    operators[gloo_events(trace)] = False
    inner = np.flatnonzero(operators & (links.operator >= 0))
    outer = links.operator[inner]
    own_ns = trace.duration_ns.copy()
    np.subtract.at(own_ns, outer, trace.duration_ns[inner])

    width = len(trace.names)
    pairs = np.unique(outer * width + trace.name[inner])
    calls, first = np.unique(pairs // width, return_index=True)
    inside = np.split(pairs % width, first[1:])
    kinds: dict[tuple[int, ...], list[int]] = {}
    for call, names in zip(calls.tolist(), inside, strict=False):
        kinds.setdefault((int(trace.name[call]), *names.tolist()), []).append(call)

    result = operators.copy()
    for alike in kinds.values():
        share = own_ns[alike] / np.maximum(trace.duration_ns[alike], 1)
        result[alike] = np.median(share) >= _OWN_SHARE
    issuing = c10d_operators(trace)
    result[issuing] = False
    above = links.operator[issuing]
    result[above[above >= 0]] = False
    return np.asarray(result & ~trace.named(WAIT_OPERATORS.__contains__))


def cpu_stretches(
    trace: RankTrace,
    links: Links,
    step: TracedStep,
    inside: np.ndarray,
    outer: dict[int, int],
) -> dict[int, list[tuple[Stretch, TaskRole]]]:
    """Cuts each thread by its innermost operators and its calls.

    Args:
        trace: The trace.
        links: Its links.
        step: The step covered.
        inside: Which events lie in the step; shape `(events,)`.
        outer: Extended by nested call → the call around it.

    Returns:
        Thread → its stretches with their roles, one after the other from the step's start.
    """
    chosen = np.flatnonzero(inside & trace.where(Category.CPU_OP, *CALLS))
    chosen = chosen[~np.isin(chosen, gloo_events(trace)) & ~inside_gloo(trace, chosen)]
    computes = computing(trace, links)
    issued = _first_collectives(trace, links, step)
    result = {}
    for thread in np.unique(trace.thread[chosen]).tolist():
        stretches = _innermost(trace, chosen[trace.thread[chosen] == thread], step, outer)
        issuing = _issuing(stretches, issued)
        result[thread] = [
            (part, _role(trace, part[2], computes, at in issuing))
            for at, part in enumerate(stretches)
        ]
    return result


def _role(trace: RankTrace, event: int, computes: np.ndarray, issues: bool) -> TaskRole:
    if event < 0:
        return TaskRole.HOST_GAP
    if issues or trace.category[event] != Category.CPU_OP:
        return TaskRole.CALL
    return TaskRole.KERNEL if computes[event] else TaskRole.HOST_WORK


def _first_collectives(trace: RankTrace, links: Links, step: TracedStep) -> dict[int, int]:
    """Returns c10d operator → start of its first collective, in ns after the step's start."""
    result: dict[int, int] = {}
    for mark in gloo_events(trace).tolist():
        by = int(links.launch[mark])
        if by >= 0:
            result.setdefault(by, int(trace.start_ns[mark]) - step.start_ns)
    return result


def _issuing(stretches: list[Stretch], issued: dict[int, int]) -> set[int]:
    """Returns the stretch of each c10d operator in which it handed its work to gloo."""
    last: dict[int, int] = {}
    for at, (start, _, event) in enumerate(stretches):
        if event in issued and (event not in last or start <= issued[event]):
            last[event] = at
    return set(last.values())


def _innermost(
    trace: RankTrace, events: Longs, step: TracedStep, outer: dict[int, int]
) -> list[Stretch]:
    """Returns the innermost event over time; an event that outlasts its parent is cut off."""
    length = step.end_ns - step.start_ns
    starts = (trace.start_ns[events] - step.start_ns).clip(0, length).tolist()
    ends = (trace.end_ns[events] - step.start_ns).clip(0, length).tolist()
    is_call = (trace.category[events] != Category.CPU_OP).tolist()
    row: list[Stretch] = []
    open_: list[tuple[int, int, bool]] = []
    for start, end, event, call in zip(starts, ends, events.tolist(), is_call, strict=True):
        while open_ and open_[-1][0] <= start:
            _put(row, *open_.pop()[:2])
        if open_ and open_[-1][2]:
            if call:
                outer[event] = open_[-1][1]
            continue
        _put(row, start, open_[-1][1] if open_ else -1)
        open_.append((min(end, open_[-1][0]) if open_ else end, event, call))
    while open_:
        _put(row, *open_.pop()[:2])
    return row


def _put(row: list[Stretch], until: int, event: int) -> None:
    """Appends a stretch from the end of the row on, or lengthens the last one."""
    now = row[-1][1] if row else 0
    if until <= now:
        return
    if row and row[-1][2] == event:
        row[-1] = (row[-1][0], until, event)
    else:
        row.append((now, until, event))
