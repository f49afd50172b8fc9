"""What each top-level operator of a trace spends on the host, cut at its launches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse._suggest import hint
from dse.errors import ConfigError
from dse.trace import Category
from dse.trace.overheads._blocking import blocking_calls, kernel_calls, launching_calls

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
        gap_ns: Time since the operator before it on its thread (T1); -1 if there is none in the
            step, or if the thread had handed over to another one or loaded data meanwhile.
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
    """Returns the name of an operator without the words that autograd puts before it."""
    return name.removeprefix(_AUTOGRAD).removeprefix("torch::autograd::")


def observe(
    trace: RankTrace, links: Links, step: int | str | None = None
) -> tuple[ObservedOperator, ...]:
    """Cuts the host's time in the profiled steps of one trace.

    Args:
        trace: The trace.
        links: Its links.
        step: Number of a profiler step or name of an annotation; all steps if left out, or the
            whole trace where none is marked.

    Raises:
        ConfigError: There is no such step.
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
    marks = (blocking, launching, kernel_calls(trace, links))
    calls = np.flatnonzero((launching | blocking) & (trace.thread >= 0))
    loading = _loading(trace)
    found: list[ObservedOperator] = []
    for begin, end in _windows(trace, step):
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


def _windows(trace: RankTrace, step: int | str | None) -> tuple[tuple[int, int], ...]:
    if isinstance(step, str):
        return _annotated(trace, step)
    if step is None and not trace.steps:
        last = int(trace.end_ns.max(initial=0)) + 1
        return ((int(trace.start_ns.min(initial=0)), last),)
    chosen = tuple(
        (known.start_ns, known.end_ns)
        for known in trace.steps
        if step is None or known.number == step
    )
    if not chosen:
        known_steps = ", ".join(str(known.number) for known in trace.steps) or "none"
        raise ConfigError(
            f"{trace.file}: no profiler step {step}; steps in this trace: {known_steps}"
        )
    return chosen


def _annotated(trace: RankTrace, name: str) -> tuple[tuple[int, int], ...]:
    """Returns the occurrences of an annotation."""
    marks = np.flatnonzero(trace.where(Category.ANNOTATION) & (trace.thread >= 0)).tolist()
    found = [mark for mark in marks if trace.name_of(mark) == name]
    if not found:
        names = sorted({trace.name_of(mark) for mark in marks})
        raise ConfigError(f"{trace.file}: no annotation `{name}`; {hint(name, names)}")
    return tuple((int(trace.start_ns[mark]), int(trace.end_ns[mark])) for mark in found)


def _partners(trace: RankTrace, links: Links) -> dict[int, set[int]]:
    """Returns for each thread those that it hands the backward pass to, or gets it from."""
    backward = np.flatnonzero(links.forward >= 0)
    pairs = zip(
        trace.thread[backward].tolist(),
        trace.thread[links.forward[backward]].tolist(),
        strict=True,
    )
    result: dict[int, set[int]] = {}
    for one, other in set(pairs):
        if one != other:
            result.setdefault(one, set()).add(other)
            result.setdefault(other, set()).add(one)
    return result


def _loading(trace: RankTrace) -> list[tuple[int, int, int]]:
    """Returns thread, start and end of each time that the program asked for a batch."""
    names = np.array([name.startswith(_DATA_LOADER) for name in trace.names], dtype=np.bool_)
    marks = np.flatnonzero(trace.where(Category.ANNOTATION, Category.CPU_OP) & names[trace.name])
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
        marks: Which events block, which launch work, and which launch kernels.
        others: Starts of the top-level operators of each thread that this one hands over to.
        loading: Starts and ends of the loading of data on this thread.
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
        """Says whether a gap is a wait for another thread or for data."""
        if any(start < end and stop > begin for start, stop in self._loading):
            return True
        return any(bisect_left(other, end) > bisect_right(other, begin) for other in self._others)

    def _between(self, begin: int, end: int) -> tuple[tuple[ObservedLaunch, ...], tuple[int, ...]]:
        """Cuts a stretch of the thread at its launches and takes what blocked out of it.

        A call inside another one, of the driver inside one of the runtime, is part of that one.
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
