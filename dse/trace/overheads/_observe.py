"""Host time of each top-level operator, cut at its launches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.trace import Category
from dse.trace.graph import marked_steps
from dse.trace.overheads._calls import blocking_calls, launching_calls

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from dse.trace import Links, RankTrace

    Mask: TypeAlias = NDArray[np.bool_]

_DATA_LOADER = "enumerate(DataLoader)"
_AUTOGRAD = "autograd::engine::evaluate_function: "


@dataclass(frozen=True, slots=True)
class ObservedLaunch:
    """One call that launched work.

    Attributes:
        function: Function of the runtime.
        duration_ns: Its duration; -1 if it waited for the device.
        kernel: Whether it launched a kernel.
    """

    function: str
    duration_ns: int
    kernel: bool


@dataclass(frozen=True, slots=True)
class ObservedOperator:
    """One call of a top-level operator, or launches between two; times without waiting, in ns.

    Attributes:
        name: Name of the operator; empty for launches outside of operators.
        gap_ns: Time since the operator before it on its thread (T1); -1 for the first of the step,
            or if the thread handed over to another one or loaded data meanwhile.
        launches: Its launches in order.
        stretches_ns: Time before, between and after the launches: one more than launches. Empty
            outside of operators.
    """

    name: str
    gap_ns: int
    launches: tuple[ObservedLaunch, ...]
    stretches_ns: tuple[int, ...]

    @property
    def host_ns(self) -> int:
        """Time that the host was busy with it, gap included."""
        calls = sum(max(0, launch.duration_ns) for launch in self.launches)
        return max(0, self.gap_ns) + calls + sum(self.stretches_ns)


def plain_name(name: str) -> str:
    """Returns the name of an operator without autograd's prefix."""
    return name.removeprefix(_AUTOGRAD).removeprefix("torch::autograd::")


def observe(
    trace: RankTrace, links: Links, step: int | str | None = None
) -> tuple[ObservedOperator, ...]:
    """Cuts the host's time in the profiled steps of one trace.

    Args:
        trace: The trace.
        links: Its links.
        step: Number of a profiler step or name of an annotation; all steps if left out, or the
            whole trace if no step is marked.

    Raises:
        ConfigError: The step does not exist.
    """
    tops = np.flatnonzero(
        trace.where(Category.CPU_OP) & (links.operator < 0) & (trace.thread >= 0)
    )
    starts = {
        thread: trace.start_ns[tops[trace.thread[tops] == thread]].tolist()
        for thread in np.unique(trace.thread[tops]).tolist()
    }
    partners = _partners(trace, links)
    blocking, launching = blocking_calls(trace, links), launching_calls(trace, links)
    marks = (blocking, launching, launching_calls(trace, links, (Category.KERNEL,)))
    calls = np.flatnonzero((launching | blocking) & (trace.thread >= 0))
    loading = _loading(trace)
    found: list[ObservedOperator] = []
    steps = marked_steps(trace, step)
    windows = [(part.start_ns, part.end_ns) for part in steps]
    if not windows:
        last = int(trace.end_ns.max(initial=0)) + 1
        windows = [(int(trace.start_ns.min(initial=0)), last)]
    for begin, end in windows:
        inside = tops[(trace.start_ns[tops] >= begin) & (trace.start_ns[tops] < end)]
        called = calls[(trace.start_ns[calls] >= begin) & (trace.start_ns[calls] < end)]
        for thread in np.union1d(trace.thread[inside], trace.thread[called]).tolist():
            others = [starts[other] for other in partners.get(thread, ()) if other in starts]
            walk = _Thread(
                trace,
                called[trace.thread[called] == thread].tolist(),
                marks,
                others,
                [(start, end) for where, start, end in loading if where == thread],
            )
            found += walk.cut(inside[trace.thread[inside] == thread].tolist())
    return tuple(found)


