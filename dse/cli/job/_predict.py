"""`dse predict`: one configuration, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._exit import ExitCode
from dse.cli._options import ForceOption, JsonOption, TimelineOption, new_file
from dse.cli.job._options import describes_job

if TYPE_CHECKING:
    from dse._text.terminal import Console
    from dse.cli.job._request import Request

_EXPLAINING = "Explaining"


@describes_job()
def predict_command(
    request: Request,
    force: ForceOption = False,
    as_json: JsonOption = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show what limits the iteration: the critical path by operator and resource, the "
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
    from dse.cli._progress import progress
    from dse.cli.job._predictions import predicted
    from dse.cli.job._versus import changed
    from dse.report.console import line
    from dse.report.terminal import print_difference, print_explanation, print_prediction

    # Checked before anything is computed.
    new_file("--timeline", timeline, force=force)
    other, differences = changed(request, versus) if versus else (None, ())
    with progress("predicting", quiet=as_json):
        answer = predicted(request, beside=other)
    document = answer.document() if as_json else {}
    if explain:
        document["explanation"] = {
            **fields_of(answer.explanation),
            "tasks": [fields_of(task, stream="lane") for task in answer.explanation.tasks],
        }
    second = None
    if other is not None:
        with progress("predicting the other one", quiet=as_json):
            second = predicted(other, answer, request)
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
