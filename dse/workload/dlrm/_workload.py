"""Recommendation models as a workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import ModelDocument
from dse.sharding import ShardingType, plan_to_json, plan_to_torchrec
from dse.workload._launch import LaunchMode
from dse.workload._workload import ModelWorkload
from dse.workload.dlrm._job import DlrmJob
from dse.workload.dlrm._joint import placement_parameters
from dse.workload.dlrm._parameters import (
    FORMER_PIPELINE,
    PLACEMENT_PREFIX,
    TYPE_SEPARATOR,
    DlrmParameters,
    pipeline_name,
)
from dse.workload.dlrm._pipelines import TrainPipeline
from dse.workload.dlrm._problem import make_problem
from dse.workload.dlrm._programs import DLRM_PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.host import HostProfile
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel, EmbeddingTable
    from dse.workload._configuration import Configuration
    from dse.workload._parameters import Parameter, ParametersBlock, ParameterValue
    from dse.workload._programs import Program
    from dse.workload.dlrm._software import DlrmRuntime

_WIRE_BYTES = {"fp32": 4, "fp16": 2}


@dataclass(frozen=True, slots=True)
class DlrmWorkload(ModelWorkload):
    """A recommendation model whose embedding tables are sharded over the ranks.

    Attributes:
        model: What is trained.
    """

    kind: ClassVar[str] = "dlrm"
    title: ClassVar[str] = "recommendation model"
    parameters: ClassVar[type[ParametersBlock]] = DlrmParameters
    bounds_time: ClassVar[bool] = True
    programs: ClassVar[Mapping[str, Program]] = DLRM_PROGRAMS
    default_program: ClassVar[str] = "torchrec"
    finds_plans: ClassVar[bool] = True
    frameworks: ClassVar[tuple[str, ...]] = ("torchrec",)

    model: DlrmModel

    @property
    def tables(self) -> Sequence[EmbeddingTable]:
        """Embedding tables of the model."""
        return self.model.tables

    @property
    def sizes(self) -> Mapping[str, float]:
        """Number of tables, and what they hold."""
        return {
            "tables": len(self.model.tables),
            "embedding_gib": round(self.model.embedding_bytes / 2**30, 2),
        }

    @classmethod
    def from_text(cls, text: str, *, file: str = "<string>") -> DlrmWorkload:
        """Returns the model of a file; see :meth:`Workload.from_text`."""
        return cls(parse_document(text, ModelDocument, file=file).to_model())

    def job(
        self,
        platform: Platform | None,
        parameters: Mapping[str, ParameterValue],
        *,
        links: Sequence[LinkSpec] = (),
        networks: Sequence[NetworkSpec] = (),
        host_profile: HostProfile | None = None,
    ) -> DlrmJob:
        """Returns the job, its plan still open; see :meth:`Workload.job`."""
        cluster = self.cluster(platform, parameters, links=links, networks=networks)
        precision = Precision(str(parameters.get("precision", self.model.precision.value)))
        if precision.is_low:
            known = ", ".join(one.value for one in Precision if not one.is_low)
            raise ConfigError(
                f"precision {precision.value}: no program trains recommendation models in it; "
                f"choose from {known}"
            )
        program = self.program_name(parameters)
        software = _overridden(DLRM_PROGRAMS[program].software_for(precision), parameters)
        if software.launch is LaunchMode.CUDA_GRAPHS and not software.capturable:
            raise ConfigError(
                f"launch cuda_graphs: an iteration of program {program} cannot be captured: "
                "the host reads from the devices how many indices each rank gets; use launch "
                f"eager, or a program that can be captured: {', '.join(_capturable())}"
            )
        problem = make_problem(
            self.model,
            cluster,
            _global_batch_size(parameters),
            precision,
            software,
            host_profile,
        )
        placements = {
            name.removeprefix(PLACEMENT_PREFIX): str(value)
            for name, value in parameters.items()
            if name.startswith(PLACEMENT_PREFIX)
        }
        return DlrmJob(
            problem,
            program=program,
            allowed_types=_types(parameters),
            placements=tuple(placements.items()),
        )

    def favourable(
        self,
        parameters: Mapping[str, ParameterValue],
        choices: Mapping[str, Sequence[ParameterValue]],
    ) -> Mapping[str, ParameterValue]:
        """Returns the parameters with all types, captured graphs and the narrowest wire.

        More types allow more plans, a replayed graph costs the host less than its launches one by
        one, and fewer bytes do not travel longer.
        """
        found = dict(parameters)
        captured = DLRM_PROGRAMS[self.program_name(parameters)].software.capturable
        if captured and LaunchMode.CUDA_GRAPHS.value in choices.get("launch", ()):
            found["launch"] = LaunchMode.CUDA_GRAPHS.value
        if wires := choices.get("communication_precision"):
            found["communication_precision"] = min(map(str, wires), key=_WIRE_BYTES.__getitem__)
        if sets := choices.get("sharding_types"):
            allowed = {name for names in sets for name in str(names).split(TYPE_SEPARATOR)}
            found["sharding_types"] = TYPE_SEPARATOR.join(
                kind.value for kind in ShardingType if kind.value in allowed
            )
        return found

    @classmethod
    def deployment(cls, configuration: Configuration, model_name: str) -> str:
        """Returns the sharding plan, or the parameters where no plan was looked for."""
        if configuration.plan is None:
            # Dataclasses with slots replace the class that a bare `super()` looks for.
            return super(DlrmWorkload, cls).deployment(configuration, model_name)
        return plan_to_json(configuration.plan, model_name)

    def framework_text(
        self, configuration: Configuration, framework: str, platform: Platform
    ) -> str:
        """Returns the sharding plan for TorchRec; see :meth:`Workload.framework_text`."""
        if framework != "torchrec" or configuration.plan is None:
            return ModelWorkload.framework_text(self, configuration, framework, platform)
        return plan_to_torchrec(
            configuration.plan,
            self.model.tables,
            platform.devices_per_node,
            "cpu" if platform.device.kind == "cpu" else "cuda",
            devices_per_domain=platform.devices_per_domain(configuration.world_size),
        )

    def placement_parameters(
        self, platforms: Mapping[str, Platform], choices: Mapping[str, Sequence[ParameterValue]]
    ) -> tuple[Parameter, ...]:
        """Returns one parameter for each table; see :meth:`Workload.placement_parameters`."""
        sets = choices["sharding_types"]
        if len(sets) > 1:
            raise ConfigError(
                "with `plan: joint` every table chooses its own type; give one set of sharding "
                f"types instead of {len(sets)}"
            )
        clusters = [
            (int(world_size), platforms[str(platform)].devices_per_domain(int(world_size)))
            for platform in choices["platform"]
            for world_size in choices["world_size"]
        ]
        return placement_parameters(self.model, _types({"sharding_types": sets[0]}), clusters)


def _global_batch_size(parameters: Mapping[str, ParameterValue]) -> int:
    if "global_batch_size" in parameters:
        return int(parameters["global_batch_size"])
    return int(parameters["local_batch_size"]) * int(parameters["world_size"])


def _capturable() -> list[str]:
    """Returns the names of the programs whose iterations can be captured."""
    return [name for name, program in DLRM_PROGRAMS.items() if program.software.capturable]


def _overridden(software: DlrmRuntime, parameters: Mapping[str, ParameterValue]) -> DlrmRuntime:
    """Returns a training program with what parameters say about it in place of what it does."""
    changes: dict[str, Any] = {
        name: bool(parameters[name])
        for name in ("overlap_dense_all_reduce",)
        if name in parameters
    }
    if FORMER_PIPELINE in parameters:
        # In studies of earlier versions.
        changes["pipeline"] = TrainPipeline(pipeline_name(bool(parameters[FORMER_PIPELINE])))
    if "train_pipeline" in parameters:
        changes["pipeline"] = TrainPipeline(str(parameters["train_pipeline"]))
    if "launch" in parameters:
        changes["launch"] = LaunchMode(str(parameters["launch"]))
    if "communication_precision" in parameters:
        wire = str(parameters["communication_precision"])
        changes["communication_precision_bytes"] = _WIRE_BYTES[wire]
    return replace(software, **changes)


def _types(parameters: Mapping[str, ParameterValue]) -> frozenset[ShardingType]:
    if "sharding_types" not in parameters:
        return frozenset(ShardingType)
    names = str(parameters["sharding_types"]).split(TYPE_SEPARATOR)
    try:
        return frozenset(ShardingType(name) for name in names)
    except ValueError as error:
        raise ConfigError(f"unknown sharding type: {error}") from error
