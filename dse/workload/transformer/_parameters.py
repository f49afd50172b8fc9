"""Parameters of a transformer: how a training step may be spread over ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from dse.workload._parameters import (
    Counts,
    Names,
    ParametersBlock,
    Platforms,
    Precisions,
    RankCounts,
    Switches,
    as_list,
)
from dse.workload.transformer._types import RecomputeModule

Recomputations = Annotated[
    list[Literal["none", "selective", "full"]], Field(min_length=1), BeforeValidator(as_list)
]


def _modules(value: object) -> object:
    """Returns a choice of modules in its one form, or as it is if that is wrong."""
    try:
        return RecomputeModule.text(RecomputeModule.of(str(value)))
    except ValueError as error:
        names = ", ".join(f"`{module}`" for module in RecomputeModule)
        raise PydanticCustomError(
            "modules", f"expected one or several of {names}, joined by `+`: `layernorm+mlp`"
        ) from error


RecomputedModules = Annotated[
    list[Annotated[str, BeforeValidator(_modules)]], Field(min_length=1), BeforeValidator(as_list)
]
LayerCounts = Annotated[
    list[Annotated[int, Field(ge=0)]], Field(min_length=1), BeforeValidator(as_list)
]
Offloads = Annotated[
    list[Literal["none", "activations", "optimizer", "all"]],
    Field(min_length=1),
    BeforeValidator(as_list),
]
DataShardings = Annotated[
    list[Literal["none", "zero1", "zero2", "zero3"]],
    Field(min_length=1),
    BeforeValidator(as_list),
]
Schedules = Annotated[
    list[Literal["1f1b", "gpipe", "zero_bubble"]], Field(min_length=1), BeforeValidator(as_list)
]
ContextExchanges = Annotated[
    list[Literal["ring", "all_gather", "ulysses"]], Field(min_length=1), BeforeValidator(as_list)
]
ReductionPrecisions = Annotated[
    list[Literal["bf16", "fp32"]], Field(min_length=1), BeforeValidator(as_list)
]

ExpertDispatches = Annotated[
    list[Literal["alltoall", "allgather", "deduplicated"]],
    Field(min_length=1),
    BeforeValidator(as_list),
]


class TransformerParameters(ParametersBlock):
    """The outer choices; each is a value, a list of values, or a range.

    Data parallelism takes the ranks that the other degrees leave over.
    """

    platform: Platforms
    world_size: RankCounts
    global_batch_size: Counts
    link: Names = ["default"]
    network: Names = ["default"]
    precision: Precisions | None = None
    tensor: RankCounts = [1]
    pipeline: RankCounts = [1]
    context: RankCounts = [1]
    context_exchange: ContextExchanges | None = None
    expert: RankCounts = [1]
    expert_tensor: RankCounts | None = None
    expert_dispatch: ExpertDispatches | None = None
    interleave: RankCounts = [1]
    schedule: Schedules | None = None
    micro_batch_size: Counts = [1]
    sequence_parallel: Switches = [False]
    recompute: Recomputations = ["none"]
    recompute_modules: RecomputedModules = [""]
    recompute_layers: LayerCounts = [0]
    offload: Offloads = ["none"]
    offload_layers: LayerCounts = [0]
    data_sharding: DataShardings = ["none"]
    sharding_degree: RankCounts | None = None
    reshard_after_forward: Switches | None = None
    no_sync: Switches | None = None
    gradient_reduction_precision: ReductionPrecisions | None = None
    program: Annotated[
        Names | None, Field(validation_alias=AliasChoices("program", "software"))
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _no_data_degree(cls, value: object) -> object:
        if isinstance(value, dict) and "data" in value:
            raise PydanticCustomError(
                "data",
                "`data` is not chosen: it is the ranks divided by tensor × pipeline × context; "
                "leave it out",
            )
        return value
