"""Parameters of a transformer: how a training step may be spread over ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from dse.config import MAX_COUNT, Examples, OneOrMany, WholeNumber, known_to
from dse.workload._parameters import (
    DEFAULT,
    Counts,
    LaunchModes,
    LinkNames,
    Name,
    NetworkNames,
    ParametersBlock,
    Platforms,
    Precisions,
    RankCounts,
    Switches,
)
from dse.workload._programs import find_program
from dse.workload.transformer._types import RecomputeModule
from dse.workload.transformer.program._programs import TRANSFORMER_PROGRAMS

Recomputations = Annotated[
    list[Literal["none", "selective", "full"]], Field(min_length=1), OneOrMany()
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


_MODULE = f"(?:{'|'.join(RecomputeModule)})"
Modules = Annotated[
    str,
    BeforeValidator(_modules),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": rf"^(?:{_MODULE}(?:\+{_MODULE})*)?$",
            "examples": list(RecomputeModule),
        }
    ),
]
RecomputedModules = Annotated[list[Modules], Field(min_length=1), OneOrMany()]
LayerCounts = Annotated[
    list[Annotated[WholeNumber, Field(ge=0, le=MAX_COUNT)]], Field(min_length=1), OneOrMany()
]
Offloads = Annotated[
    list[Literal["none", "activations", "optimizer", "all"]],
    Field(min_length=1),
    OneOrMany(),
]
DataShardings = Annotated[
    list[Literal["none", "zero1", "zero2", "zero3"]],
    Field(min_length=1),
    OneOrMany(),
]
Schedules = Annotated[
    list[Literal["1f1b", "gpipe", "zero_bubble"]], Field(min_length=1), OneOrMany()
]
ContextExchanges = Annotated[
    list[Literal["ring", "all_gather", "ulysses"]], Field(min_length=1), OneOrMany()
]
ReductionPrecisions = Annotated[list[Literal["bf16", "fp32"]], Field(min_length=1), OneOrMany()]

ExpertDispatches = Annotated[
    list[Literal["alltoall", "allgather", "deduplicated"]],
    Field(min_length=1),
    OneOrMany(),
]
Programs = Annotated[
    list[
        Annotated[
            Name,
            Examples(lambda: TRANSFORMER_PROGRAMS),
            known_to(lambda name: find_program(TRANSFORMER_PROGRAMS, name, trains="transformer")),
        ]
    ],
    Field(min_length=1),
    OneOrMany(),
]


class TransformerParameters(ParametersBlock):
    """What may be chosen for a transformer; each is a value, a list or a range.

    Data parallelism takes the ranks that the other degrees leave over.

    Attributes:
        platform: Platforms by name or file, or what differs from one.
        world_size: Numbers of ranks, one on each device.
        global_batch_size: Samples of one training step over all ranks.
        link: Interconnects inside a node, by the platform's names or those under `links`.
        network: Networks between nodes, by the platform's names or those under `networks`.
        precision: Arithmetic; the model's by default.
        tensor: Tensor-parallel ranks.
        pipeline: Pipeline stages.
        context: Context-parallel ranks.
        context_exchange: How context-parallel ranks share keys and values; `ring` by default.
        expert: Ranks that share the experts of a layer.
        expert_tensor: Ranks that share every expert's matrices; those of `tensor` by default.
        expert_dispatch: How tokens reach their experts; as the program does by default.
        expert_overlap: Whether they do so while a pass of another micro-batch computes; as the
            program does by default.
        interleave: Virtual pipeline stages of a stage; 1 is plain 1F1B.
        schedule: Order of the passes of a pipeline stage; `1f1b` by default.
        micro_batch_size: Samples of one pass through a stage.
        sequence_parallel: Whether tensor-parallel ranks share norms, dropout and residuals too; as
            recipes of the program do by default.
        recompute: Activations that the backward pass recomputes.
        recompute_modules: Parts of a layer that selective recomputation repeats, joined by `+`.
        recompute_layers: Layers of each (virtual) stage that are recomputed; 0 for all.
        offload: What is kept in host memory instead of on the device.
        offload_layers: Layers of each (virtual) stage whose activations are offloaded; 0 for all.
        data_sharding: ZeRO stage of data parallelism; `zero3` is FSDP.
        sharding_degree: Ranks that share one copy of what is sharded; all replicas by default.
        reshard_after_forward: Whether `zero3` frees gathered parameters after a forward pass and
            gathers them again for its backward pass.
        no_sync: Whether sharded gradients are reduced after the last micro-batch, not after each.
        gradient_reduction_precision: Type of gradients in their sums; the program's by default.
        fp8_param_gather: Whether weights are kept and gathered in FP8; as the program does by
            default.
        launch: How kernels are launched; as the program does by default.
        program: Training programs; `dse list programs` has all.
    """

    platform: Platforms
    world_size: RankCounts
    global_batch_size: Counts
    link: LinkNames = [DEFAULT]
    network: NetworkNames = [DEFAULT]
    precision: Precisions | None = None
    tensor: RankCounts = [1]
    pipeline: RankCounts = [1]
    context: RankCounts = [1]
    context_exchange: ContextExchanges | None = None
    expert: RankCounts = [1]
    expert_tensor: RankCounts | None = None
    expert_dispatch: ExpertDispatches | None = None
    expert_overlap: Switches | None = None
    interleave: RankCounts = [1]
    schedule: Schedules | None = None
    micro_batch_size: Counts = [1]
    sequence_parallel: Switches | None = None
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
    fp8_param_gather: Switches | None = None
    launch: LaunchModes | None = None
    program: Annotated[
        Programs | None, Field(validation_alias=AliasChoices("program", "software"))
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
