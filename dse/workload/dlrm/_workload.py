"""Recommendation models as a workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, ClassVar

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import DataType, ModelDocument, Optimizer
from dse.sharding import (
    DEFAULT_CACHE_LOAD_FACTOR,
    ComputeKernel,
    ShardingType,
    TableConstraints,
    plan_to_json,
    plan_to_torchrec,
)
from dse.workload._launch import LaunchMode
from dse.workload._workload import ModelWorkload
from dse.workload.dlrm._job import DlrmJob
from dse.workload.dlrm._joint import placement_parameters
from dse.workload.dlrm._parameters import (
    NO_CONSTRAINTS,
    PLACEMENT_PREFIX,
    TYPE_SEPARATOR,
    DlrmParameters,
)
from dse.workload.dlrm._problem import make_problem
from dse.workload.dlrm._programs import DLRM_PROGRAMS
from dse.workload.dlrm._wire import WireFormats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.host import HostProfile
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel, EmbeddingTable
    from dse.workload._configuration import Configuration
    from dse.workload._parameters import Parameter, ParametersBlock, ParameterValue
    from dse.workload._programs import Program
    from dse.workload.dlrm._programs import DlrmProgram
    from dse.workload.dlrm._software import DlrmRuntime


@dataclass(frozen=True, slots=True)
class DlrmWorkload(ModelWorkload):
    """A recommendation model whose embedding tables are sharded over the ranks.

    Attributes:
        model: What is trained.
        table_constraints: Constraints on tables that parameters may name.
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
    table_constraints: tuple[tuple[str, tuple[TableConstraints, ...]], ...] = ()

    @property
    def tables(self) -> Sequence[EmbeddingTable]:
        """Embedding tables of the model."""
        return self.model.tables

    def with_table_constraints(
        self, constraints: Mapping[str, tuple[TableConstraints, ...]]
    ) -> DlrmWorkload:
        """Returns the workload with constraints that parameters may name."""
        return replace(self, table_constraints=tuple(constraints.items()))

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
        name = self.program_name(parameters)
        program = DLRM_PROGRAMS[name]
        alone = cluster.world_size == 1
        problem = make_problem(
            _stored(
                self.model,
                str(parameters.get("table_data_type", "")),
                str(parameters.get("sparse_optimizer", "")),
            ),
            cluster,
            _global_batch_size(parameters),
            precision,
            _overridden(program, program.software_for(precision), parameters, alone),
            host_profile,
        )
        placements = {
            name.removeprefix(PLACEMENT_PREFIX): str(value)
            for name, value in parameters.items()
            if name.startswith(PLACEMENT_PREFIX)
        }
        return DlrmJob(
            problem,
            program=name,
            allowed_types=_types(parameters),
            constraints=_constraints(parameters, dict(self.table_constraints)),
            placements=tuple(placements.items()),
        )

    def favourable(
        self,
        parameters: Mapping[str, ParameterValue],
        choices: Mapping[str, Sequence[ParameterValue]],
    ) -> Mapping[str, ParameterValue]:
        """Returns the parameters with all types, captured graphs and the narrowest wire.

        More types allow more plans, a replayed graph costs the host less than its launches one by
        one, and fewer bytes do not travel longer, as far as nothing has to be converted.
        """
        found = dict(parameters)
        if LaunchMode.CUDA_GRAPHS.value in choices.get("launch", ()):
            found["launch"] = LaunchMode.CUDA_GRAPHS.value
        if wires := choices.get("communication_precision"):
            program = DLRM_PROGRAMS[self.program_name(parameters)]
            if program.chooses_wire and not program.software.wire.codec:
                every = [WireFormats.parse(str(wire)) for wire in wires]
                found["communication_precision"] = reduce(WireFormats.narrowest, every).text
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
        """Returns plan and formats for TorchRec; see :meth:`Workload.framework_text`."""
        if framework != "torchrec" or configuration.plan is None:
            return ModelWorkload.framework_text(self, configuration, framework, platform)
        wire = WireFormats.parse(str(configuration.value("communication_precision") or "fp32"))
        return plan_to_torchrec(
            configuration.plan,
            self.model.tables,
            platform.devices_per_node,
            "cpu" if platform.device.kind == "cpu" else "cuda",
            devices_per_domain=platform.devices_per_domain(configuration.world_size),
            qcomms=wire.qcomms,
        )

    def placement_parameters(
        self, platforms: Mapping[str, Platform], choices: Mapping[str, Sequence[ParameterValue]]
    ) -> tuple[Parameter, ...]:
        """Returns one parameter for each table; see :meth:`Workload.placement_parameters`."""
        sets = choices["sharding_types"]
        if wrong := [name for name in ("compute_kernels", "table_constraints") if name in choices]:
            raise ConfigError(
                f"`{wrong[0]}` with `plan: joint`, where the sampler places the tables; use "
                "`plan: solver`"
            )
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


