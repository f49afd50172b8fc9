"""Which part of a trace is replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse._suggest import hint
from dse.errors import ConfigError
from dse.trace._events import CALLS, DEVICE_WORK, Category
from dse.trace._gloo import gloo_events
from dse.trace._replay_types import TracedStep

if TYPE_CHECKING:
    from dse.trace._events import RankTrace


def traced_step(trace: RankTrace, step: int | str | None) -> TracedStep:
    """Returns the part of a trace to replay.

    Args:
        trace: The trace.
        step: Number of a profiler step; name of an annotation, of which the last occurrence
            counts; None for the last profiler step, or the whole trace if there is none.

    Raises:
        ConfigError: There is no such step, it lasts no time, or the trace is empty.
    """
    part = _part(trace, step)
    if part.end_ns <= part.start_ns:
        raise ConfigError(f"{trace.file}: {part.cut_by} lasts no time; nothing to replay")
    return part


def _part(trace: RankTrace, step: int | str | None) -> TracedStep:
    if isinstance(step, str):
        return _annotation(trace, step)
    if step is None and not trace.steps:
        return _whole(trace)
    chosen = [known for known in trace.steps if step is None or known.number == step]
    if not chosen:
        known_steps = ", ".join(str(known.number) for known in trace.steps) or "none"
        raise ConfigError(
            f"{trace.file}: no profiler step {step}; steps in this trace: {known_steps}"
        )
    last = chosen[-1]
    return TracedStep(
        trace.rank,
        last.start_ns,
        last.end_ns,
        f"profiler step {last.number}",
        thread=int(trace.thread[last.event]),
    )


def _annotation(trace: RankTrace, name: str) -> TracedStep:
    marks = np.flatnonzero(trace.where(Category.ANNOTATION) & (trace.thread >= 0))
    named = [mark for mark in marks.tolist() if trace.name_of(mark) == name]
    if not named:
        names = sorted({trace.name_of(mark) for mark in marks.tolist()})
        raise ConfigError(f"{trace.file}: no annotation `{name}`; {hint(name, names)}")
    last = named[-1]
    return TracedStep(
        trace.rank,
        int(trace.start_ns[last]),
        int(trace.end_ns[last]),
        f"annotation {name}",
        thread=int(trace.thread[last]),
    )


def _whole(trace: RankTrace) -> TracedStep:
    events = trace.where(Category.CPU_OP, *CALLS, *DEVICE_WORK)
    events[gloo_events(trace)] = True
    if not events.any():
        raise ConfigError(f"{trace.file}: nothing to replay: no operators, calls or kernels")
    start, end = trace.start_ns[events].min(), trace.end_ns[events].max()
    return TracedStep(trace.rank, int(start), int(end), "whole trace")
