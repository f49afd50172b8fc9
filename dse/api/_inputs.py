"""Names, paths and objects: what the functions accept for each input."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine.host import HostProfile
    from dse.machine.platforms import Override, Platform
    from dse.model import DlrmModel, TransformerModel
    from dse.search.space import SearchSpace
    from dse.sharding import ShardingPlan
    from dse.workload import Workload
    from dse.workload.dlrm.solver import ShardingSolution

    AnySpace = str | PathLike[str] | Mapping[str, object] | SearchSpace
    AnyWorkload = (
        str | PathLike[str] | Mapping[str, object] | DlrmModel | TransformerModel | Workload
    )
    AnyPlatform = str | PathLike[str] | Mapping[str, object] | Platform
    AnyHostProfile = str | PathLike[str] | HostProfile
    AnyPlan = str | PathLike[str] | ShardingPlan | ShardingSolution


def plan_or_path(plan: AnyPlan) -> ShardingPlan | Path:
    """Returns a plan that is there already, or the path of one.

    Raises:
        ConfigError: It is something else.
    """
    from dse.sharding import ShardingPlan
    from dse.workload.dlrm.solver import ShardingSolution

    if isinstance(plan, ShardingSolution):
        return plan.plan
    if isinstance(plan, ShardingPlan):
        return plan
    if isinstance(plan, str | PathLike):
        return Path(plan)
    raise ConfigError(
        f"a plan is a sharding plan, what `shard` returns, or the path of a file, and not of type "
        f"{type(plan).__name__}"
    )


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
