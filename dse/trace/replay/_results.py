"""Results of a replay: times and coverage of each rank."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.trace import ExecutionTrace
    from dse.trace.replay.plan._plan import ReplayPlan
    from dse.trace.replay.read._original import UnitTimes


@dataclass(frozen=True, slots=True)
class OriginalTime:
    """How long the replayed range took when it was recorded; None for what is not known.

    Attributes:
        steps: Profiler steps in the range, as the execution trace marks them.
        profiled_s: Time of the range in the Kineto trace, with what the profiler costs.
        unprofiled_s: Time of as many steps without the profiler, from the capture's record.
        operators_s: Host time in the operators of the range, which a replay can stand for.
        source: Where `profiled_s` comes from.
    """

    steps: int | None = None
    profiled_s: float | None = None
    unprofiled_s: float | None = None
    operators_s: float | None = None
    source: str = ""

    @property
    def reference_s(self) -> float | None:
        """What a replay is compared with: without the profiler if known, else with it."""
        return self.profiled_s if self.unprofiled_s is None else self.unprofiled_s


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what was to be replayed is replayed.

    What the options leave out counts nowhere. Shares of time are None without a Kineto trace, or
    without work of a device.

    Attributes:
        operators: Operators of the range, each with all that it calls as one.
        replayed: Those that are replayed.
        time_share: Replayed share of the operators' time on the host.
        device_time_share: Replayed share of the time of the device's work.
    """

    operators: int
    replayed: int
    time_share: float | None = None
    device_time_share: float | None = None

    @property
    def operator_share(self) -> float:
        """Replayed share of the operators; 1 if there are none."""
        return self.replayed / self.operators if self.operators else 1.0


@dataclass(frozen=True, slots=True)
class SkippedOperators:
    """Operators of one name that are not replayed for one reason.

    Attributes:
        name: Name in the trace.
        reason: Why.
        count: How many.
        time_s: Their host time when they were recorded; None without a Kineto trace.
        device_time_s: Time of the work that they launched, in the same way.
        by_option: Whether the options leave them out.
    """

    name: str
    reason: str
    count: int
    time_s: float | None = None
    device_time_s: float | None = None
    by_option: bool = False


@dataclass(frozen=True, slots=True)
class RankResult:
    """The replay of one rank.

    Attributes:
        rank: Global rank.
        file: Execution trace as named by the user.
        schema: Version of its format.
        nodes: Nodes of the trace.
        iteration_s: Time of each timed repetition of the range, in seconds.
        cpu_s: Processor time of each, over all threads of the process.
        original: The recorded times.
        coverage: How much is replayed.
        skipped: What is not, by reason and name, longest first.
        collectives: Number of collectives that were run, or mocked.
        memory_bytes: Most that tensors took at any time.
        batch: Recorded batch and that of the replay, if they differ.
        notes: Doubts about the result.
    """

    rank: int
    file: str
    schema: str
    nodes: int
    iteration_s: tuple[float, ...]
    cpu_s: tuple[float, ...]
    original: OriginalTime
    coverage: Coverage
    skipped: tuple[SkippedOperators, ...]
    collectives: int
    memory_bytes: int
    batch: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()

    @property
    def replayed_s(self) -> float:
        """Median time of the range, in seconds."""
        return median(self.iteration_s)

    @property
    def error(self) -> float | None:
        """Replayed over original time, less 1; None if that is not known, or of another batch."""
        reference_s = None if self.batch else self.original.reference_s
        return self.replayed_s / reference_s - 1 if reference_s else None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The replay of some ranks.

    Attributes:
        device: `cpu` or `cuda`.
        device_name: Its name.
        torch_version: Version of torch in the replay.
        collectives: How they were handled: `run`, `mock` or `skip`; `none` without any.
        ranks: One for each trace, in order of the ranks.
        notes: Notes on all ranks.
    """

    device: str
    device_name: str
    torch_version: str
    collectives: str
    ranks: tuple[RankResult, ...]
    notes: tuple[str, ...] = ()


#: What belongs to no operator.
BETWEEN = "work of the device outside of operators"


def coverage_of(plan: ReplayPlan, times: UnitTimes | None) -> Coverage:
    """Returns the shares of operators and of their time that are replayed."""
    wanted = [at for at in range(len(plan.units)) if at not in plan.by_option]
    replayed = [at for at in wanted if at not in plan.reasons]
    time_share = device_share = None
    if times is not None:
        host_s = sum(times.host_s[at] for at in wanted)
        if host_s > 0:
            time_share = sum(times.host_s[at] for at in replayed) / host_s
        device_s = sum(times.device_s[at] for at in wanted)
        if not plan.by_option:
            device_s += sum(seconds for _, seconds in times.between_s)
        if device_s > 0:
            device_share = sum(times.device_s[at] for at in replayed) / device_s
    return Coverage(len(wanted), len(replayed), time_share, device_share)


def skipped_of(
    et: ExecutionTrace, plan: ReplayPlan, times: UnitTimes | None
) -> tuple[SkippedOperators, ...]:
    """Returns what is not replayed by name and reason, longest and then most frequent first."""
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for at, reason in plan.reasons.items():
        key = et.name_of(plan.units[at].node), reason, at in plan.by_option
        groups.setdefault(key, []).append(at)
    found = [
        SkippedOperators(
            name=name,
            reason=reason,
            count=len(places),
            time_s=None if times is None else sum(times.host_s[at] for at in places),
            device_time_s=None if times is None else sum(times.device_s[at] for at in places),
            by_option=by_option,
        )
        for (name, reason, by_option), places in groups.items()
    ]
    if times is not None:
        found += [
            SkippedOperators(name, BETWEEN, 1, time_s=0.0, device_time_s=seconds)
            for name, seconds in times.between_s
        ]
    return tuple(
        sorted(
            found,
            key=lambda group: (-(group.time_s or 0), -(group.device_time_s or 0), -group.count),
        )
    )