def _partners(trace: RankTrace, links: Links) -> dict[int, set[int]]:
    """Returns for each thread those that it exchanges the backward pass with."""
    backward = np.flatnonzero(links.forward >= 0)
    pairs = zip(
        trace.thread[backward].tolist(),
        trace.thread[links.forward[backward]].tolist(),
        strict=True,
    )
    result: dict[int, set[int]] = {}
    for backward_thread, forward_thread in set(pairs):
        if backward_thread != forward_thread:
            result.setdefault(backward_thread, set()).add(forward_thread)
            result.setdefault(forward_thread, set()).add(backward_thread)
    return result


def _loading(trace: RankTrace) -> list[tuple[int, int, int]]:
    """Returns thread, start and end of each load of a batch."""
    loads = trace.named(lambda name: name.startswith(_DATA_LOADER))
    marks = np.flatnonzero(trace.where(Category.ANNOTATION, Category.CPU_OP) & loads)
    return list(
        zip(
            trace.thread[marks].tolist(),
            trace.start_ns[marks].tolist(),
            (trace.start_ns[marks] + trace.duration_ns[marks]).tolist(),
            strict=True,
        )
    )


class _Thread:
    """The calls of one thread in one step.

    Args:
        trace: The trace.
        calls: Launching and blocking calls of the thread, by start.
        marks: Masks of blocking, launching and kernel-launching events.
        others: Starts of the top-level operators of each thread that this one hands over to.
        loading: Starts and ends of data loading on this thread.
    """

    def __init__(
        self,
        trace: RankTrace,
        calls: list[int],
        marks: tuple[Mask, Mask, Mask],
        others: Sequence[list[int]],
        loading: Sequence[tuple[int, int]],
    ) -> None:
        self._trace = trace
        self._blocking, self._launching, self._kernels = marks
        self._others, self._loading = others, loading
        self._calls = calls
        self._starts = trace.start_ns[calls].tolist()
        self._ends = (trace.start_ns[calls] + trace.duration_ns[calls]).tolist()

    def cut(self, operators: list[int]) -> Iterator[ObservedOperator]:
        """Yields the operators in order, and before each the launches outside of operators."""
        trace, before = self._trace, -1
        for operator in operators:
            start = int(trace.start_ns[operator])
            end = start + int(trace.duration_ns[operator])
            outside, stretches = self._between(before, start)
            waited = before < 0 or self._waited(before, start)
            gap = -1 if waited else sum(stretches)
            if outside:
                yield ObservedOperator("", -1, outside, ())
            launches, stretches = self._between(start, end)
            yield ObservedOperator(plain_name(trace.name_of(operator)), gap, launches, stretches)
            before = max(before, end)
        last = self._starts[-1] if self._starts else -1
        outside, _ = self._between(max(0, before), last + 1)
        if outside:
            yield ObservedOperator("", -1, outside, ())

    def _waited(self, begin: int, end: int) -> bool:
        """Returns whether a gap is a wait for another thread or for data."""
        if any(start < end and stop > begin for start, stop in self._loading):
            return True
        return any(bisect_left(other, end) > bisect_right(other, begin) for other in self._others)

    def _between(self, begin: int, end: int) -> tuple[tuple[ObservedLaunch, ...], tuple[int, ...]]:
        """Cuts a stretch of the thread at its launches and removes blocking calls.

        A nested call, of the driver inside one of the runtime, is part of the outer one.
        """
        trace = self._trace
        launches: list[ObservedLaunch] = []
        stretches = [0]
        now = begin
        for at in range(bisect_left(self._starts, begin), bisect_left(self._starts, end)):
            call = self._calls[at]
            start, stop = self._starts[at], self._ends[at]
            if start < now and stop <= now:
                continue
            stretches[-1] += max(0, start - now)
            now = max(now, stop)
            if self._launching[call]:
                duration = -1 if self._blocking[call] else stop - start
                launches.append(
                    ObservedLaunch(trace.name_of(call), duration, bool(self._kernels[call]))
                )
                stretches.append(0)
        stretches[-1] += max(0, end - now)
        return tuple(launches), tuple(stretches)
