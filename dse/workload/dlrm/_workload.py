"""Recommendation models as a workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import ModelDocument
from dse.sharding import (
    TORCHREC_MODULE,
    DmpCollection,
    ShardingType,
    plan_to_json,
    plan_to_torchrec,
)
from dse.workload._launch import LaunchMode
from dse.workload._model_workload import ModelWorkload
from dse.workload._workload import PLACEMENT_PREFIX
from dse.workload.dlrm._chosen import (
    chosen_constraints,
    chosen_software,
    global_batch_size,
    sharding_group,
    sharding_types,
    stored_model,
    weight_sync,
)
from dse.workload.dlrm._contents import model_contents
from dse.workload.dlrm._job import DlrmJob
from dse.workload.dlrm._joint import placement_parameters
from dse.workload.dlrm._parameters import (
    TYPE_SEPARATOR,
    DlrmParameters,
)
from dse.workload.dlrm._problem import make_problem
from dse.workload.dlrm.deploy import torchrec_files
from dse.workload.dlrm.program._programs import DLRM_PROGRAMS
from dse.workload.dlrm.program._wire import WireFormats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel, EmbeddingTable
    from dse.sharding import TableConstraints
    from dse.workload._configuration import Configuration
    from dse.workload._parameters import Parameter, ParametersBlock, ParameterValue
    from dse.workload._prediction import Prediction
    from dse.workload._programs import Program


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
    summarized: ClassVar[frozenset[str]] = frozenset(("replicas", "replica_placement"))

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

    @property
    def contents(self) -> Mapping[str, object]:
        """What the model holds."""
        own = {"name": self.name, "kind": self.kind, "description": self.description}
        return {**own, **model_contents(self.model)}

    @classmethod
    def summary(cls, configuration: Configuration) -> str:
        """Returns the sharding groups, if there are several."""
        replicas = int(configuration.value("replicas") or 1)
        if replicas == 1:
            return ""
        placement = configuration.value("replica_placement") or "strided"
        ranks = configuration.world_size // replicas
        return f"{replicas} sharding groups of {ranks}, {placement}"

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
    ) -> DlrmJob:
        """Returns the job, its plan still open; see :meth:`Workload.job`.

        Raises:
            ConfigError: No program trains recommendation models in this precision.
        """
        cluster = self.cluster(platform, parameters, links=links, networks=networks)
        precision = Precision(str(parameters.get("precision", self.model.precision.value)))
        if precision.is_low:
            known = ", ".join(one.value for one in Precision if not one.is_low)
            raise ConfigError(
                f"precision {precision.value}: no program trains recommendation models in it; "
                f"choose from {known}"
            )
        name = self.program_name(parameters)
        problem = make_problem(
            stored_model(
                self.model,
                str(parameters.get("table_data_type", "")),
                str(parameters.get("sparse_optimizer", "")),
            ),
            sharding_group(cluster, parameters, DLRM_PROGRAMS[name]),
            global_batch_size(parameters),
            precision,
            chosen_software(name, precision, parameters, cluster),
            weight_sync(parameters),
        )
        placements = {
            name.removeprefix(PLACEMENT_PREFIX): str(value)
            for name, value in parameters.items()
            if name.startswith(PLACEMENT_PREFIX)
        }
        return DlrmJob(
            problem,
            program=name,
            allowed_types=sharding_types(parameters),
            constraints=chosen_constraints(parameters, dict(self.table_constraints)),
            placements=tuple(placements.items()),
        )

    def favourable(
        self,
        parameters: Mapping[str, ParameterValue],
        choices: Mapping[str, Sequence[ParameterValue]],
    ) -> Mapping[str, ParameterValue]:
        """Returns the parameters with all types, hot rows, captured graphs and the narrowest wire.

        More types and hot rows allow more plans, a replayed graph costs the host less than its
        launches one by one, and fewer bytes do not travel longer, as far as nothing has to be
        converted, nor does what is sent less often.
        """
        found = dict(parameters)
        if intervals := choices.get("sync_interval"):
            found["sync_interval"] = max(map(int, intervals))
        if False in choices.get("sync_optimizer_state", ()):
            found["sync_optimizer_state"] = False
        captured = DLRM_PROGRAMS[self.program_name(parameters)].software.capturable
        if captured and LaunchMode.CUDA_GRAPHS.value in choices.get("launch", ()):
            found["launch"] = LaunchMode.CUDA_GRAPHS.value
        if wires := choices.get("communication_precision"):
            program = DLRM_PROGRAMS[self.program_name(parameters)]
            if program.chooses_wire and not program.software.wire.codec:
                every = [WireFormats.parse(str(wire)) for wire in wires]
                found["communication_precision"] = reduce(WireFormats.narrowest, every).text
        if True in choices.get("hot_rows", ()):
            found["hot_rows"] = True
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
        return self._torchrec_plan(configuration, platform, TORCHREC_MODULE)

    def framework_files(
        self,
        configuration: Configuration,
        framework: str,
        platform: Platform,
        *,
        module_path: str = "",
        prediction: Prediction | None = None,
    ) -> Mapping[str, str]:
        """Returns plan, job and scripts for TorchRec; see :meth:`Workload.framework_files`."""
        if framework != "torchrec" or configuration.plan is None:
            return ModelWorkload.framework_files(self, configuration, framework, platform)
        path = module_path or TORCHREC_MODULE
        job = self.job(platform, dict(configuration.parameters)).with_plan(configuration.plan)
        plan_text = self._torchrec_plan(configuration, platform, path)
        return torchrec_files(job, plan_text, path, prediction)

    def _torchrec_plan(
        self, configuration: Configuration, platform: Platform, module_path: str
    ) -> str:
        assert configuration.plan is not None
        parameters = dict(configuration.parameters)
        program = DLRM_PROGRAMS[configuration.program or self.default_program]
        whole = platform.cluster(configuration.world_size)
        cluster = sharding_group(whole, parameters, program)
        groups, sync = None, weight_sync(parameters)
        if cluster.replicas > 1:
            groups = DmpCollection(
                world_size=whole.world_size,
                sharding_group_size=cluster.world_size,
                node_group_size=cluster.domain_size,
                use_inter_host_allreduce=cluster.rank_stride == 1,
                sync_interval=sync.interval,
                include_optimizer_state=sync.optimizer_state,
            )
        wire = WireFormats.parse(str(configuration.value("communication_precision") or "fp32"))
        return plan_to_torchrec(
            configuration.plan,
            self.model.tables,
            cluster.devices_per_node,
            "cpu" if platform.device.kind == "cpu" else "cuda",
            module_path=module_path,
            devices_per_domain=cluster.devices_per_domain,
            qcomms=wire.qcomms(sequences=any(not table.pooled for table in self.tables)),
            groups=groups,
        )

    def placement_parameters(
        self, platforms: Mapping[str, Platform], choices: Mapping[str, Sequence[ParameterValue]]
    ) -> tuple[Parameter, ...]:
        """Returns one parameter for each table; see :meth:`Workload.placement_parameters`.

        Raises:
            ConfigError: There are constraints, kernels, or several sets of sharding types.
        """
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
        return placement_parameters(
            self.model, sharding_types({"sharding_types": sets[0]}), clusters
        )
