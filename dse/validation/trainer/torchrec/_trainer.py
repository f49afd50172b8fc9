"""What TorchRec runs of a candidate, and which program predicts it."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from dse.errors import PlanError
from dse.sharding import (
    ComputeKernel,
    ShardingPlan,
    ShardingType,
    check_plan,
    plan_to_torchrec,
)
from dse.validation._protocol import Trainer, UnsupportedCandidateError
from dse.validation.dlrm import Candidate, untrained_lookups
from dse.workload import LaunchMode, find_program
from dse.workload.dlrm import DLRM_PROGRAMS, DlrmWorkload, TrainPipeline
from dse.workload.dlrm.deploy import missing_from_script

if TYPE_CHECKING:
    from dse.launch import RankContext
    from dse.validation._types import TrainerOptions
    from dse.validation.trainer.torchrec._rank import TorchRecRank

#: Pipelines that need streams of a GPU.
_ON_GPUS = (TrainPipeline.FUSED_SPARSE_DIST, TrainPipeline.PREFETCH, TrainPipeline.SEMI_SYNC)

_PACKAGES = (("torchrec", "torchrec"), ("fbgemm_gpu", "fbgemm-gpu-cpu"))


class TorchRecTrainer(Trainer[Candidate]):
    """Trains recommendation models as `train.py` of `dse export --format torchrec` does."""

    name: ClassVar[str] = "torchrec"
    title: ClassVar[str] = "TorchRec"
    kind: ClassVar[str] = DlrmWorkload.kind
    program: ClassVar[str] = "torchrec"
    keeps: ClassVar[str] = "the train pipeline and wire precision"
    collects: ClassVar[bool] = True

    def missing(self) -> str:
        """Returns the packages that are not installed."""
        absent = [package for module, package in _PACKAGES if find_spec(module) is None]
        return " and ".join(absent)

    def libraries(self) -> tuple[tuple[str, str], ...]:
        """Returns the versions of TorchRec and FBGEMM."""
        found = []
        for module, package in _PACKAGES:
            for name in (package, module):
                try:
                    found.append((module, version(name)))
                except PackageNotFoundError:
                    continue
                break
        return tuple(found)

    def adopt(self, candidate: Candidate) -> Candidate:
        """Returns the candidate as this program; replicated tables have dense kernels there."""
        problem = candidate.problem
        own, wire = problem.software, problem.software.wire
        software = find_program(DLRM_PROGRAMS, self.program).software_for(
            problem.precision, on_cpu=problem.cluster.device.kind == "cpu"
        )
        software = replace(software, pipeline=own.pipeline, wire=replace(wire, codec=True))
        tables = tuple(
            replace(one, compute_kernel=ComputeKernel.DENSE)
            if one.sharding_type is ShardingType.DATA_PARALLEL
            else one
            for one in candidate.plan.tables
        )
        plan = ShardingPlan(candidate.plan.world_size, tables)
        return replace(candidate, problem=replace(problem, software=software), plan=plan)

    def checked(self, candidate: Candidate, device: str) -> Candidate:
        """Returns the candidate with the plan's tables in the model's order.

        Raises:
            UnsupportedCandidateError: TorchRec would not train the model, or not under the plan.
            PlanError: The plan does not match the model and ranks.
        """
        model, software = candidate.model, candidate.problem.software
        where = f"candidate `{candidate.name}`"
        instead = "the reference trainer may run it (--trainer reference)"
        parts = missing_from_script(model)
        parts += [found for table in model.tables if (found := untrained_lookups(table))]
        if software.launch is not LaunchMode.EAGER:
            parts.append("captured graphs")
        if device == "cpu" and software.pipeline in _ON_GPUS:
            parts.append(f"train pipeline `{software.pipeline.value}` on CPUs")
        if parts:
            raise UnsupportedCandidateError(
                f"{where}: TorchRec's trainer has no {', no '.join(dict.fromkeys(parts))}; "
                f"{instead}"
            )
        plan = check_plan(candidate.plan, model.tables, candidate.world_size, candidate.node_size)
        for placement in plan.tables:
            if device == "cpu" and placement.compute_kernel.on_host:
                raise UnsupportedCandidateError(
                    f"{where}, table `{placement.table}`: `{placement.compute_kernel.value}` is "
                    "ordinary memory on CPUs; plan without UVM"
                )
        checked = replace(candidate, plan=plan)
        try:
            self._exported(checked, device)
        except PlanError as error:
            raise UnsupportedCandidateError(
                f"{where}: TorchRec cannot run its plan: {error}; {instead}"
            ) from error
        return checked

    @staticmethod
    def _exported(candidate: Candidate, device: str) -> None:
        cluster = candidate.problem.cluster
        plan_to_torchrec(
            candidate.plan,
            candidate.model.tables,
            cluster.devices_per_node,
            device,
            devices_per_domain=cluster.devices_per_domain,
        )

    def rank(
        self, candidate: Candidate, options: TrainerOptions, context: RankContext
    ) -> TorchRecRank:
        """Builds one rank."""
        from dse.validation.trainer.torchrec._rank import TorchRecRank

        return TorchRecRank(candidate, options, context)
