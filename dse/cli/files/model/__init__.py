"""`dse model`: models from what people have, and their contents."""

from __future__ import annotations

import typer

from dse.cli.files.model._csv import from_csv_command
from dse.cli.files.model._huggingface import from_hf_command
from dse.cli.files.model._shown import show_command
from dse.cli.files.model._torchrec import from_torchrec_command

app = typer.Typer(
    no_args_is_help=True,
    help="Make a model from a list of tables, a TorchRec module or a Hugging Face configuration, "
    "or show one.",
)
app.command("from-csv")(from_csv_command)
app.command("from-hf")(from_hf_command)
app.command("from-torchrec")(from_torchrec_command)
app.command("show")(show_command)

__all__ = ["app"]
