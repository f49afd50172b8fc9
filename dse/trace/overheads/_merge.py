"""Merging of host profiles, for models without a profile."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.machine.host import (
    Figure,
    HostProfile,
    LaunchFigures,
    OperatorFigures,
    ProfileSource,
    SharedFigures,
    spread_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def merge_profiles(profiles: Sequence[HostProfile]) -> HostProfile:
    """Returns the profile of all occurrences together: means are weighted by counts.

    The spread combines that within each profile and that of their means. A profile merged with
    itself keeps its figures and doubles its counts.

    Args:
        profiles: At least one.

    Raises:
        ConfigError: No profile was given.
    """
    if not profiles:
        raise ConfigError("no host profile to merge; give at least one")
    sources = [profile.source for profile in profiles]
    dates = [source.as_of for source in sources if source.as_of != "unknown"]
    merged_source = ProfileSource(
        _unique(file for source in sources for file in source.files),
        _unique(device for source in sources for device in source.devices),
        max(dates, default="unknown"),
    )
    shared = SharedFigures(
        **{
            field.name: _merged(getattr(profile.shared, field.name) for profile in profiles)
            for field in fields(SharedFigures)
        }
    )
    operators: dict[str, list[OperatorFigures]] = {}
    functions: dict[str, list[Figure]] = {}
    for profile in profiles:
        for operator in profile.operators:
            operators.setdefault(operator.name, []).append(operator)
        for launch in profile.launches:
            functions.setdefault(launch.function, []).append(launch.duration)
    return HostProfile(
        "+".join(_unique(profile.name for profile in profiles)),
        merged_source,
        shared,
        tuple(_operator(key, operators[key]) for key in sorted(operators)),
        tuple(
            LaunchFigures(key, figure)
            for key in sorted(functions)
            if (figure := _merged(functions[key])) is not None
        ),
    )


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def _operator(name: str, parts: Sequence[OperatorFigures]) -> OperatorFigures:
    calls = sum(part.calls for part in parts)
    launches = sum(part.calls * part.launches for part in parts)
    return OperatorFigures(
        name,
        calls,
        launches / calls if calls else 0.0,
        before_launch=_merged(part.before_launch for part in parts),
        after_launch=_merged(part.after_launch for part in parts),
        between_launches=_merged(part.between_launches for part in parts),
        without_launches=_merged(part.without_launches for part in parts),
    )


def _merged(figures: Iterable[Figure | None]) -> Figure | None:
    known = [figure for figure in figures if figure is not None]
    count = sum(figure.count for figure in known)
    if not count:
        return None
    mean = sum(figure.count * figure.mean_s for figure in known) / count
    within = sum(figure.count * figure.variance_s2 for figure in known) / count
    among = sum(figure.count * (figure.mean_s - mean) ** 2 for figure in known) / count
    return Figure(mean, spread_of(mean, within + among), count)
