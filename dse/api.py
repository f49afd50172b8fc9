"""Jobs by name: what is predicted, sharded and explained from Python.

Names, paths and objects are accepted everywhere. Everything heavy is imported when it is first
used.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from dse._suggest import hint
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

    from dse.explanation import Explanation
    from dse.machine.host import HostProfile
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel, TransformerModel
    from dse.sharding import ShardingPlan, TableConstraints
    from dse.workload import AttributedGraph, MemoryAccount, ParameterValue, Prediction, Workload
    from dse.workload import Job as WorkloadJob
    from dse.workload.dlrm.solver import ShardingSolution

    AnyWorkload = str | PathLike[str] | DlrmModel | TransformerModel | Workload
    AnyPlatform = str | PathLike[str] | Platform
    AnyPlan = str | PathLike[str] | ShardingPlan


class Job:
    """A workload on a machine under one choice of parameters.

    Args:
        workload: Built-in name, path of a model file, or a model or workload.
        platform: Built-in name, path of a platform file, or a platform.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        program: Name of the training program; the ideal one, a bound that no program reaches, if
            it is left out.
        link: Interconnect inside a node; the platform's default if empty.
        network: Network between nodes; the platform's default if empty.
        precision: Arithmetic of the dense part; the model's own if empty.
        host_profile: Host overheads measured from traces, in place of the platform's.
        parameters: Further parameters of this kind of workload, by the names of search spaces:
            ``tensor=8, pipeline=4`` for a transformer, ``launch="cuda_graphs"`` for a
            recommendation model.

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
        platform: AnyPlatform,
        *,
        world_size: int,
        global_batch_size: int,
        program: str = "",
        link: str = "",
        network: str = "",
        precision: str = "",
        host_profile: HostProfile | None = None,
        **parameters: ParameterValue,
    ) -> None:
        from dse.machine.platforms import Platform, load_platform
        from dse.workload import load_workload

        self.workload: Workload = load_workload(workload)
        self.platform: Platform = (
            platform if isinstance(platform, Platform) else load_platform(str(platform))
        )
        chosen: dict[str, ParameterValue] = {
            "platform": self.platform.name,
            "world_size": world_size,
            "global_batch_size": global_batch_size,
            **parameters,
        }
        named = {"program": program, "link": link, "network": network, "precision": precision}
        chosen |= {name: value for name, value in named.items() if value}
        _check_names(chosen, self.workload)
        self.parameters = chosen
        self._job: WorkloadJob = self.workload.job(
            self.platform, chosen, host_profile=host_profile
        )

    def __repr__(self) -> str:
        chosen = ", ".join(
            f"{name}={value}" for name, value in self.parameters.items() if name != "platform"
        )
        return f"Job({self.workload.name} on {self.platform.name}, {chosen})"

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
        from dse.workload import predict_job

        quote = self.platform.quote(int(self.parameters["world_size"]))
        return predict_job(self._with(plan), quote)

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
        from dse.sharding import ShardingPlan

        found = plan if isinstance(plan, ShardingPlan) else self._job.read_plan(plan)
        return self._job.with_plan(found)


def _check_names(parameters: dict[str, ParameterValue], workload: Workload) -> None:
    known = tuple(workload.parameters.model_fields)
    for name in parameters:
        if name not in known:
            raise ConfigError(f"a {workload.title} has no parameter `{name}`; {hint(name, known)}")
