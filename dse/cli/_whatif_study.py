"""`dse whatif`: a finished study under other prices and machines, without searching again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import JsonOption

if TYPE_CHECKING:
    from dse.search import Rescored, StudyResult, TrialRecord

_EXIT_NOTHING_FEASIBLE = 1


def whatif_command(
    study_dir: Annotated[Path, typer.Argument(metavar="STUDY_DIR", help="A study folder.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="A figure of the platforms by its name in their YAML, and what becomes of it: "
            "platform.h100_sxm.price=40USD/h, link.bandwidth=+20%, device.memory.bandwidth=*1.5, "
            "network.latency=3us; may be repeated.",
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="Rows of the front that are printed.")
    ] = 15,
    replan: Annotated[
        int,
        typer.Option("--replan", min=0, help="Search new plans for this many of the best."),
    ] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Workers.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the changed study with its report into a new folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score a finished study again under other prices, links, memories; plans are kept.

    For changes of a captured trace there is `dse trace whatif`.
    """
    import json

    from dse._terminal import Console
    from dse.cli._patient import patient_progress
    from dse.errors import ConfigError
    from dse.report import print_rescored, write_report
    from dse.search import load_study, rescore, write_rescored

    if not changes:
        raise ConfigError(
            "nothing to change: give --set PATH=VALUE, such as --set link.bandwidth=+20%"
        )
    study = load_study(study_dir)
    with patient_progress("scoring again", quiet=as_json) as progress:
        rescored = rescore(study.result, changes, replan=replan, jobs=jobs, progress=progress)
    report = None
    if out is not None:
        with patient_progress("writing", quiet=as_json) as progress:
            written = write_rescored(rescored, study.directory, out, progress=progress)
        report = written.directory.report
        write_report(written.result, report)
    if as_json:
        typer.echo(json.dumps(_document(rescored, report), indent=1))
    else:
        console = Console()
        print_rescored(rescored, console, top=top)
        if report is not None:
            console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)
    if not rescored.after.front:
        raise typer.Exit(_EXIT_NOTHING_FEASIBLE)


def _document(rescored: Rescored, report: Path | None) -> dict[str, object]:
    from dataclasses import asdict

    from dse.search import best_moves, front_moves

    before, after = rescored.before, rescored.after
    names = [axis.metric.value for axis in before.objectives]
    return {
        "study": before.name,
        "changes": [change.text for change in rescored.changes],
        "figures": [asdict(figure) for figure in rescored.figures],
        "candidates": {
            "kept": rescored.kept,
            "repriced": rescored.repriced,
            "simulated": rescored.simulated,
            "newly_allowed": rescored.newly_allowed,
        },
        "plans": "kept",
        "searched_again": [
            {"number": number, "better": better} for number, better in rescored.searched
        ],
        "front": [
            {
                "number": move.number,
                "rank_before": move.rank_before,
                "rank_after": move.rank_after,
                "before": dict(zip(names, map(_number, move.values_before), strict=False)),
                "after": dict(zip(names, map(_number, move.values_after), strict=False)),
                "reason": move.reason,
            }
            for move in front_moves(before, after)
        ],
        "best": [
            {
                "metric": move.metric.value,
                "number_before": move.number_before,
                "before": _number(move.value_before),
                "number_after": move.number_after,
                "after": _number(move.value_after),
                "change": _number(move.change),
            }
            for move in best_moves(before, after)
        ],
        "feasible_before": _feasible(before),
        "feasible_after": _feasible(after),
        "conclusion": after.conclusion,
        "report": None if report is None else str(report),
    }


def _feasible(study: StudyResult) -> int:
    return sum(map(_is_feasible, study.records))


def _is_feasible(record: TrialRecord) -> bool:
    return record.status.value == "feasible"


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if value == value else None
