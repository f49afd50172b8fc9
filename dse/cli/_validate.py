"""`dse validate`: run a study's best candidates for real, beside their predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import JsonOption

if TYPE_CHECKING:
    from rich.progress import Progress

    from dse._terminal import Console
    from dse.search import ValidationMode

_EXIT_FAILED = 1
_EXIT_INTERRUPTED = 130


def validate_command(
    study_dir: Annotated[Path, typer.Argument(metavar="STUDY_DIR", help="A study folder.")],
    top: Annotated[int, typer.Option("--top", min=0, help="How many of the best to run.")] = 5,
    random: Annotated[
        int, typer.Option("--random", min=0, help="How many other feasible ones to run.")
    ] = 0,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda; a GPU if there is one.")
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", help="Time for measuring, for example 2min or 90s.")
    ] = "2min",
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of choice, weights and batches.")
    ] = 0,
    mode: Annotated[
        str | None,
        typer.Option("--mode", help="real, rank-serial or scaled; by what is here if omitted."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks", min=1, help="Most ranks of a run; the GPUs or the cores if omitted."
        ),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option("--platform", help="Platform of this machine: name or YAML file."),
    ] = None,
    calibrated: Annotated[
        bool,
        typer.Option("--calibrated", help="Apply the factor of the study's earlier validation."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a study's best candidates for real and say how far its ranking can be trusted."""
    from dataclasses import replace

    from dse._terminal import Console
    from dse.errors import ConfigError
    from dse.report import render_validation, write_report
    from dse.search import load_study, validation_to_json
    from dse.validation import ValidateOptions, validate_study

    if top + random == 0:
        raise ConfigError("--top 0 --random 0: there is nothing to run; give at least one of them")
    options = ValidateOptions(
        top=top,
        random=random,
        device=device,
        mode=_mode(mode),
        ranks=ranks,
        platform=platform,
        budget_s=_budget_s(budget),
        seed=seed,
        calibrated=calibrated,
    )
    study = load_study(study_dir)
    messages = Console(stderr=True)
    with _progress(messages, quiet=as_json) as bar:
        task = bar.add_task("choosing candidates", total=1.0)
        validation = validate_study(
            study.result,
            options,
            lambda stage, share: bar.update(task, description=stage, completed=share),
        )
    study.directory.write_validation(validation)
    write_report(replace(study.result, validation=validation), study.directory.report)
    if as_json:
        typer.echo(validation_to_json(validation))
    else:
        render_validation(validation, Console())
    if validation.setting.interrupted:
        messages.print("interrupted; what was measured is kept", markup=False)
        raise typer.Exit(_EXIT_INTERRUPTED)
    if not validation.agreement.success:
        raise typer.Exit(_EXIT_FAILED)


def _progress(console: Console, *, quiet: bool) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


def _mode(name: str | None) -> ValidationMode | None:
    from dse.cli._problem import word_of
    from dse.search import ValidationMode

    return None if name is None else word_of(ValidationMode, name, "--mode")


def _budget_s(text: str) -> float:
    from dse.config import UnitKind, parse_quantity
    from dse.errors import ConfigError

    try:
        budget_s = parse_quantity(text, UnitKind.TIME)
    except ValueError as error:
        raise ConfigError(f"--budget: {error}") from error
    if budget_s <= 0:
        raise ConfigError(f"--budget: expected more than 0, for example 2min; found `{text}`")
    return budget_s
