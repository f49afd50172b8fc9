"""`dse predict`: one configuration, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import (
    BatchOption,
    HotRowsOption,
    JsonOption,
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
    TimelineOption,
    TrainPipelineOption,
    WireOption,
    WorldSizeOption,
    joined,
    price_basis,
)

if TYPE_CHECKING:
    from dse._terminal import Console

#: Headings of the help; the kind of model decides which options apply.
_DLRM = "Recommendation models"
_TRANSFORMER = "Transformers"
_EXPLAINING = "Explaining"


def predict_command(
    model: ModelArgument,
    platform: PlatformOption,
    world_size: WorldSizeOption,
    global_batch_size: BatchOption,
    link: LinkOption = "",
    network: NetworkOption = "",
    precision: PrecisionOption = "",
    program: ProgramOption = "",
    changes: SetOption = None,
    basis: PriceBasisOption = "",
    provider: PriceProviderOption = "",
    as_json: JsonOption = False,
    plan: Annotated[
        str,
        typer.Option(
            "--plan", help="Plan file; found by search when left out.", rich_help_panel=_DLRM
        ),
    ] = "",
    launch: LaunchOption = "",
    train_pipeline: TrainPipelineOption = "",
    replicas: ReplicasOption = None,
    replica_placement: ReplicaPlacementOption = "",
    sync_interval: SyncIntervalOption = None,
    wire: WireOption = "",
    hot_rows: HotRowsOption = None,
    table_data_type: TableTypeOption = "",
    compute_kernels: KernelsOption = "",
    host_profile: Annotated[
        str,
        typer.Option(
            "--host-profile",
            help="Host overheads from traces, written by `dse trace overheads --out`.",
        ),
    ] = "",
    tensor: Annotated[
        int | None,
        typer.Option(
            "--tensor",
            min=1,
            help="Tensor-parallel ranks. Data parallelism takes the ranks that tensor, pipeline "
            "and context parallelism leave.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    pipeline: Annotated[
        int | None,
        typer.Option("--pipeline", min=1, help="Pipeline stages.", rich_help_panel=_TRANSFORMER),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context", min=1, help="Context-parallel ranks.", rich_help_panel=_TRANSFORMER
        ),
    ] = None,
    context_exchange: Annotated[
        str,
        typer.Option(
            "--context-exchange",
            metavar="ring|all_gather|ulysses",
            help="How context-parallel ranks share keys and values; ring by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    expert: Annotated[
        int | None,
        typer.Option(
            "--expert",
            min=1,
            help="Ranks that share the experts of a layer.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    expert_tensor: Annotated[
        int | None,
        typer.Option(
            "--expert-tensor",
            min=1,
            help="Ranks that share every expert's matrices; those of --tensor by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    expert_dispatch: Annotated[
        str,
        typer.Option(
            "--expert-dispatch",
            metavar="alltoall|allgather|deduplicated",
            help="How tokens reach their experts; as the program does by default.",
            show_default=False,
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    interleave: Annotated[
        int | None,
        typer.Option(
            "--interleave",
            "--virtual-pipeline-stages",
            min=1,
            help="Virtual pipeline stages of a stage; 1 is plain 1F1B.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            metavar="1f1b|gpipe|zero_bubble",
            help="Order of the passes of a pipeline stage; 1f1b by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    sequence_parallel: Annotated[
        bool | None,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel",
            help="Tensor-parallel ranks share norms, dropout and residuals too.",
            show_default=False,
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    micro_batch_size: Annotated[
        int | None,
        typer.Option(
            "--micro-batch-size",
            min=1,
            help="Samples of one pass through a stage; 1 by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    recompute: Annotated[
        str,
        typer.Option(
            "--recompute",
            metavar="none|selective|full",
            help="Activations that the backward pass recomputes.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    recompute_modules: Annotated[
        str,
        typer.Option(
            "--recompute-modules",
            metavar="MODULE+…",
            help="Parts of a layer that selective recomputation repeats: core_attn (the default), "
            "mla_up_proj, layernorm, mlp, moe, moe_act.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    recompute_layers: Annotated[
        int | None,
        typer.Option(
            "--recompute-layers",
            "--recompute-num-layers",
            min=0,
            help="Layers of each (virtual) stage that are recomputed; all by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    offload: Annotated[
        str,
        typer.Option(
            "--offload",
            metavar="none|activations|optimizer|all",
            help="What is kept in host memory instead of on the device.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    offload_layers: Annotated[
        int | None,
        typer.Option(
            "--offload-layers",
            min=0,
            help="Layers of each (virtual) stage whose activations are offloaded; all by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    data_sharding: Annotated[
        str,
        typer.Option(
            "--data-sharding",
            "--zero-stage",
            metavar="none|zero1|zero2|zero3",
            help="ZeRO stage of data parallelism; zero3 is FSDP.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    sharding_degree: Annotated[
        int | None,
        typer.Option(
            "--sharding-degree",
            min=1,
            help="Ranks that share one copy of what is sharded; others keep copies (HSDP). All by "
            "default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    reshard_after_forward: Annotated[
        bool | None,
        typer.Option(
            "--reshard-after-forward/--no-reshard-after-forward",
            help="Gathered parameters are freed after a forward pass and gathered again for its "
            "backward pass (zero3); the default.",
            show_default=False,
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    no_sync: Annotated[
        bool | None,
        typer.Option(
            "--no-sync/--sync",
            help="Sharded gradients are reduced after the last micro-batch, not after each.",
            show_default=False,
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    gradient_reduction_precision: Annotated[
        str,
        typer.Option(
            "--gradient-reduction-precision",
            metavar="bf16|fp32",
            help="Type of gradients in their sums; the program's by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show what binds the iteration: the critical path by operator and resource, the "
            "time of each rank, and the effect of faster hardware.",
            rich_help_panel=_EXPLAINING,
        ),
    ] = False,
    timeline: TimelineOption = None,
    versus: Annotated[
        str,
        typer.Option(
            "--versus",
            metavar="KEY=VALUE,…|FILE",
            help="Compare with a second configuration: what differs from the first, with the "
            "names of the options as keys (platform=h200_sxm,world_size=16), or a YAML or JSON "
            "file of them. plan=search finds a plan, plan=same keeps the first one's.",
            rich_help_panel=_EXPLAINING,
        ),
    ] = "",
) -> None:
    """Predict iteration time, cost and memory of one configuration.

    The kind of model decides which options apply: sharding plans are for recommendation models,
    degrees of parallelism for transformers.
    """
    from dataclasses import replace

    from dse.cli._output import emit, fields_of
    from dse.cli.job._predictions import predicted
    from dse.cli.job._request import Request
    from dse.cli.job._versus import changed
    from dse.report.console import line
    from dse.report.terminal import print_difference, print_explanation, print_prediction

    request = Request(
        model=model,
        platform=platform,
        world_size=world_size,
        global_batch_size=global_batch_size,
        link=link,
        network=network,
        precision=precision,
        program=program,
        plan=plan,
        launch=launch,
        train_pipeline=train_pipeline,
        replicas=replicas,
        replica_placement=replica_placement,
        sync_interval=sync_interval,
        communication_precision=wire,
        hot_rows=hot_rows,
        table_data_type=table_data_type,
        compute_kernels=joined(compute_kernels),
        host_profile=host_profile,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        context_exchange=context_exchange,
        expert=expert,
        expert_tensor=expert_tensor,
        expert_dispatch=expert_dispatch,
        interleave=interleave,
        schedule=schedule,
        sequence_parallel=sequence_parallel,
        micro_batch_size=micro_batch_size,
        recompute=recompute,
        recompute_modules=recompute_modules,
        recompute_layers=recompute_layers,
        offload=offload,
        offload_layers=offload_layers,
        data_sharding=data_sharding,
        sharding_degree=sharding_degree,
        reshard_after_forward=reshard_after_forward,
        no_sync=no_sync,
        gradient_reduction_precision=gradient_reduction_precision,
        price_basis=price_basis(basis) if basis else "",
        price_provider=provider,
        overrides=tuple(changes or ()),
    )
    # Checked before anything is computed.
    other, differences = changed(request, versus) if versus else (None, ())
    answer = predicted(request, beside=other)
    document = answer.document() if as_json else {}
    if explain:
        document["explanation"] = {
            **fields_of(answer.explanation),
            "tasks": [fields_of(task, stream="lane") for task in answer.explanation.tasks],
        }
    second = None if other is None else predicted(other, answer, request)
    if second is not None:
        paired, difference = answer.paired(second), answer.difference(second)
        document["versus"] = {
            "changes": differences,
            **(second.document() if as_json else {}),
            "throughput_ratio": paired,
            "difference": fields_of(difference, "change_s"),
        }
    if timeline is not None:
        answer.write_timeline(timeline)

    def show(console: Console) -> None:
        print_prediction(answer.view, console)
        if explain:
            console.print()
            print_explanation(answer.explanation, console, answer.view.place)
        if second is not None:
            title = f"B: {', '.join(differences)}"
            views = (replace(answer.view, title="A"), replace(second.view, title=title))
            print_difference(views, paired, difference, console)
        if timeline is not None:
            line(console, f"time line: {timeline}")

    emit(document, show, as_json=as_json)
