"""`dse export`: one candidate of a study as a file that can be deployed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._complete import EXPORT_FORMATS, candidates, names
from dse.cli._options import ForceOption, StudyArgument, new_file
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.search import StudyResult


def export_command(
    study_dir: StudyArgument,
    candidate: Annotated[
        int,
        typer.Option(
            "--candidate",
            metavar="NUMBER",
            autocompletion=candidates,
            help="Number of the configuration.",
        ),
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            autocompletion=names(EXPORT_FORMATS),
            help="json: the plan, or the configuration of models without one; yaml: the "
            "configuration; or the format of a training framework: torchrec for plans, megatron, "
            "torchtitan or fsdp for transformers. For a captured trace, json and yaml are "
            "the changes, for `dse trace whatif --steps`.",
        ),
    ] = "json",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="File; standard output if left out. A name without an ending is a folder, with "
            "--format torchrec: the plan, a script that loads it and one that trains under it.",
        ),
    ] = None,
    module_path: Annotated[
        str,
        typer.Option(
            "--module-path",
            metavar="PATH",
            help="Path of the collection of tables in the module that is trained, for a folder.",
        ),
    ] = "",
    force: ForceOption = False,
) -> None:
    """Write the plan, the whole configuration, or the changes of one candidate."""
    from dse._io.writing import write_atomically
    from dse.search import export_text, load_study

    study = load_study(study_dir).result
    if out is not None and not out.suffix and kind not in ("json", "yaml"):
        _write_folder(study, candidate, kind, out, module_path, force=force)
        return
    if module_path:
        raise ConfigError("--module-path: for a folder; give --out a name without an ending")
    text = export_text(study, candidate, kind)
    if out is None:
        typer.echo(text, nl=False)
    else:
        new_file("--out", out, force=force)
        write_atomically(out, text)
        typer.echo(f"{kind}: {out}")


def _write_folder(
    study: StudyResult, candidate: int, kind: str, out: Path, module_path: str, *, force: bool
) -> None:
    from dse._io.writing import write_atomically
    from dse.search import export_files

    if out.is_dir() and any(out.iterdir()) and not force:
        raise ConfigError(f"--out {out}: not empty; choose another folder, or pass --force")
    texts = export_files(study, candidate, kind, module_path=module_path)
    for name, text in texts.items():
        write_atomically(out / name, text)
        typer.echo(str(out / name))
