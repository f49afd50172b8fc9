"""One job as the options of a command describe it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine import Quote
    from dse.machine.platforms import ChangedFigure, Platform
    from dse.workload import Job, ParameterValue, Workload


@dataclass(frozen=True, slots=True)
class Request:
    """One configuration as given by options; fields without a value are empty.

    Attributes:
        model: Model name or file.
        platform: Platform name or file, or a mapping that derives one from another.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        link: Interconnect inside a node; the platform's default if empty.
        network: Network between nodes; if empty, that of the instances that prices are asked of,
            else the platform's default.
        precision: Arithmetic; the model's own if empty.
        program: Training program; that of the kind of model if empty.
        plan: Plan file, ``search`` (the default), or ``same`` for a second configuration.
        launch: How the host launches kernels; as the program does if empty.
        train_pipeline: Which work on later batches overlaps with an iteration; as the program does
            if empty.
        replicas: Sharding groups with a copy of all tables each.
        replica_placement: Where the ranks of a group are.
        sync_interval: Iterations from one average of the copies to the next.
        communication_precision: Formats of pooled embeddings on the wire; as the program does if
            empty.
        hot_rows: Whether plans may keep popular rows on every rank; if the program can when None.
        table_data_type: Type of all embedding rows; that of each table if empty.
        compute_kernels: Kernels of the tables, which say where these may be; device memory if
            empty.
        host_profile: File of host overheads; the platform's if empty.
        tensor: Tensor-parallel ranks.
        pipeline: Pipeline stages.
        context: Context-parallel ranks.
        context_exchange: How these share keys and values.
        expert: Ranks that share the experts of a layer.
        expert_tensor: Ranks that share every expert's matrices.
        expert_dispatch: How tokens reach their experts.
        interleave: Virtual pipeline stages of a stage.
        schedule: Order of the passes of a pipeline stage.
        sequence_parallel: Whether tensor-parallel ranks share norms and residuals.
        micro_batch_size: Samples of one pass through a stage.
        recompute: What the backward pass recomputes.
        recompute_modules: Parts of a layer that selective recomputation repeats.
        recompute_layers: Layers of each stage that are recomputed.
        offload: What is kept in host memory.
        offload_layers: Layers of each stage whose activations it holds.
        data_sharding: ZeRO stage.
        sharding_degree: Ranks that share one copy of what is sharded; all replicas if None.
        reshard_after_forward: Whether gathered parameters are freed before the backward pass.
        no_sync: Whether sharded gradients are reduced after the last micro-batch alone.
        gradient_reduction_precision: Type of gradients in their sums; the program's if
            empty.
        price_basis: Which list prices count; those on demand if empty.
        price_provider: Provider to rent from; the cheapest if empty.
        overrides: Changes of the platform's figures, as `PATH=VALUE`.
    """

    model: str
    platform: str | Mapping[str, object]
    world_size: int
    global_batch_size: int
    link: str = ""
    network: str = ""
    precision: str | None = None
    program: str = ""
    plan: str = ""
    launch: str | None = None
    train_pipeline: str | None = None
    replicas: int | None = None
    replica_placement: str | None = None
    sync_interval: int | None = None
    communication_precision: str = ""
    hot_rows: bool | None = None
    table_data_type: str | None = None
    compute_kernels: str = ""
    host_profile: str = ""
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    context_exchange: str | None = None
    expert: int | None = None
    expert_tensor: int | None = None
    expert_dispatch: str | None = None
    interleave: int | None = None
    schedule: str | None = None
    sequence_parallel: bool | None = None
    micro_batch_size: int | None = None
    recompute: str | None = None
    recompute_modules: str = ""
    recompute_layers: int | None = None
    offload: str | None = None
    offload_layers: int | None = None
    data_sharding: str | None = None
    sharding_degree: int | None = None
    reshard_after_forward: bool | None = None
    no_sync: bool | None = None
    gradient_reduction_precision: str | None = None
    price_basis: str | None = None
    price_provider: str = ""
    overrides: tuple[str, ...] = ()

    def given(self) -> dict[str, str | int | bool]:
        """Returns the values of the options that were given, without those of every model."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if name not in _OF_EVERY_MODEL and value not in (None, "")
        }


#: Fields of a request that every workload has.
_OF_EVERY_MODEL = (
    "model",
    "platform",
    "world_size",
    "global_batch_size",
    "host_profile",
    "price_basis",
    "price_provider",
    "overrides",
)


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
        changes: Figures of the platform that overrides changed.
    """

    workload: Workload
    platform: Platform
    parameters: dict[str, ParameterValue]
    job: Job
    host_overheads: str
    quote: Quote | None
    no_price: str
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
    from dse.machine.host import load_host_profile
    from dse.machine.platforms import load_platform, override_platforms
    from dse.workload import load_workload

    workload, platform = load_workload(request.model), load_platform(request.platform)
    changes: tuple[ChangedFigure, ...] = ()
    if request.overrides:
        named = {platform.name: platform}
        if beside is not None:
            other = load_platform(beside.platform)
            named.setdefault(other.name, other)
        changed, figures = override_platforms(named, request.overrides)
        changes = tuple(figure for figure in figures if figure.platform == platform.name)
        platform = changed[platform.name]
    given = request.given()
    _check_options(given, workload)
    given.pop("plan", None)
    basis = request.price_basis or "on_demand"
    if not request.network and (request.price_basis or request.price_provider):
        given["network"] = platform.rented_network(
            request.world_size, basis=basis, provider=request.price_provider
        )
    if program := workload.program_name(given):
        given["program"] = program
    parameters: dict[str, ParameterValue] = {
        "platform": platform.name,
        "world_size": request.world_size,
        "global_batch_size": request.global_batch_size,
        **given,
    }
    _check_values(parameters, workload)
    profile = load_host_profile(Path(request.host_profile)) if request.host_profile else None
    job = workload.job(platform, parameters, host_profile=profile)
    host = f"platform {platform.name}"
    if profile is not None:
        host = f"measured, profile {profile.name} ({request.host_profile})"
    # Every job of a model has a cluster; that of a captured step is not asked for here.
    network = job.cluster.network.name if job.cluster is not None else ""
    size, provider = request.world_size, request.price_provider
    quote = platform.quote(size, network=network, basis=basis, provider=provider)
    reason = ""
    if platform.offers:
        reason = platform.no_price_reason(size, network=network, basis=basis, provider=provider)
    return OpenJob(workload, platform, parameters, job, host, quote, reason, changes)


def _check_options(given: dict[str, str | int | bool], workload: Workload) -> None:
    """Checks that the options are for this kind of workload."""
    known = [
        field.name
        for field in fields(Request)
        if field.name not in _OF_EVERY_MODEL and field.name in workload.parameters.model_fields
    ]
    if workload.finds_plans:
        known.append("plan")
    wrong = [name for name in given if name not in known]
    if wrong:
        raise ConfigError(
            f"{_options(wrong)}: not for `{workload.name}`, which is a {workload.title}; its "
            f"options are {_options(known)}"
        )


def _check_values(parameters: dict[str, ParameterValue], workload: Workload) -> None:
    """Checks each value like those of a search space, and names its option."""
    problems = [
        f"{_options([name])}: {wrong}" for name, wrong in workload.wrong_values(parameters)
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _options(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
