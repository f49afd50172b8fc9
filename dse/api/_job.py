"""Jobs by name: predicted, explained, sharded and ranked."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse._text.suggest import hint
from dse.api._inputs import open_workload, overrides_with, plan_or_path
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dse.api._inputs import AnyHostProfile, AnyPlan, AnyPlatform, AnyWorkload
    from dse.api._ranking import Ranking
    from dse.explanation import Explanation
    from dse.machine.platforms import Platform
    from dse.sharding import TableConstraints
    from dse.workload import AttributedGraph, MemoryAccount, ParameterValue, Prediction, Workload
    from dse.workload import Job as WorkloadJob
    from dse.workload.dlrm.solver import ShardingSolution


class Job:
    """A workload on a machine under one choice of parameters.

    Args:
        workload: Built-in name, path of a model file, or a model or workload; or a captured step:
            a folder or packed file of Kineto traces, or a mapping such as
            ``{"trace": "run", "samples_per_step": 128}``.
        platform: Built-in name, path of a platform file, a platform, or a mapping that derives
            one from another, such as ``{"from": "h100_sxm", "price": "2.10 USD/GPU/h"}``. A
            captured step has its own if this is left out.
        world_size: Number of ranks; that of a captured step if it is left out.
        global_batch_size: Samples of one iteration over all ranks; those of the model's own recipe
            if left out.
        program: Name of the training program; that of the kind of workload if it is left out, such
            as ``torchrec`` for recommendation models. No program reaches ``ideal``, a bound.
        link: Interconnect inside a node; the platform's default if empty.
        network: Network between nodes; if empty, the platform's default where it can be rented,
            or nothing can, else that of the cheapest instances.
        precision: Arithmetic of the dense part; the model's own if empty.
        price_provider: Provider to rent from; the cheapest if empty.
        price_basis: Which list prices count, such as ``capacity_block``; those on demand if empty.
        host_profile: Host overheads measured from traces, or the path of a file of them, in place
            of the platform's.
        parameters: Further parameters of this kind of workload, by the names of search spaces:
            ``tensor=8, pipeline=4`` for a transformer, ``launch="cuda_graphs"`` for a
            recommendation model, ``optimizations=["network=2x"]`` for a captured step.

    Attributes:
        workload: What is trained.
        platform: Where; None if what a step was captured on is not known.
        parameters: Value of each parameter that was given, and of those that follow from it.

    Raises:
        UnknownNameError: A name does not exist.
        ConfigError: A file is wrong, or the job is impossible.

    Example:
        >>> job = Job("dlrm_tiny", "h100_sxm", world_size=8, global_batch_size=65536)
        >>> job.predict().feasible
        True
    """

    def __init__(
        self,
        workload: AnyWorkload,
        platform: AnyPlatform | None = None,
        *,
        world_size: int | None = None,
        global_batch_size: int | None = None,
        program: str = "",
        link: str = "",
        network: str = "",
        precision: str = "",
        price_provider: str = "",
        price_basis: str = "",
        host_profile: AnyHostProfile | None = None,
        **parameters: ParameterValue,
    ) -> None:
        from dse.machine.platforms import override_platform

        if isinstance(workload, Job):
            raise ConfigError(
                f"{workload} is complete; call its own predict(), shard() or explain()"
            )
        self.workload: Workload
        self.platform: Platform | None
        self.workload, self.platform, place = open_workload(workload, platform, parameters)
        if measured := overrides_with((), host_profile):
            if self.platform is None or self.workload.brings_machine:
                raise ConfigError(
                    "host_profile: the host of a captured step is as captured; leave it out"
                )
            self.platform, _ = override_platform(self.platform, measured)
        basis = price_basis or "on_demand"
        self._prices = {"basis": basis, "provider": price_provider}
        own_batch = self.workload.brings_machine or "local_batch_size" in parameters
        if global_batch_size is None and not own_batch:
            global_batch_size = self.workload.global_batch_size
        given: dict[str, object] = {
            "platform": place or None,
            "world_size": world_size,
            "global_batch_size": global_batch_size,
            **parameters,
        }
        named = {"program": program, "link": link, "network": network, "precision": precision}
        given |= {name: value or None for name, value in named.items()}
        given = {name: value for name, value in given.items() if value is not None}
        _check_names(given, self.workload)
        self.parameters: dict[str, ParameterValue] = self.workload.chosen(
            self.platform, given, basis=basis, provider=price_provider
        )
        self._job: WorkloadJob = self.workload.job(self.platform, self.parameters)

    @property
    def program(self) -> str:
        """Name of the training program; empty where this kind of workload has none."""
        return self._job.program

    def __repr__(self) -> str:
        chosen = [
            f"{name}={value}" for name, value in self.parameters.items() if name != "platform"
        ]
        place = "its machine" if self.platform is None else self.platform.name
        return f"Job({', '.join([f'{self.workload.name} on {place}', *chosen])})"

    def check(self) -> None:
        """Checks that the job is possible.

        Raises:
            ConfigError: It is not; the message gives value, limit and what to change.
        """
        self._complete.check()

    def shard(
        self,
        *,
        allowed_types: Iterable[str] | None = None,
        constraints: Sequence[TableConstraints] = (),
        allow_uvm: bool = False,
        time_limit_s: float | None = None,
        seed: int = 0,
    ) -> ShardingSolution:
        """Finds a sharding plan, with a bound that no plan beats.

        Args:
            allowed_types: Names of sharding types that may be used; all by default.
            constraints: What is demanded of single tables.
            allow_uvm: Whether tables may live in host memory.
            time_limit_s: Stop looking for better plans after this many seconds.
            seed: Seed of everything that is drawn.

        Raises:
            ConfigError: This workload has no sharding plan, or constraints exclude each other.
            InfeasibleError: No plan fits; says what is missing and what would help.
        """
        return self._job.solve(
            allowed_types=allowed_types,
            constraints=constraints,
            allow_uvm=allow_uvm,
            time_limit_s=time_limit_s,
            seed=seed,
        )

    def predict(self, plan: AnyPlan | None = None) -> Prediction:
        """Predicts the job without running it.

        Args:
            plan: A sharding plan or the path of one; searched if it is left out.

        Raises:
            ConfigError: The job is impossible.
            PlanError: The plan is for another model or another number of ranks.
        """
        from dse.workload import named, predict_job

        job = self._with(plan)
        platform, network = self.platform, named(self.parameters, "network")
        if self.workload.brings_machine:
            # Changes may have moved the step.
            platform = job.platform
        elif job.cluster is not None:
            network = job.cluster.network.name
        quote = None
        if platform is not None:
            quote = platform.quote(job.world_size, network=network, **self._prices)
        return predict_job(job, quote)

    def explain(self, plan: AnyPlan | None = None) -> Explanation:
        """Explains why the predicted step takes as long as it does; arguments as `predict`."""
        from dse.workload import explain_job

        return explain_job(self._with(plan))

    def memory(self, plan: AnyPlan | None = None) -> tuple[MemoryAccount, ...]:
        """Returns what each rank's memory holds; arguments as `predict`."""
        return self._with(plan).memory()

    def graph(self, plan: AnyPlan | None = None) -> AttributedGraph:
        """Returns the graph of the step with what each task is for; arguments as `predict`."""
        return self._with(plan).attributed()

    @cached_property
    def _complete(self) -> WorkloadJob:
        """The job with everything decided that the parameters leave open."""
        from dse.workload import PlanEffort

        return self._job.planned(PlanEffort())

    def _with(self, plan: AnyPlan | None) -> WorkloadJob:
        if plan is None:
            return self._complete
        given = plan_or_path(plan)
        if isinstance(given, Path):
            return self._job.with_plan_of(given)
        return self._job.with_plan(given)


