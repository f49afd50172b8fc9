"""Extraction of a host profile from traces."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.machine.host import (
    HostProfile,
    LaunchFigures,
    OperatorFigures,
    ProfileSource,
    SharedFigures,
)
from dse.trace.overheads._observe import observe
from dse.trace.overheads._robust import figure_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dse.trace import Links, RankTrace
    from dse.trace.overheads._observe import ObservedOperator

_GRAPH = "GraphLaunch"
_FIRST_KINETO_NS = 1_500_000_000_000_000_000


def extract_overheads(
    traces: Sequence[RankTrace],
    links: Sequence[Links],
    step: int | str | None = None,
    *,
    name: str = "",
) -> HostProfile:
    """Measures the five host overheads of traces.

    Args:
        traces: Traces of one program or of several.
        links: The links of each.
        step: Number of a profiler step or name of an annotation; all steps if left out, or the
            whole trace if no step is marked.
        name: Name of the profile; by default that of the first file.

    Raises:
        ConfigError: The step does not exist, or nothing was launched on a device: operators then
            compute on the host, and their time is no overhead.
    """
    observed = [
        call
        for trace, linked in zip(traces, links, strict=True)
        for call in observe(trace, linked, step)
    ]
    if not any(call.launches for call in observed):
        where = traces[0].file if traces else "no traces"
        raise ConfigError(
            f"{where}: no call launched device work, so there are no overheads to extract; a GPU "
            "step needs the profiler's CUDA activity"
        )
    shared, operators, launches = _figures(observed)
    return HostProfile(
        name or _name_of(traces[0].file), _source(traces), shared, operators, launches
    )


class _Samples:
    """Times in ns of one operator, or of all."""

    def __init__(self) -> None:
        self.before: list[int] = []
        self.after: list[int] = []
        self.between: list[int] = []
        self.whole: list[int] = []
        self.launches = 0

    def add(self, call: ObservedOperator) -> None:
        if not call.launches:
            self.whole += call.stretches_ns
            return
        self.launches += len(call.launches)
        self.before.append(call.stretches_ns[0])
        self.between += call.stretches_ns[1:-1]
        self.after.append(call.stretches_ns[-1])


def _figures(
    observed: Iterable[ObservedOperator],
) -> tuple[SharedFigures, tuple[OperatorFigures, ...], tuple[LaunchFigures, ...]]:
    everything = _Samples()
    by_operator: defaultdict[str, _Samples] = defaultdict(_Samples)
    by_function: defaultdict[str, list[int]] = defaultdict(list)
    gaps: list[int] = []
    kernels: list[int] = []
    graphs: list[int] = []
    for call in observed:
        if call.gap_ns >= 0:
            gaps.append(call.gap_ns)
        if call.name:
            everything.add(call)
            by_operator[call.name].add(call)
        for launch in call.launches:
            if launch.duration_ns < 0:
                continue
            by_function[launch.function].append(launch.duration_ns)
            if _GRAPH in launch.function:
                graphs.append(launch.duration_ns)
            elif launch.kernel:
                kernels.append(launch.duration_ns)
    shared = SharedFigures(
        between_operators=figure_of(gaps),
        before_launch=figure_of(everything.before),
        after_launch=figure_of(everything.after),
        launch=figure_of(kernels),
        between_launches=figure_of(everything.between),
        graph_launch=figure_of(graphs),
        without_launches=figure_of(everything.whole),
    )
    operators = tuple(_operator(name, by_operator[name]) for name in sorted(by_operator))
    functions = tuple(
        LaunchFigures(function, figure)
        for function in sorted(by_function)
        if (figure := figure_of(by_function[function])) is not None
    )
    return shared, operators, functions


def _operator(name: str, samples: _Samples) -> OperatorFigures:
    calls = len(samples.before)
    return OperatorFigures(
        name,
        calls,
        samples.launches / calls if calls else 0.0,
        before_launch=figure_of(samples.before),
        after_launch=figure_of(samples.after),
        between_launches=figure_of(samples.between),
        without_launches=figure_of(samples.whole),
    )


def _source(traces: Sequence[RankTrace]) -> ProfileSource:
    devices = dict.fromkeys(name for trace in traces for name in trace.device_names)
    # Some versions count from the machine's boot, which gives no date.
    bases = [t.base_time_ns for t in traces if t.base_time_ns >= _FIRST_KINETO_NS]
    as_of = datetime.fromtimestamp(max(bases) // 10**9, UTC).date().isoformat() if bases else ""
    return ProfileSource(
        tuple(dict.fromkeys(trace.file for trace in traces)),
        tuple(sorted(devices)),
        as_of or "unknown",
    )


def _name_of(file: str) -> str:
    """Returns the name of the file, or of its archive, without extensions."""
    outer = file.split(":", 1)[0]
    return outer.replace("\\", "/").rsplit("/", 1)[-1].split(".", 1)[0] or "host"
