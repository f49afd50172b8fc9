"""Options that describe a job; commands take all or some of them."""

from __future__ import annotations

from functools import wraps
import inspect
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer

from dse.cli._options import (
    DLRM,
    BatchOption,
    HostProfileOption,
    HotRowsOption,
    KernelsOption,
    LaunchOption,
    LinkOption,
    ModelArgument,
    NetworkOption,
    PlatformOption,
    PrecisionOption,
    PriceBasisOption,
    PriceProviderOption,
    ProgramOption,
    ReplicaPlacementOption,
    ReplicasOption,
    SetOption,
    SyncIntervalOption,
    TableTypeOption,
    TrainPipelineOption,
    WireOption,
    WorldSizeOption,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def _transformer(text: str, *names: str, metavar: str | None = "N", **more: Any) -> Any:
    """Returns an option under the heading of transformers."""
    panel = "Transformers"
    return typer.Option(
        *names, metavar=metavar, help=text, show_default=False, rich_help_panel=panel, **more
    )


#: Options of transformers, by the names of their parameters.
TRANSFORMER_OPTIONS: dict[str, Any] = {
    "tensor": Annotated[
        int | None,
        _transformer(
            "Tensor-parallel ranks. Data parallelism takes the ranks that tensor, pipeline and "
            "context parallelism leave.",
            min=1,
        ),
    ],
    "pipeline": Annotated[int | None, _transformer("Pipeline stages.", min=1)],
    "context": Annotated[int | None, _transformer("Context-parallel ranks.", min=1)],
    "context_exchange": Annotated[
        Literal["ring", "all_gather", "ulysses"] | None,
        _transformer(
            "How context-parallel ranks share keys and values: ring (the default), all_gather or "
            "ulysses.",
            metavar="HOW",
        ),
    ],
    "expert": Annotated[
        int | None, _transformer("Ranks that share the experts of a layer.", min=1)
    ],
    "expert_tensor": Annotated[
        int | None,
        _transformer(
            "Ranks that share every expert's matrices; those of --tensor by default.", min=1
        ),
    ],
    "expert_dispatch": Annotated[
        Literal["alltoall", "allgather", "deduplicated"] | None,
        _transformer(
            "How tokens reach their experts: alltoall, allgather or deduplicated; as the program "
            "does by default.",
            metavar="HOW",
        ),
    ],
    "expert_overlap": Annotated[
        bool | None,
        _transformer(
            "Tokens travel to their experts and back while a pass of another micro-batch "
            "computes; as the program does by default.",
            "--expert-overlap/--no-expert-overlap",
            metavar=None,
        ),
    ],
    "interleave": Annotated[
        int | None,
        _transformer(
            "Virtual stages of each pipeline stage; 1 is plain 1F1B.",
            *("--interleave", "--virtual-pipeline-stages"),
            min=1,
        ),
    ],
    "schedule": Annotated[
        Literal["1f1b", "gpipe", "zero_bubble"] | None,
        _transformer(
            "Order of the passes of a stage: 1f1b (the default), gpipe or zero_bubble.",
            metavar="NAME",
        ),
    ],
    "sequence_parallel": Annotated[
        bool | None,
        _transformer(
            "Tensor-parallel ranks share norms, dropout and residuals too; as the program's "
            "recipes do by default.",
            "--sequence-parallel/--no-sequence-parallel",
            metavar=None,
        ),
    ],
    "micro_batch_size": Annotated[
        int | None,
        _transformer("Samples of one pass through a stage; 1 by default.", min=1),
    ],
    "recompute": Annotated[
        Literal["none", "selective", "full"] | None,
        _transformer(
            "Activations that the backward pass recomputes: none, selective or full.",
            metavar="WHAT",
        ),
    ],
    "recompute_modules": Annotated[
        str,
        _transformer(
            "Parts of a layer that selective recomputation repeats: core_attn (the default), "
            "mla_up_proj, layernorm, mlp, moe, moe_act, joined by +; or torchtitan's op.",
            metavar="MODULE+…",
        ),
    ],
    "recompute_layers": Annotated[
        int | None,
        _transformer("Layers of each (virtual) stage that are recomputed; all by default.", min=0),
    ],
    "offload": Annotated[
        Literal["none", "activations", "optimizer", "all"] | None,
        _transformer(
            "What is kept in host memory: none, activations, optimizer or all.", metavar="WHAT"
        ),
    ],
    "offload_layers": Annotated[
        int | None,
        _transformer(
            "Layers of each (virtual) stage whose activations are offloaded; all by default.",
            min=0,
        ),
    ],
    "data_sharding": Annotated[
        Literal["none", "zero1", "zero2", "zero3"] | None,
        _transformer(
            "ZeRO stage of data parallelism: none, zero1, zero2 or zero3, which is FSDP.",
            *("--data-sharding", "--zero-stage"),
            metavar="STAGE",
        ),
    ],
    "sharding_degree": Annotated[
        int | None,
        _transformer(
            "Ranks that share one copy of what is sharded; others keep copies (HSDP). All by "
            "default.",
            min=1,
        ),
    ],
    "reshard_after_forward": Annotated[
        bool | None,
        _transformer(
            "Gathered parameters are freed after a forward pass and gathered again for its "
            "backward pass (zero3); the default.",
            "--reshard-after-forward/--no-reshard-after-forward",
            metavar=None,
        ),
    ],
    "no_sync": Annotated[
        bool | None,
        _transformer(
            "Sharded gradients are reduced after the last micro-batch, not after each.",
            "--no-sync/--sync",
            metavar=None,
        ),
    ],
    "gradient_reduction_precision": Annotated[
        Literal["bf16", "fp32"] | None,
        _transformer(
            "Type of gradients in their sums: bf16 or fp32; the program's by default.",
            metavar="TYPE",
        ),
    ],
    "fp8_param_gather": Annotated[
        bool | None,
        _transformer(
            "Weights are kept and gathered in FP8, not in BF16 as well; as the program does by "
            "default.",
            "--fp8-param-gather/--no-fp8-param-gather",
            metavar=None,
        ),
    ],
}

#: Every option, by the name of the parameter of workloads, or else of the field of a request.
JOB_OPTIONS: dict[str, Any] = {
    "model": ModelArgument,
    "platform": PlatformOption,
    "world_size": WorldSizeOption,
    "global_batch_size": BatchOption,
    "link": LinkOption,
    "network": NetworkOption,
    "precision": PrecisionOption,
    "program": ProgramOption,
    "plan": Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Plan file; if omitted, a plan is searched for.",
            rich_help_panel=DLRM,
        ),
    ],
    "launch": LaunchOption,
    "train_pipeline": TrainPipelineOption,
    "replicas": ReplicasOption,
    "replica_placement": ReplicaPlacementOption,
    "sync_interval": SyncIntervalOption,
    "communication_precision": WireOption,
    "hot_rows": HotRowsOption,
    "table_data_type": TableTypeOption,
    "compute_kernels": KernelsOption,
    **TRANSFORMER_OPTIONS,
    "overrides": SetOption,
    "host_profile": HostProfileOption,
    "price_basis": PriceBasisOption,
    "price_provider": PriceProviderOption,
}

