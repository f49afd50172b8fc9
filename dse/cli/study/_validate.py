"""`dse validate`: real runs of a study's best candidates."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dse.cli._complete import platforms
from dse.cli._exit import ExitCode
from dse.cli._options import DeviceName, JsonOption, SeedOption, StudyArgument, quantity


def validate_command(
    study_dir: StudyArgument,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=0, help="How many of the best to run.")
    ] = 5,
    random: Annotated[
        int,
        typer.Option("--random", metavar="N", min=0, help="How many other feasible ones to run."),
    ] = 0,
    trainer: Annotated[
        str | None,
        typer.Option(
            "--trainer",
            metavar="NAME",
            help="What trains: reference (the default) or torchrec for recommendation models, "
            "pytorch for transformers.",
        ),
    ] = None,
    device: Annotated[
        DeviceName | None,
        typer.Option("--device", metavar="KIND", help="cpu or cuda; a GPU if there is one."),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            "--budget", metavar="TIME", help="Time for measuring, for example 2min or 90s."
        ),
    ] = "2min",
    seed: SeedOption = 0,
    mode: Annotated[
        Literal["real", "rank-serial", "scaled"] | None,
        typer.Option(
            "--mode",
            metavar="MODE",
            help="real, rank-serial or scaled; by default what this machine allows.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            metavar="N",
            min=1,
            help="Maximum ranks of a run; by default the number of GPUs or cores.",
        ),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(
            "--platform",
            metavar="NAME",
            help="Platform of this machine: name or YAML file.",
            autocompletion=platforms,
        ),
    ] = None,
    calibrated: Annotated[
        bool,
        typer.Option(
            "--calibrated", help="Apply the factor found by the study's previous validation."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a study's best candidates for real and check how far its ranking can be trusted."""
    from dataclasses import replace

    from dse._text.terminal import Console
    from dse.cli._progress import progress
    from dse.config import UnitKind
    from dse.errors import ConfigError
    from dse.report import write_report
    from dse.report.terminal.studies import print_validation
    from dse.search import ValidationMode, load_study, validation_to_json
    from dse.validation import ValidateOptions, validate_study

    if top + random == 0:
        raise ConfigError("--top 0 --random 0: nothing to run; give at least one of them")
    budget_s = quantity("--budget", budget, UnitKind.TIME)
    options = ValidateOptions(
        top=top,
        random=random,
        trainer=trainer,
        device=device,
        mode=None if mode is None else ValidationMode(mode),
        ranks=ranks,
        platform=platform,
        budget_s=budget_s,
        seed=seed,
        calibrated=calibrated,
    )
    study = load_study(study_dir)
    with progress("choosing candidates", quiet=as_json) as display:
        validation = validate_study(
            study.result, options, lambda stage, share: display(share, 1.0, stage=stage)
        )
    study.directory.write_validation(validation)
    write_report(replace(study.result, validation=validation), study.directory.report)
    if as_json:
        typer.echo(validation_to_json(validation))
    else:
        print_validation(validation, Console())
    if validation.setting.interrupted:
        typer.echo("interrupted; the measurements so far are kept", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not (validation.decided and validation.agreement.success):
        raise typer.Exit(ExitCode.FAILED)
