"""`dse predict`: one configuration, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import (
    BatchOption,
    JsonOption,
    LinkOption,
    ModelArgument,
    NetworkOption,
    PlatformOption,
    PrecisionOption,
)

if TYPE_CHECKING:
    from dse.cli._predicted import Predicted
    from dse.cli._versus import Asked
    from dse.explanation import Explanation

#: Headings of the help; which options apply follows from the model's kind.
_DLRM = "Recommendation models"
_TRANSFORMER = "Transformers"
_EXPLAINING = "Explaining"


def predict_command(
    model: ModelArgument,
    platform: PlatformOption,
    world_size: Annotated[int, typer.Option("--world-size", min=1, help="Number of ranks.")],
    global_batch_size: BatchOption,
    link: LinkOption = "",
    network: NetworkOption = "",
    precision: PrecisionOption = "",
    as_json: JsonOption = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan", help="Plan file; found by search when left out.", rich_help_panel=_DLRM
        ),
    ] = None,
    launch: Annotated[
        str,
        typer.Option(
            "--launch",
            help="eager or cuda_graphs; the software profile's own, or eager, by default.",
            rich_help_panel=_DLRM,
        ),
    ] = "",
    host_profile: Annotated[
        Path | None,
        typer.Option(
            "--host-profile",
            help="Host overheads from traces, written by `dse trace overheads --out`.",
            rich_help_panel=_DLRM,
        ),
    ] = None,
    software_profile: Annotated[
        str,
        typer.Option(
            "--software-profile",
            help="Training program: torchrec, deeplearningexamples, hugectr, …; without one, a "
            "loop with nothing but the kernels of the model.",
            rich_help_panel=_DLRM,
        ),
    ] = "",
    tensor: Annotated[
        int | None,
        typer.Option(
            "--tensor",
            min=1,
            help="Ranks that share every matrix. Data parallelism takes the ranks that tensor, "
            "pipeline and context parallelism leave.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    pipeline: Annotated[
        int | None,
        typer.Option("--pipeline", min=1, help="Stages.", rich_help_panel=_TRANSFORMER),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            min=1,
            help="Ranks that share every sequence.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = None,
    interleave: Annotated[
        int | None,
        typer.Option(
            "--interleave",
            min=1,
            help="Chunks of layers of a stage; 1 is plain 1F1B.",
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
            help="What the backward pass computes again.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    data_sharding: Annotated[
        str,
        typer.Option(
            "--data-sharding",
            metavar="none|zero1|zero2|zero3",
            help="What data-parallel ranks keep only a part of; zero3 is FSDP.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    software: Annotated[
        str,
        typer.Option(
            "--software",
            metavar="default|megatron|composer",
            help="Training program.",
            rich_help_panel=_TRANSFORMER,
        ),
    ] = "",
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Say what binds the iteration: the critical path by operator and resource, the "
            "time of each rank, and what faster hardware would bring.",
            rich_help_panel=_EXPLAINING,
        ),
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            metavar="FILE",
            help="Write the predicted iteration for ui.perfetto.dev or chrome://tracing; "
            "compressed if the name ends in .gz.",
            rich_help_panel=_EXPLAINING,
        ),
    ] = None,
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

    The model's kind decides which options apply: sharding plans are for recommendation models,
    degrees of parallelism for transformers.
    """
    from dse.cli._versus import Asked, changed
    from dse.model import TransformerModel, load_model

    asked = Asked(
        model=model,
        platform=platform,
        world_size=world_size,
        global_batch_size=global_batch_size,
        link=link,
        network=network,
        precision=precision,
        plan=str(plan) if plan else "",
        launch=launch,
        host_profile=str(host_profile) if host_profile else "",
        software_profile=software_profile,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        interleave=interleave,
        sequence_parallel=sequence_parallel,
        micro_batch_size=micro_batch_size,
        recompute=recompute,
        data_sharding=data_sharding,
        software=software,
    )
    # The words are checked before anything is computed.
    other = changed(asked, versus) if versus else None
    kind = load_model(asked.model)
    asked.check_kind(kind)
    if isinstance(kind, TransformerModel):
        from dse.cli._predict_step import run_predict_step

        run_predict_step(asked, other, explain=explain, timeline=timeline, as_json=as_json)
    else:
        _run_predict_plan(asked, other, explain=explain, timeline=timeline, as_json=as_json)


def _run_predict_plan(
    asked: Asked,
    other: tuple[Asked, tuple[str, ...]] | None,
    *,
    explain: bool,
    timeline: Path | None,
    as_json: bool,
) -> None:
    """Predicts, explains and compares an iteration of a recommendation model, and prints it."""
    import json

    from dse.cli._predicted import predicted

    answer = predicted(asked)
    if timeline is not None:
        _write_timeline(answer, timeline)
    explanation = _explanation(answer) if explain else None
    if other is not None:
        from dse.cli._compare import Compared

        compared = Compared(answer, predicted(other[0], answer), other[1])
        if as_json:
            document = _document(answer, explanation) | {"versus": compared.document()}
            typer.echo(json.dumps(document, indent=1))
            return
        _render(answer, explanation)
        compared.render()
    elif as_json:
        typer.echo(json.dumps(_document(answer, explanation), indent=1))
        return
    else:
        _render(answer, explanation)
    if timeline is not None:
        typer.echo(f"time line: {timeline}")


def _explanation(answer: Predicted) -> Explanation:
    from dse.workload import explain_job
    from dse.workload.dlrm import DlrmJob

    return explain_job(DlrmJob.scored(answer.scorer, answer.plan))


def _document(answer: Predicted, explanation: Explanation | None) -> dict[str, object]:
    """Returns the fields of the public contract."""
    from dataclasses import asdict

    return answer.document() | (
        {} if explanation is None else {"explanation": asdict(explanation)}
    )


def _render(answer: Predicted, explanation: Explanation | None) -> None:
    from dse._terminal import Console
    from dse.report import render_explanation, render_prediction

    console, asked, profile = Console(), answer.asked, answer.profile
    console.print(
        f"{answer.model.name} on {asked.world_size} × {answer.platform.device.name}, "
        f"global batch {asked.global_batch_size:,}, plan: {answer.planner}",
        markup=False,
        highlight=False,
    )
    render_prediction(answer.prediction, console)
    measured = (
        f"measured, profile {profile.name} ({asked.host_profile})"
        if profile
        else f"platform {answer.platform.name}"
    )
    console.print(f"host overheads: {measured}", markup=False, highlight=False)
    if asked.software_profile:
        console.print(f"software: {asked.software_profile}", markup=False, highlight=False)
    if explanation is not None:
        console.print()
        render_explanation(explanation, console)


def _write_timeline(answer: Predicted, path: Path) -> None:
    from dse.report import write_timeline
    from dse.simulate import critical_path, simulate
    from dse.workload import task_details
    from dse.workload.dlrm import DlrmJob

    attributed = DlrmJob.scored(answer.scorer, answer.plan).attributed()
    simulated = simulate(attributed.graph)
    asked = answer.asked
    write_timeline(
        simulated,
        path,
        critical=critical_path(simulated),
        title=f"{answer.model.name} on {asked.world_size} × {answer.platform.device.name}, "
        f"global batch {asked.global_batch_size}, predicted",
        details=task_details(attributed),
        meeting_arrows=True,
    )
