"""One job as the options of a command describe it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from dse.cli._options import with_host_profile
from dse.cli.job._options import JOB_OPTIONS
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine import Quote
    from dse.machine.platforms import ChangedFigure, Platform
    from dse.workload import Job, ParameterValue, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One configuration as given by options; fields without a value are empty.

    Attributes:
        model: Model name or file.
        platform: Platform name or file, or a mapping that derives one from another; empty in a
            command that looks for platforms.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks; 0 in such a command.
        plan: Plan file, ``search`` (the default), or ``same`` for a second configuration.
        host_profile: File of host overheads, in place of the platform's.
        price_basis: Which list prices count; those on demand if empty.
        price_provider: Provider to rent from; the cheapest if empty.
        overrides: Changes of the platform's figures, as `PATH=VALUE`.
        parameters: Value of each parameter of the workload that was given.
    """

    model: str = ""
    platform: str | Mapping[str, object] = ""
    world_size: int = 1
    global_batch_size: int = 0
    plan: str = ""
    host_profile: str = ""
    price_basis: str | None = None
    price_provider: str = ""
    overrides: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Request:
        """Returns the request of options, of which those without a value are None or empty."""
        names = {one.name for one in fields(cls)}
        own = {name: values[name] for name in names & values.keys() if values[name] is not None}
        own["overrides"] = tuple(own.get("overrides", ()))
        given = {name: value for name, value in values.items() if name not in names}
        given = {name: value for name, value in given.items() if value not in (None, "")}
        return cls(**own, parameters=given)

    def changed(self, values: Mapping[str, Any]) -> Request:
        """Returns a request in which some options have other values, or none."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return Request.of({**own.pop("parameters"), **own, **values})


@dataclass(frozen=True)
class OpenJob:
    """The job of a request, before its plan is found.

    Attributes:
        workload: What is trained.
        platform: Where.
        parameters: Value of each parameter that was given.
        job: The job.
        host_overheads: Where the host's figures come from, as people read it.
        quote: Price of the whole cluster, if it is known.
        no_price: Why there is none although the platform has offers; else empty.
        cheaper: What is rented over another network for less, where none was asked for; else None.
        changes: Figures of the platform that overrides changed.
    """

    workload: Workload
    platform: Platform
    parameters: dict[str, ParameterValue]
    job: Job
    host_overheads: str
    quote: Quote | None
    no_price: str
    cheaper: Quote | None = None
    changes: tuple[ChangedFigure, ...] = ()

    @property
    def program(self) -> str | None:
        """Name of the training program; None if the kind of workload has none."""
        return self.job.program or None


def open_job(request: Request, beside: Request | None = None) -> OpenJob:
    """Returns the job that options describe.

    Args:
        request: The options.
        beside: Those of a job that it is compared with, whose platform overrides may name.

    Raises:
        UnknownNameError: A name does not exist.
        ConfigError: A file or a value is wrong, an option is not for this kind of workload, or the
            job is impossible.
    """
    from dse.machine.platforms import load_platform, override_platforms
    from dse.workload import load_workload

    workload, platform = load_workload(request.model), load_platform(request.platform)
    changes: tuple[ChangedFigure, ...] = ()
    overrides = with_host_profile(request.overrides, request.host_profile)
    if overrides:
        named = {platform.name: platform}
        if beside is not None:
            other = load_platform(beside.platform)
            named.setdefault(other.name, other)
        changed, figures = override_platforms(named, overrides)
        changes = tuple(figure for figure in figures if figure.platform == platform.name)
        platform = changed[platform.name]
    given = dict(request.parameters)
    _check_options([*given, *(["plan"] if request.plan else [])], workload)
    basis = request.price_basis or "on_demand"
    size, provider = request.world_size, request.price_provider
    parameters = workload.chosen(
        platform,
        {
            "platform": platform.name,
            "world_size": size,
            "global_batch_size": request.global_batch_size,
            **given,
        },
        basis=basis,
        provider=provider,
        named=lambda name: _options([name]),
    )
    job = workload.job(platform, parameters)
    host = f"platform {platform.name}"
    if (profile := platform.host.profile) is not None:
        host = f"measured, profile {profile.name} ({platform.document.host.profile})"
    # Every job of a model has a cluster; that of a captured step is not asked for here.
    network = job.cluster.network.name if job.cluster is not None else ""
    quote = platform.quote(size, network=network, basis=basis, provider=provider)
    reason = ""
    if platform.offers:
        reason = platform.no_price_reason(size, network=network, basis=basis, provider=provider)
    cheaper = None
    if quote is not None and network and "network" not in given:
        anywhere = platform.quote(size, network=None, basis=basis, provider=provider)
        if anywhere is not None and anywhere.usd_per_hour < quote.usd_per_hour:
            cheaper = anywhere
    return OpenJob(workload, platform, parameters, job, host, quote, reason, cheaper, changes)


def _check_options(given: list[str], workload: Workload) -> None:
    """Checks that the options are for this kind of workload."""
    own = {one.name for one in fields(Request)}
    known = [
        name
        for name in JOB_OPTIONS
        if name not in own and name in workload.parameters.model_fields
    ]
    if workload.finds_plans:
        known.append("plan")
    wrong = [name for name in given if name not in known]
    if wrong:
        raise ConfigError(
            f"{_options(wrong)}: not for `{workload.name}`, which is a {workload.title}; its "
            f"options are {_options(known)}"
        )


def _options(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