def _check_names(parameters: Iterable[str], workload: Workload) -> None:
    known = tuple(workload.parameters.model_fields)
    for name in parameters:
        if name not in known:
            raise ConfigError(f"a {workload.title} has no parameter `{name}`; {hint(name, known)}")


def predict(
    workload: AnyWorkload,
    platform: AnyPlatform | None = None,
    *,
    world_size: int | None = None,
    global_batch_size: int | None = None,
    plan: AnyPlan | None = None,
    program: str = "",
    **parameters: ParameterValue,
) -> Prediction:
    """Predicts a job without running it; see :class:`Job` for the arguments.

    Args:
        workload: Built-in name, path, model or workload, or a captured step.
        platform: Built-in name, path, platform, or a mapping that derives one from another; a
            captured step has its own.
        world_size: Number of ranks; a captured step has its own.
        global_batch_size: Samples of one iteration over all ranks; by default those of the
            model's own recipe.
        plan: A sharding plan or the path of one; searched if it is left out.
        program: Name of the training program; that of the kind of workload if it is left out.
        parameters: Further parameters of this kind of workload.

    Raises:
        ConfigError: A name or file is wrong, or the job is impossible.
        PlanError: The plan is for another model or another number of ranks.
    """
    job = _job(workload, platform, world_size, global_batch_size, program, parameters)
    return job.predict(plan)


