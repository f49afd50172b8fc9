"""`dse model`: models from what people have, and their contents."""

from __future__ import annotations

import typer

from dse.cli._help import Command, Group, examples
from dse.cli.files.model._csv import from_csv_command
from dse.cli.files.model._huggingface import from_hf_command
from dse.cli.files.model._shown import show_command
from dse.cli.files.model._torchrec import from_torchrec_command

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make a model from a list of tables, a TorchRec module or a Hugging Face configuration, "
    "or show one.",
    epilog=examples("dse model show dlrm_dcnv2", "dse model from-csv tables.csv --out mine.yaml"),
)
app.command(
    "from-csv",
    cls=Command,
    epilog=examples(
        "dse model from-csv tables.csv --out mine.yaml",
        "dse model from-csv tables.csv --out mine.yaml --bottom-mlp 512,256,64 --pooling 20",
    ),
)(from_csv_command)
app.command(
    "from-hf",
    cls=Command,
    epilog=examples("dse model from-hf config.json --out llama.yaml --sequence-length 8192"),
)(from_hf_command)
app.command(
    "from-torchrec",
    cls=Command,
    epilog=examples("dse model from-torchrec train.py:make_model --out mine.yaml --batches 100"),
)(from_torchrec_command)
app.command(
    "show",
    cls=Command,
    epilog=examples("dse model show dlrm_dcnv2", "dse model show mine.yaml --json"),
)(show_command)

__all__ = ["app"]
