"""Parameters of a recommendation model: what a search space may choose."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from dse.config import StrictModel
from dse.errors import ConfigError
from dse.model import DataType, Optimizer
from dse.sharding import ComputeKernel, KernelName, ShardingType
from dse.workload._parameters import (
    Counts,
    Names,
    ParametersBlock,
    ParameterValue,
    Platforms,
    Precisions,
    RankCounts,
    Switches,
    as_list,
)
from dse.workload.dlrm.program._pipelines import TrainPipeline
from dse.workload.dlrm.program._wire import WireFormat, WireFormats

#: Joins the names of a set of sharding types into one value of an outer parameter.
TYPE_SEPARATOR = "+"

#: The choice of no constraints on tables.
NO_CONSTRAINTS = "none"

#: Begins the name of the outer parameter that places a table, with `plan: joint`.
PLACEMENT_PREFIX = "plan."


#: Name of the parameter `train_pipeline` in earlier versions, when it was a switch.
FORMER_PIPELINE = "prefetch_input"


def pipeline_name(prefetches: bool) -> str:
    """Returns the pipeline that prefetches the input, or the one that does not."""
    return (TrainPipeline.SPARSE_DIST if prefetches else TrainPipeline.BASE).value


def _as_type_sets(value: object) -> object:
    """Wraps a single set of sharding types or kernels in a list; text is a set as studies keep it.

    So a study's own value of a parameter is one of a space.
    """
    if isinstance(value, str):
        return [value.split(TYPE_SEPARATOR)]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [value]
    return value


LaunchModes = Annotated[
    list[Literal["eager", "cuda_graphs"]], Field(min_length=1), BeforeValidator(as_list)
]


def _as_pipelines(value: object) -> object:
    """Reads switches of earlier versions: whether the input is prefetched."""
    listed = as_list(value)
    if not isinstance(listed, list):
        return listed
    return [pipeline_name(item) if isinstance(item, bool) else item for item in listed]


TrainPipelines = Annotated[
    list[Literal["base", "sparse_dist", "fused_sparse_dist", "prefetch", "semi_sync"]],
    Field(min_length=1),
    BeforeValidator(_as_pipelines),
]


class ReducedWireBlock(StrictModel):
    """Formats of what row-wise tables exchange; gradients travel as outputs by default."""

    forward: WireFormat
    backward: WireFormat | None = None


class WireBlock(StrictModel):
    """Formats on the wire, of outputs and of gradients; these travel as outputs by default."""

    forward: WireFormat
    backward: WireFormat | None = None
    reduce_scatter: ReducedWireBlock | None = None

    def to_text(self) -> str:
        """Returns the formats as text."""
        reduced = self.reduce_scatter
        pair = reduced and (reduced.forward, reduced.backward or reduced.forward)
        return WireFormats.of(self.forward, self.backward, reduced=pair or None).text


def _as_wires(value: object) -> object:
    """Wraps a single text or mapping in a list."""
    return value if isinstance(value, list) else [value]


def _wire_text(value: str | WireBlock) -> str:
    """Returns formats on the wire in the form that studies keep."""
    try:
        return WireFormats.parse(value).text if isinstance(value, str) else value.to_text()
    except ConfigError as error:
        raise PydanticCustomError("wire", "{problem}", {"problem": str(error)}) from None


Wires = Annotated[
    list[Annotated[str | WireBlock, AfterValidator(_wire_text)]],
    Field(min_length=1),
    BeforeValidator(_as_wires),
]
ReplicaPlacements = Annotated[
    list[Literal["strided", "contiguous"]], Field(min_length=1), BeforeValidator(as_list)
]
KernelSets = Annotated[
    list[Annotated[list[KernelName], Field(min_length=1)]],
    Field(min_length=1),
    BeforeValidator(_as_type_sets),
]
CacheShares = Annotated[
    list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1), BeforeValidator(as_list)
]
DataTypes = Annotated[list[DataType], Field(min_length=1), BeforeValidator(as_list)]
Optimizers = Annotated[list[Optimizer], Field(min_length=1), BeforeValidator(as_list)]
TypeSets = Annotated[
    list[Annotated[list[ShardingType], Field(min_length=1)]],
    Field(min_length=1),
    BeforeValidator(_as_type_sets),
]


class DlrmParameters(ParametersBlock):
    """The outer choices; each is a value, a list of values, or a range.

    `launch`, `overlap_dense_all_reduce`, `train_pipeline`, `communication_precision` and
    `hot_rows` (whether plans may keep popular rows on every rank) override what the program does;
    without them it does as it is written. `table_data_type` and `sparse_optimizer` override the
    model. `compute_kernels` say where tables may be, in device memory by default,
    `cache_load_factor` how much of those in host memory a device caches, and `table_constraints`
    names demands on single tables, or `none`.

    `replicas` are the sharding groups of 2D parallelism, each with a copy of all tables;
    `replica_placement` says where the ranks of a group are, and `sync_interval` and
    `sync_optimizer_state` how the copies are kept alike. They have no effect with one replica.
    """

    platform: Platforms
    world_size: RankCounts
    global_batch_size: Counts | None = None
    local_batch_size: Counts | None = None
    link: Names = ["default"]
    network: Names = ["default"]
    precision: Precisions | None = None
    launch: LaunchModes | None = None
    overlap_dense_all_reduce: Switches | None = None
    train_pipeline: Annotated[
        TrainPipelines | None,
        Field(validation_alias=AliasChoices("train_pipeline", FORMER_PIPELINE)),
    ] = None
    communication_precision: Wires | None = None
    hot_rows: Switches | None = None
    replicas: RankCounts | None = None
    replica_placement: ReplicaPlacements | None = None
    sync_interval: Counts | None = None
    sync_optimizer_state: Switches | None = None
    program: Annotated[
        Names | None, Field(validation_alias=AliasChoices("program", "software_profile"))
    ] = None
    table_data_type: DataTypes | None = None
    sparse_optimizer: Optimizers | None = None
    sharding_types: TypeSets = [list(ShardingType)]
    compute_kernels: KernelSets | None = None
    cache_load_factor: CacheShares | None = None
    table_constraints: Names | None = None

    @model_validator(mode="after")
    def _one_batch_size(self) -> DlrmParameters:
        if (self.global_batch_size is None) == (self.local_batch_size is None):
            raise PydanticCustomError(
                "batch", "expected exactly one of `global_batch_size` and `local_batch_size`"
            )
        return self

    @staticmethod
    def choices_of(values: list[object]) -> tuple[ParameterValue, ...]:
        """Joins sets of sharding types and kernels; numbers ascend, others keep their order."""
        plain: list[ParameterValue] = []
        for item in values:
            if isinstance(item, list):
                chosen: ParameterValue = TYPE_SEPARATOR.join(
                    kind.value for kind in (*ShardingType, *ComputeKernel) if kind in item
                )
            else:
                chosen = item if isinstance(item, bool | int | float) else str(item)
            if chosen not in plain:
                plain.append(chosen)
        if all(isinstance(item, int) and not isinstance(item, bool) for item in plain):
            plain.sort(key=int)
        return tuple(plain)