def shard(
    workload: AnyWorkload,
    platform: AnyPlatform,
    *,
    world_size: int,
    global_batch_size: int | None = None,
    program: str = "",
    allowed_types: Iterable[str] | None = None,
    constraints: Sequence[TableConstraints] = (),
    allow_uvm: bool = False,
    time_limit_s: float | None = None,
    seed: int = 0,
    **parameters: ParameterValue,
) -> ShardingSolution:
    """Finds a sharding plan, with a bound that no plan beats; see :meth:`Job.shard`.

    Args:
        workload: Built-in name, path, model or workload.
        platform: Built-in name, path, platform, or a mapping that derives one from another.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks; by default those of the
            model's own recipe.
        program: Name of the training program; that of the kind of workload if it is left out.
        allowed_types: Names of sharding types that may be used; all by default.
        constraints: What is demanded of single tables.
        allow_uvm: Whether tables may live in host memory.
        time_limit_s: Stop looking for better plans after this many seconds.
        seed: Seed of everything that is drawn.
        parameters: Further parameters of this kind of workload.

    Raises:
        ConfigError: A name or file is wrong, or constraints exclude each other.
        InfeasibleError: No plan fits; says what is missing and what would help.
    """
    job = _job(workload, platform, world_size, global_batch_size, program, parameters)
    return job.shard(
        allowed_types=allowed_types,
        constraints=constraints,
        allow_uvm=allow_uvm,
        time_limit_s=time_limit_s,
        seed=seed,
    )


def rank(
    plans: Sequence[AnyPlan],
    workload: AnyWorkload,
    platform: AnyPlatform,
    *,
    global_batch_size: int | None = None,
    program: str = "",
    **parameters: ParameterValue,
) -> Ranking:
    """Orders sharding plans by predicted iteration time; plans that do not fit come last.

    Args:
        plans: Plans, what `shard` returns, or files in our own form or TorchRec's.
        workload: Built-in name, path, model or workload.
        platform: Built-in name, path, platform, or a mapping that derives one from another.
        global_batch_size: Samples of one iteration over all ranks; by default those of the
            model's own recipe.
        program: Name of the training program; that of the kind of workload if it is left out.
        parameters: Further parameters of this kind of workload.

    Raises:
        ConfigError: A file is missing or wrong.
        PlanError: A plan is for another model.
    """
    from dse.api._ranking import Ranking
    from dse.sharding import read_plan

    if not isinstance(plans, list | tuple):
        raise ConfigError(f"plans: expected a list of plans or paths, found {plans!r}")
    found = []
    for plan in map(plan_or_path, plans):
        ranks = (read_plan(plan) if isinstance(plan, Path) else plan).world_size
        prediction = predict(
            workload,
            platform,
            world_size=ranks,
            global_batch_size=global_batch_size,
            plan=plan,
            program=program,
            **parameters,
        )
        found.append((plan, prediction))
    return Ranking(sorted(found, key=lambda row: (not row[1].feasible, row[1].iteration_time_s)))


def _job(
    workload: AnyWorkload,
    platform: AnyPlatform | None,
    world_size: int | None,
    global_batch_size: int | None,
    program: str,
    parameters: Mapping[str, object],
) -> Job:
    # Names of `Job`'s own arguments may be among the parameters: each has a type of its own.
    given: dict[str, Any] = dict(parameters)
    return Job(
        workload,
        platform,
        world_size=world_size,
        global_batch_size=global_batch_size,
        program=program,
        **given,
    )
