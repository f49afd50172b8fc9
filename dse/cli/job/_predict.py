"""`dse predict`: one configuration, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._exit import ExitCode
from dse.cli._options import (
    DLRM,
    BatchOption,
    ForceOption,
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
    new_file,
)

if TYPE_CHECKING:
    from dse._terminal import Console

#: Headings of the help; the kind of model decides which options apply.
_TRANSFORMER = "Transformers"
_EXPLAINING = "Explaining"


def predict_command(
    model: ModelArgument,
    platform: PlatformOption,
    world_size: WorldSizeOption,
    global_batch_size: BatchOption,
    link: LinkOption = "",
    network: NetworkOption = "",
    precision: PrecisionOption = None,
    program: ProgramOption = "",
    changes: SetOption = None,
    basis: PriceBasisOption = None,
    provider: PriceProviderOption = "",
    force: ForceOption = False,
    as_json: JsonOption = False,
    plan: Annotated[
        str,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Plan file; found by search when left out.",
            rich_help_panel=DLRM,
        ),
    ] = "",
    launch: LaunchOption = None,
    train_pipeline: TrainPipelineOption = None,
    replicas: ReplicasOption = None,
    replica_placement: ReplicaPlacementOption = None,
    sync_interval: SyncIntervalOption = None,
    wire: WireOption = "",
    hot_rows: HotRowsOption = None,
    table_data_type: TableTypeOption = None,
    compute_kernels: KernelsOption = "",
    host_profile: Annotated[
        str,
        typer.Option(
            "--host-profile",
            metavar="FILE",
            help="Host overheads from traces, written by `dse trace overheads --out`.",
        ),
    ] = "",
    tensor: Annotated[
        int | None,
        typer.Option(
            "--tensor",
            metavar="N",
            min=1,
            help="Tensor-parallel ranks. Data parallelism takes the ranks that tensor, pipeline "
            "and context parallelism leave.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    pipeline: Annotated[
        int | None,
        typer.Option(
            "--pipeline", metavar="N", min=1, help="Pipeline stages.", rich_help_panel=_TRANSFORMER
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            metavar="N",
            min=1,
            help="Context-parallel ranks.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    context_exchange: Annotated[
        Literal["ring", "all_gather", "ulysses"] | None,
        typer.Option(
            "--context-exchange",
            metavar="HOW",
            help="How context-parallel ranks share keys and values: ring (the default), "
            "all_gather or ulysses.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    expert: Annotated[
        int | None,
        typer.Option(
            "--expert",
            metavar="N",
            min=1,
            help="Ranks that share the experts of a layer.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    expert_tensor: Annotated[
        int | None,
        typer.Option(
            "--expert-tensor",
            metavar="N",
            min=1,
            help="Ranks that share every expert's matrices; those of --tensor by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    expert_dispatch: Annotated[
        Literal["alltoall", "allgather", "deduplicated"] | None,
        typer.Option(
            "--expert-dispatch",
            metavar="HOW",
            help="How tokens reach their experts: alltoall, allgather or deduplicated; as the "
            "program does by default.",
            show_default=False,
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    interleave: Annotated[
        int | None,
        typer.Option(
            "--interleave",
            "--virtual-pipeline-stages",
            metavar="N",
            min=1,
            help="Virtual pipeline stages of a stage; 1 is plain 1F1B.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    schedule: Annotated[
        Literal["1f1b", "gpipe", "zero_bubble"] | None,
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="Order of the passes of a stage: 1f1b (the default), gpipe or zero_bubble.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
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
            metavar="N",
            min=1,
            help="Samples of one pass through a stage; 1 by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    recompute: Annotated[
        Literal["none", "selective", "full"] | None,
        typer.Option(
            "--recompute",
            metavar="WHAT",
            help="Activations that the backward pass recomputes: none, selective or full.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
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
            metavar="N",
            min=0,
            help="Layers of each (virtual) stage that are recomputed; all by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    offload: Annotated[
        Literal["none", "activations", "optimizer", "all"] | None,
        typer.Option(
            "--offload",
            metavar="WHAT",
            help="What is kept in host memory: none, activations, optimizer or all.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    offload_layers: Annotated[
        int | None,
        typer.Option(
            "--offload-layers",
            metavar="N",
            min=0,
            help="Layers of each (virtual) stage whose activations are offloaded; all by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    data_sharding: Annotated[
        Literal["none", "zero1", "zero2", "zero3"] | None,
        typer.Option(
            "--data-sharding",
            "--zero-stage",
            metavar="STAGE",
            help="ZeRO stage of data parallelism: none, zero1, zero2 or zero3, which is FSDP.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    sharding_degree: Annotated[
        int | None,
        typer.Option(
            "--sharding-degree",
            metavar="N",
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
        Literal["bf16", "fp32"] | None,
        typer.Option(
            "--gradient-reduction-precision",
            metavar="TYPE",
            help="Type of gradients in their sums: bf16 or fp32; the program's by default.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
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
            metavar="KEY=VALUE,…",
            help="Compare with a second configuration: what differs from the first, with the "
            "names of the options as keys (platform=h200_sxm,world_size=16), or a YAML or JSON "
            "file of them. plan=search finds a plan, plan=same keeps the first one's.",
            rich_help_panel=_EXPLAINING,
        ),
    ] = "",
) -> None:
    """Predict iteration time, cost and memory of one configuration.

    The kind of model decides which options apply: sharding plans are for recommendation models,
    degrees of parallelism for transformers. Exit code 1 means that the job does not fit.
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
        price_basis=basis,
        price_provider=provider,
        overrides=tuple(changes or ()),
    )
    # Checked before anything is computed.
    new_file("--timeline", timeline, force=force)
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
    if not answer.prediction.feasible:
        raise typer.Exit(ExitCode.FAILED)
