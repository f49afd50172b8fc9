"""Parameters of a recommendation model: what a search space may choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dse.config import Examples, Number, OneOrMany, StrictModel, known_to
from dse.errors import ConfigError
from dse.model import DataType, Optimizer
from dse.sharding import ComputeKernel, KernelName, ShardingType
from dse.workload._parameters import (
    DEFAULT,
    Counts,
    LaunchModes,
    LinkNames,
    Name,
    Names,
    NetworkNames,
    ParametersBlock,
    ParameterValue,
    Platforms,
    Precisions,
    RankCounts,
    Switches,
)
from dse.workload._programs import find_program
from dse.workload.dlrm.program._pipelines import TrainPipeline
from dse.workload.dlrm.program._programs import DLRM_PROGRAMS
from dse.workload.dlrm.program._wire import WireFormat, WireFormats

if TYPE_CHECKING:
    from enum import StrEnum

#: Joins the names of a set of sharding types into one value of an outer parameter.
TYPE_SEPARATOR = "+"

#: The choice of no constraints on tables.
NO_CONSTRAINTS = "none"


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


def _as_pipeline(value: object) -> object:
    """Reads a switch of earlier versions: whether the input is prefetched."""
    return pipeline_name(value) if isinstance(value, bool) else value


PipelineName = Literal["base", "sparse_dist", "fused_sparse_dist", "prefetch", "semi_sync"]
TrainPipelines = Annotated[
    list[
        Annotated[
            PipelineName,
            BeforeValidator(_as_pipeline, json_schema_input_type=PipelineName | bool),
        ]
    ],
    Field(min_length=1),
    OneOrMany(),
]


class ReducedWireBlock(StrictModel):
    """Formats of what row-wise tables exchange.

    Attributes:
        forward: Format of partial sums.
        backward: Format of gradients; that of the sums by default.
    """

    forward: WireFormat
    backward: WireFormat | None = None


class WireBlock(StrictModel):
    """Formats on the wire.

    Attributes:
        forward: Format of pooled embeddings.
        backward: Format of their gradients; that of the embeddings by default.
        reduce_scatter: Formats for row-wise tables, whose partial sums are added on the way.
    """

    forward: WireFormat
    backward: WireFormat | None = None
    reduce_scatter: ReducedWireBlock | None = None

    def to_text(self) -> str:
        """Returns the formats as text."""
        reduced = self.reduce_scatter
        pair = reduced and (reduced.forward, reduced.backward or reduced.forward)
        return WireFormats.of(self.forward, self.backward, reduced=pair or None).text


def _wire_text(value: str | WireBlock) -> str:
    """Returns formats on the wire in the form that studies keep."""
    try:
        return WireFormats.parse(value).text if isinstance(value, str) else value.to_text()
    except ConfigError as error:
        raise PydanticCustomError("wire", "{problem}", {"problem": str(error)}) from None


_FORMAT = f"(?:{'|'.join(WireFormat)})(?:/(?:{'|'.join(WireFormat)}))?"
WireText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "pattern": rf"^{_FORMAT}(?:\+reduce_scatter={_FORMAT})?$",
            "examples": [*WireFormat, "fp16/bf16"],
        }
    ),
]
Wires = Annotated[
    list[Annotated[WireText | WireBlock, AfterValidator(_wire_text)]],
    Field(min_length=1),
    OneOrMany(),
]
ReplicaPlacements = Annotated[
    list[Literal["strided", "contiguous"]], Field(min_length=1), OneOrMany()
]
Kernels = Annotated[list[KernelName], Field(min_length=1)]
Types = Annotated[list[ShardingType], Field(min_length=1)]


def _joined(names: type[StrEnum]) -> object:
    """Returns the type of text that joins names, for schemas."""
    name = f"(?:{'|'.join(names)})"
    return Annotated[str, Field(pattern=rf"^{name}(?:\{TYPE_SEPARATOR}{name})*$")]


KernelSets = Annotated[
    list[Kernels],
    Field(min_length=1),
    BeforeValidator(
        _as_type_sets,
        json_schema_input_type=Annotated[list[Kernels], Field(min_length=1)]
        | Kernels
        | _joined(ComputeKernel),
    ),
]
CacheShares = Annotated[
    list[Annotated[Number, Field(gt=0, le=1)]], Field(min_length=1), OneOrMany()
]
DataTypes = Annotated[list[DataType], Field(min_length=1), OneOrMany()]
Optimizers = Annotated[list[Optimizer], Field(min_length=1), OneOrMany()]
TypeSets = Annotated[
    list[Types],
    Field(min_length=1),
    BeforeValidator(
        _as_type_sets,
        json_schema_input_type=Annotated[list[Types], Field(min_length=1)]
        | Types
        | _joined(ShardingType),
    ),
]
Programs = Annotated[
    list[
        Annotated[
            Name,
            Examples(lambda: DLRM_PROGRAMS),
            known_to(
                lambda name: find_program(DLRM_PROGRAMS, name, trains="recommendation model")
            ),
        ]
    ],
    Field(min_length=1),
    OneOrMany(),
]


class DlrmParameters(ParametersBlock):
    """What may be chosen for a recommendation model; each is a value, a list or a range.

    Attributes:
        platform: Platforms by name or file, or what differs from one.
        world_size: Numbers of ranks, one on each device.
        global_batch_size: Samples of one iteration over all ranks.
        local_batch_size: Samples of one iteration on each rank, instead of `global_batch_size`.
        link: Interconnects inside a node, by the platform's names or those under `links`.
        network: Networks between nodes, by the platform's names or those under `networks`.
        precision: Arithmetic of the dense part; the model's by default.
        launch: How the host launches kernels; as the program does by default.
        overlap_dense_all_reduce: Whether gradients of the dense part are reduced during the
            backward pass; as the program does by default.
        train_pipeline: Which work on later batches overlaps with an iteration; as the program does
            by default.
        communication_precision: Formats of pooled embeddings on the wire, such as `fp16` or
            `fp16/bf16` for outputs and gradients; as the program does by default.
        hot_rows: Whether plans may keep popular rows on every rank; if the program can by default.
        replicas: Sharding groups with a copy of all tables each (2D parallelism).
        replica_placement: Where the ranks of a group are: `strided` over all nodes, or
            `contiguous` nodes. No effect with one replica.
        sync_interval: Iterations from one average of the copies to the next.
        sync_optimizer_state: Whether the state of the update rule is averaged too.
        program: Training programs; `dse list programs` has all.
        table_data_type: Types of all embedding rows; those of the model by default.
        sparse_optimizer: Update rules of the tables; that of the model by default.
        sharding_types: Sets of sharding types that plans may use; all types by default.
        compute_kernels: Sets of kernels, which say where tables may be; device memory by default.
        cache_load_factor: Shares of tables in host memory that the device caches.
        table_constraints: Names of blocks under `table_constraints`, or `none`.
    """

    platform: Platforms
    world_size: RankCounts
    global_batch_size: Counts | None = None
    local_batch_size: Counts | None = None
    link: LinkNames = [DEFAULT]
    network: NetworkNames = [DEFAULT]
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
        Programs | None, Field(validation_alias=AliasChoices("program", "software_profile"))
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
        kinds = (*ShardingType, *ComputeKernel)
        return ParametersBlock.choices_of(
            [
                TYPE_SEPARATOR.join(kind.value for kind in kinds if kind in item)
                if isinstance(item, list)
                else item
                for item in values
            ]
        )
