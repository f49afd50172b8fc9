"""Names, paths and objects: what the functions accept for each input."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dse._io.reading import is_folder
from dse._text.suggest import hint
from dse.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine.host import HostProfile
    from dse.machine.platforms import Override, Platform
    from dse.model import DlrmModel, TransformerModel
    from dse.search.space import SearchSpace, TraceReference
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

Choice = TypeVar("Choice", bound=StrEnum)

#: Endings of files of traces that no model file has.
_TRACE_ENDINGS = (".json.gz", ".tar.gz", ".tgz", ".trace.json")


def open_workload(
    source: AnyWorkload, platform: AnyPlatform | None, parameters: Mapping[str, object]
) -> tuple[Workload, Platform | None, str]:
    """Returns a workload, its platform if it is known, and what parameters call that.

    Args:
        source: What is trained. A folder or packed file of Kineto traces, or a mapping like the
            `workload` of a search space over a trace, is a captured step.
        platform: Where it is trained; None, or ``same``, for the machine of a captured step.
        parameters: Those of the workload; a captured step reads the files of steps among its
            optimizations.

    Raises:
        UnknownNameError: A name does not exist.
        ConfigError: A file is wrong, or a workload that brings no machine has no platform.
    """
    from dse.machine.platforms import load_platform
    from dse.workload import load_workload

    trace = _trace(source)
    if trace is not None:
        return _open_trace(trace, platform, parameters)
    workload = load_workload(source)
    if platform is None:
        if workload.brings_machine:
            return workload, None, ""
        raise ConfigError(f"a {workload.title} needs a platform; name one")
    found = load_platform(platform)
    return workload, found, found.name


def _trace(source: AnyWorkload) -> TraceReference | None:
    """Returns which traces are meant; None for any other workload."""
    from dse.config import check_data
    from dse.search.space import TraceReference, TraceWorkloadBlock

    if isinstance(source, Mapping):
        if "trace" not in source:
            return None
        block = check_data(dict(source), TraceWorkloadBlock, file="workload")
        return block.to_reference("", "trace")
    if isinstance(source, str | PathLike):
        path = fspath(source)
        if is_folder(Path(path)) or path.endswith(_TRACE_ENDINGS):
            return TraceReference(path)
    return None


def _open_trace(
    trace: TraceReference, platform: AnyPlatform | None, parameters: Mapping[str, object]
) -> tuple[Workload, Platform | None, str]:
    from dse.machine.platforms import load_platform
    from dse.trace import read_kineto
    from dse.trace.whatif import captured_step, read_changes
    from dse.workload.recorded import (
        SAME_PLATFORM,
        RecordedWorkload,
        is_step_file,
        optimizations,
    )

    name = SAME_PLATFORM if platform is None else _platform_name(platform)
    moved = None if name == SAME_PLATFORM else load_platform(platform or "")
    given = {key: parameters[key] for key in ("optimizations",) if key in parameters}
    texts = optimizations(RecordedWorkload.single_values(given))
    captured = captured_step(read_kineto(trace.path), step=trace.step, platform=trace.platform)
    workload = RecordedWorkload(
        trace.name,
        captured,
        trace.samples_per_step,
        files={text: read_changes(text) for text in texts if is_step_file(text)},
        derived_platforms={name: platform} if isinstance(platform, Mapping) else {},
    )
    return workload, moved or captured.machine.platform, name


def _platform_name(platform: AnyPlatform) -> str:
    """Returns what a change of a captured step calls its new platform.

    Raises:
        UnknownNameError: A name does not exist.
        ConfigError: It is an object that no file describes.
    """
    from dse.machine.platforms import list_platforms, load_platform

    if isinstance(platform, str | PathLike):
        return fspath(platform)
    found = load_platform(platform)
    if isinstance(platform, Mapping):
        return found.name
    # Changes read their platform again.
    if found.name in list_platforms() and load_platform(found.name).document == found.document:
        return found.name
    raise ConfigError(
        f"platform {found.name}: a captured step can move to a built-in platform, a file, or a "
        "mapping of what differs (`from`); give one of these"
    )


def one_of(kind: type[Choice], argument: str, name: str) -> Choice:
    """Returns the choice of a name.

    Raises:
        UnknownNameError: There is none of this name.
    """
    known = [choice.value for choice in kind]
    if name not in known:
        raise UnknownNameError(f"{argument}: unknown name `{name}`; {hint(str(name), known)}")
    return kind(name)


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
        ConfigError: An override is no text, or the file of the profile is missing or wrong.
    """
    from dse.machine.platforms import Override

    for change in overrides:
        if not isinstance(change, str | Override):
            raise ConfigError(
                "an override is a text such as 'price=+20%', and not of type "
                f"{type(change).__name__}"
            )
    if host_profile is None:
        return tuple(overrides)
    from dse.machine.platforms import host_profile_override

    return *overrides, host_profile_override(host_profile)
