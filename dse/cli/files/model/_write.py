"""Options of the commands that write a model, and how these commands end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import DenseOptimizerName, DensePrecisionName, new_file
from dse.cli.files.model._show import show_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.model import DlrmModel, TransformerModel

OutOption = Annotated[Path, typer.Option("--out", metavar="FILE", help="Model to write (.yaml).")]
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Its name; the file's by default.")
]
BatchOption = Annotated[
    int,
    typer.Option("--global-batch-size", metavar="N", min=1, help="Samples of one iteration."),
]
DensePrecisionOption = Annotated[
    DensePrecisionName,
    typer.Option("--precision", metavar="TYPE", help="Arithmetic: fp32, tf32, fp16 or bf16."),
]
DenseOptimizerOption = Annotated[
    DenseOptimizerName,
    typer.Option("--dense-optimizer", metavar="RULE", help="sgd, adagrad or adam."),
]


def check_out(out: Path, *, force: bool) -> None:
    from dse.errors import ConfigError

    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: expected a name that ends in .yaml")
    new_file("--out", out, force=force)


def write_model(
    out: Path,
    text: str,
    model: DlrmModel | TransformerModel,
    notes: Iterable[str] = (),
    *,
    as_json: bool,
) -> None:
    """Writes a model and shows what it holds.

    Args:
        out: The file.
        text: Its text.
        model: What the text says.
        notes: What has been assumed.
        as_json: Whether the result is printed as JSON.
    """
    from dse._io.writing import write_atomically
    from dse._text.terminal import visible

    write_atomically(out, text)
    show_model(model, as_json=as_json)
    for line in notes:
        typer.echo(f"note: {visible(line)}", err=True)
    if not as_json:
        typer.echo(f"model: {out}")
