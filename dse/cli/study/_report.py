"""`dse report`: the page of a study."""

from __future__ import annotations

from typing import Annotated

import typer

from dse.cli._options import StudyArgument


def report_command(
    study_dir: StudyArgument,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write report.html of a study again, and open it on request."""
    from dse.report import write_report
    from dse.search import load_study

    study = load_study(study_dir)
    path = study.directory.report
    write_report(study.result, path)
    typer.echo(str(path))
    if show:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
