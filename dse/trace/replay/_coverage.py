"""How much of a trace is replayed, and what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.trace.replay._types import Coverage, SkippedOperators

if TYPE_CHECKING:
    from dse.trace import ExecutionTrace
    from dse.trace.replay._original import UnitTimes
    from dse.trace.replay._plan import Plan

#: What belongs to no operator.
BETWEEN = "work of the device outside of operators"


def coverage_of(plan: Plan, times: UnitTimes | None) -> Coverage:
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
    et: ExecutionTrace, plan: Plan, times: UnitTimes | None
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
        sorted(found, key=lambda one: (-(one.time_s or 0), -(one.device_time_s or 0), -one.count))
    )