_REQUIRED = ("model", "platform", "world_size", "global_batch_size")


def kinds_of(option: str) -> tuple[type, ...]:
    """Returns the types of an option's value."""
    kind = get_args(JOB_OPTIONS[option])[0]
    return (kind, *get_args(kind))


def least_of(option: str) -> float:
    """Returns the least value of an option that is a number."""
    least: float = get_args(JOB_OPTIONS[option])[1].min
    return least


def describes_job(
    without: Collection[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes the `request` that a command takes out of options.

    Args:
        without: Those of :data:`JOB_OPTIONS` that the command does not have.
    """
    names = [name for name in JOB_OPTIONS if name not in without]

    def parameter(name: str) -> inspect.Parameter:
        default = "" if str in kinds_of(name)[:1] else None
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if name in _REQUIRED else default,
            annotation=JOB_OPTIONS[name],
        )

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, localns={"Request": object}, include_extras=True)
        options: list[inspect.Parameter] = []
        for own in inspect.signature(command).parameters.values():
            if own.name == "request":
                options += map(parameter, names)
            else:
                kind = inspect.Parameter.KEYWORD_ONLY
                options.append(own.replace(kind=kind, annotation=hints[own.name]))

        @wraps(command)
        def run(**values: Any) -> None:
            from dse.cli.job._request import Request

            request = Request.of({name: values.pop(name) for name in names})
            command(request=request, **values)

        run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in options}
        return run

    return decorated
