"""The part of a trace that a graph covers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse._text.suggest import hint
from dse.errors import ConfigError
from dse.trace._step_graph import TracedStep
from dse.trace.cpu._gloo import gloo_events
from dse.trace.read._rank_trace import CALLS, DEVICE_WORK, Category

if TYPE_CHECKING:
    from dse.trace.read._rank_trace import RankTrace


def traced_step(trace: RankTrace, step: int | str | None) -> TracedStep:
    """Returns the part of a trace that its graph covers.

    Args:
        trace: The trace.
        step: Number of a profiler step; name of an annotation, whose last occurrence counts; None
            for the last profiler step, or the whole trace if no step is marked.

    Raises:
        ConfigError: The step does not exist or has no duration, or the trace is empty.
    """
    marked = marked_steps(trace, step)
    part = marked[-1] if marked else _whole(trace)
    if part.end_ns <= part.start_ns:
        raise ConfigError(f"{trace.file}: {part.cut_by} has no duration; nothing to simulate")
    return part


def marked_steps(trace: RankTrace, step: int | str | None) -> tuple[TracedStep, ...]:
    """Returns the profiler steps or annotations of a trace, in order.

    Args:
        trace: The trace.
        step: Number of a profiler step; name of an annotation; None for all profiler steps.

    Returns:
        All occurrences; empty only if `step` is None and no step is marked.

    Raises:
        ConfigError: The step does not exist.
    """
    if isinstance(step, str):
        return _annotations(trace, step)
    chosen = [known for known in trace.steps if step is None or known.number == step]
    if not chosen and step is not None:
        known_steps = ", ".join(str(known.number) for known in trace.steps) or "none"
        raise ConfigError(
            f"{trace.file}: no profiler step {step}; steps in this trace: {known_steps}"
        )
    return tuple(
        TracedStep(
            trace.rank,
            known.start_ns,
            known.end_ns,
            f"profiler step {known.number}",
            thread=int(trace.thread[known.event]),
        )
        for known in chosen
    )


def _annotations(trace: RankTrace, name: str) -> tuple[TracedStep, ...]:
    marks = trace.where(Category.ANNOTATION) & (trace.thread >= 0)
    found = np.flatnonzero(marks & trace.named(name.__eq__)).tolist()
    if not found:
        names = sorted({trace.name_of(mark) for mark in np.flatnonzero(marks).tolist()})
        raise ConfigError(f"{trace.file}: no annotation `{name}`; {hint(name, names)}")
    return tuple(
        TracedStep(
            trace.rank,
            int(trace.start_ns[mark]),
            int(trace.end_ns[mark]),
            f"annotation {name}",
            thread=int(trace.thread[mark]),
        )
        for mark in found
    )


def _whole(trace: RankTrace) -> TracedStep:
    events = trace.where(Category.CPU_OP, *CALLS, *DEVICE_WORK)
    events[gloo_events(trace)] = True
    if not events.any():
        raise ConfigError(f"{trace.file}: nothing to simulate: no operators, calls or kernels")
    start, end = trace.start_ns[events].min(), trace.end_ns[events].max()
    return TracedStep(trace.rank, int(start), int(end), "whole trace")