def _overridden(
    program: DlrmProgram,
    software: DlrmRuntime,
    parameters: Mapping[str, ParameterValue],
    alone: bool,
) -> DlrmRuntime:
    """Returns a training program with what parameters say about it in place of what it does.

    Args:
        program: The program.
        software: The same in the precision of the job.
        parameters: Value of every parameter.
        alone: Whether there is a single rank, which sends nothing.

    Raises:
        ConfigError: The program cannot do that.
    """
    changes: dict[str, Any] = {
        name: bool(parameters[name])
        for name in ("overlap_dense_all_reduce", "prefetch_input")
        if name in parameters
    }
    if "launch" in parameters:
        changes["launch"] = LaunchMode(str(parameters["launch"]))
    if "communication_precision" in parameters:
        text = str(parameters["communication_precision"])
        chosen = _chosen_wire(program, software.wire, text)
        changes["wire"] = software.wire if alone else chosen
    return replace(software, **changes)


def _chosen_wire(program: DlrmProgram, own: WireFormats, text: str) -> WireFormats:
    """Returns the formats that are asked for, if the program can use them.

    Args:
        program: The program.
        own: What it uses by itself.
        text: What is asked for.

    Raises:
        ConfigError: It has no such formats.
    """
    if program.chooses_wire:
        return WireFormats.parse(text, codec=program.software.wire.codec)
    if WireFormats.parse(text, codec=own.codec) != own:
        able = ", ".join(name for name, one in DLRM_PROGRAMS.items() if one.chooses_wire)
        raise ConfigError(
            f"communication precision {text}: {program.name} has no conversion on the wire and "
            f"sends {own.text}; use that, or one of the programs {able}"
        )
    return own


@lru_cache(maxsize=64)
def _stored(model: DlrmModel, data_type: str, optimizer: str) -> DlrmModel:
    """Returns a model with another type of all rows, or another update rule of the tables.

    Args:
        model: The model.
        data_type: Name of a type; that of each table if empty.
        optimizer: Name of an update rule; the model's if empty.
    """
    if optimizer:
        model = replace(model, sparse_optimizer=Optimizer(optimizer))
    if data_type:
        kind = DataType(data_type)
        tables = tuple(replace(table, data_type=kind) for table in model.tables)
        model = replace(model, tables=tables)
    return model


def _constraints(
    parameters: Mapping[str, ParameterValue],
    known: Mapping[str, tuple[TableConstraints, ...]],
) -> tuple[TableConstraints, ...]:
    """Returns what parameters demand of tables; nothing that makes no difference.

    Args:
        parameters: Value of every parameter.
        known: Constraints that they may name.

    Raises:
        ConfigError: They name constraints that do not exist.
    """
    found: list[TableConstraints] = []
    name = str(parameters.get("table_constraints", NO_CONSTRAINTS))
    if name != NO_CONSTRAINTS:
        if name not in known:
            raise ConfigError(
                f"no constraints on tables are called `{name}`; a search space defines them under "
                "`table_constraints`"
            )
        found += known[name]
    names = str(parameters.get("compute_kernels", ComputeKernel.FUSED.value))
    kernels = {ComputeKernel(kernel) for kernel in names.split(TYPE_SEPARATOR)}
    if ComputeKernel.FUSED in kernels:
        # Copies on every rank have the dense kernel.
        kernels.add(ComputeKernel.DENSE)
    if kernels != {ComputeKernel.FUSED, ComputeKernel.DENSE}:
        demanded = TableConstraints(allowed_kernels=frozenset(kernels), origin="compute_kernels")
        found.append(demanded)
    caching = ComputeKernel.FUSED_UVM_CACHING
    share = float(parameters.get("cache_load_factor", DEFAULT_CACHE_LOAD_FACTOR))
    if share != DEFAULT_CACHE_LOAD_FACTOR and any(
        caching in (rule.allowed_kernels or ()) for rule in found
    ):
        found.append(TableConstraints(cache_load_factor=share, origin="cache_load_factor"))
    return tuple(found)


def _types(parameters: Mapping[str, ParameterValue]) -> frozenset[ShardingType]:
    if "sharding_types" not in parameters:
        return frozenset(ShardingType)
    names = str(parameters["sharding_types"]).split(TYPE_SEPARATOR)
    try:
        return frozenset(ShardingType(name) for name in names)
    except ValueError as error:
        raise ConfigError(f"unknown sharding type: {error}") from error
