"""Check of a host profile against the host's busy time in traces."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.machine.host import OperatorFigures
from dse.trace.overheads._observe import observe
from dse.trace.overheads._robust import far_out_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine.host import Figure, HostProfile
    from dse.trace import Links, RankTrace
    from dse.trace.overheads._observe import ObservedOperator

#: An operator that is not in the profile.
_UNKNOWN = OperatorFigures("", 0, 0.0)


@dataclass(frozen=True, slots=True)
class HostCheck:
    """Busy time of the host over all threads, without waiting.

    Attributes:
        file: The trace.
        rank: Its rank.
        measured_s: Measured time, in seconds.
        predicted_s: Time predicted by the profile, in seconds.
        far_out_s: Part of the measured time due to outliers: how much longer than usual the
            loading of code, full queues and the like took, in seconds.
    """

    file: str
    rank: int
    measured_s: float
    predicted_s: float
    far_out_s: float

    @property
    def error(self) -> float:
        """Predicted over measured time, less one."""
        return self.predicted_s / self.measured_s - 1 if self.measured_s else 0.0

    @property
    def usual_error(self) -> float:
        """Predicted over measured time without outliers, less one."""
        usual_s = self.measured_s - self.far_out_s
        return self.predicted_s / usual_s - 1 if usual_s else 0.0


def check_host_time(
    traces: Sequence[RankTrace],
    links: Sequence[Links],
    profile: HostProfile,
    step: int | str | None = None,
) -> tuple[HostCheck, ...]:
    """Predicts the host's busy time of traces from a profile.

    Operators and their launches come from the trace, their times from the profile: figures of the
    operator, else those over all operators. The measured time excludes only waiting and includes
    outliers.

    Args:
        traces: The traces.
        links: The links of each.
        profile: The profile, of these traces or of others.
        step: As for :func:`extract_overheads`.

    Returns:
        One entry per trace.
    """
    walk = _Walk(profile)
    result = []
    for trace, linked in zip(traces, links, strict=True):
        calls = observe(trace, linked, step)
        measured_s = 1e-9 * sum(call.host_ns for call in calls)
        predicted_s = sum(walk.call_s(call) for call in calls)
        result.append(
            HostCheck(trace.file, trace.rank, measured_s, predicted_s, _far_out_s(calls))
        )
    return tuple(result)


def _far_out_s(calls: Sequence[ObservedOperator]) -> float:
    """Returns the excess time of outliers among the samples of each figure, in seconds."""
    samples: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for call in calls:
        if call.gap_ns >= 0:
            samples["gap", ""].append(call.gap_ns)
        for launch in call.launches:
            if launch.duration_ns >= 0:
                samples["launch", launch.function].append(launch.duration_ns)
        last = len(call.stretches_ns) - 1
        for at, stretch in enumerate(call.stretches_ns):
            part = "whole" if not last else {0: "before", last: "after"}.get(at, "between")
            samples[part, call.name].append(stretch)
    return 1e-9 * sum(map(far_out_ns, samples.values()))


class _Walk:
    def __init__(self, profile: HostProfile) -> None:
        self._shared = profile.shared
        self._operators = {known.name: known for known in profile.operators}
        self._launches = {known.function: known.duration for known in profile.launches}

    def call_s(self, call: ObservedOperator) -> float:
        """Returns T1 + T2 + launches with T5 between them + T3, as far as they apply."""
        shared, own = self._shared, self._operators.get(call.name, _UNKNOWN)
        seconds = _mean(shared.between_operators) if call.gap_ns >= 0 else 0.0
        for launch in call.launches:
            if launch.duration_ns >= 0:
                seconds += _mean(self._launches.get(launch.function), shared.launch)
        if not call.name:
            return seconds
        if not call.launches:
            return seconds + _mean(own.without_launches, shared.without_launches)
        seconds += _mean(own.before_launch, shared.before_launch)
        seconds += _mean(own.after_launch, shared.after_launch)
        between = _mean(own.between_launches, shared.between_launches)
        return seconds + (len(call.launches) - 1) * between


def _mean(*figures: Figure | None) -> float:
    return next((figure.mean_s for figure in figures if figure is not None), 0.0)
