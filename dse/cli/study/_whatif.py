"""`dse whatif`: a finished study under other prices and machines, without searching again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._exit import ExitCode
from dse.cli._options import (
    HostProfileOption,
    JobsOption,
    JsonOption,
    SetOption,
    StudyArgument,
    folder_of,
    with_host_profile,
)

if TYPE_CHECKING:
    from dse._text.terminal import Console
    from dse.search import StudyResult
    from dse.search.revise import Revision


def whatif_command(
    study_dir: StudyArgument,
    changes: SetOption = None,
    host_profile: HostProfileOption = "",
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Rows of the front that are printed.")
    ] = 15,
    replan: Annotated[
        int,
        typer.Option(
            "--replan", metavar="N", min=0, help="Search new plans for this many of the best."
        ),
    ] = 0,
    jobs: JobsOption = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=folder_of,
            metavar="DIR",
            help="Write the changed study with its report into a new folder.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score a finished study again with other prices, links or memory; plans are kept.

    To change a captured step, use `dse trace whatif`.
    """
    from dse.cli._output import emit
    from dse.cli._progress import progress
    from dse.errors import ConfigError
    from dse.report import write_report
    from dse.report.console import line
    from dse.report.terminal.studies import print_revision
    from dse.search import load_study
    from dse.search.revise import revise_study, write_revision

    overrides = with_host_profile(changes, host_profile)
    if not overrides:
        raise ConfigError(
            "nothing to change: give --set PATH=VALUE, such as --set link.bandwidth=+20%"
        )
    study = load_study(study_dir)
    with progress("scoring again", quiet=as_json) as display:
        revision = revise_study(
            study.result, overrides, replan=replan, jobs=jobs, progress=display
        )
    report = None
    if out is not None:
        with progress("writing", quiet=as_json) as display:
            written = write_revision(revision, study.directory, out, progress=display)
        report = written.directory.report
        write_report(written.result, report)

    def show(console: Console) -> None:
        print_revision(revision, console, top=top)
        if report is not None:
            line(console, f"report: {report}")

    emit(_document(revision, report), show, as_json=as_json)
    if not revision.after.front:
        raise typer.Exit(ExitCode.FAILED)


def _document(revision: Revision, report: Path | None) -> dict[str, object]:
    from dse.search.analyse import best_moves, conclude, front_moves

    before, after = revision.before, revision.after
    names = [axis.metric for axis in before.objectives]
    return {
        "study": before.name,
        "changes": [change.text for change in revision.overrides],
        "figures": revision.figures,
        "candidates": {
            "kept": revision.kept,
            "repriced": revision.repriced,
            "simulated": revision.simulated,
            "newly_allowed": revision.newly_allowed,
        },
        "plans": "kept",
        "searched_again": [
            {"number": number, "better": better} for number, better in revision.searched
        ],
        "front": [
            {
                "number": move.number,
                "rank_before": move.rank_before,
                "rank_after": move.rank_after,
                "before": dict(zip(names, move.values_before, strict=False)),
                "after": dict(zip(names, move.values_after, strict=False)),
                "reason": move.reason,
            }
            for move in front_moves(before, after)
        ],
        "best": [
            {
                "metric": move.metric,
                "number_before": move.number_before,
                "before": move.value_before,
                "number_after": move.number_after,
                "after": move.value_after,
                "change": move.change,
            }
            for move in best_moves(before, after)
        ],
        "feasible_before": _feasible(before),
        "feasible_after": _feasible(after),
        "conclusion": conclude(after),
        "report": report,
    }


def _feasible(study: StudyResult) -> int:
    return sum(record.status.value == "feasible" for record in study.records)
