"""Names, paths and objects: what the functions accept for each input."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from dse.machine.host import HostProfile
    from dse.machine.platforms import Override, Platform
    from dse.model import DlrmModel, TransformerModel
    from dse.search.space import SearchSpace
    from dse.sharding import ShardingPlan
    from dse.workload import Workload

    AnySpace = str | PathLike[str] | Mapping[str, object] | SearchSpace
    AnyWorkload = str | PathLike[str] | DlrmModel | TransformerModel | Workload
    AnyPlatform = str | PathLike[str] | Mapping[str, object] | Platform
    AnyHostProfile = str | PathLike[str] | HostProfile
    AnyPlan = str | PathLike[str] | ShardingPlan


def overrides_with(
    overrides: Sequence[str], host_profile: AnyHostProfile | None
) -> tuple[str | Override, ...]:
    """Returns overrides of platforms, with the host profile if there is one.

    Raises:
        ConfigError: The file of the profile is missing or wrong.
    """
    if host_profile is None:
        return tuple(overrides)
    from dse.machine.platforms import host_profile_override

    return *overrides, host_profile_override(host_profile)
