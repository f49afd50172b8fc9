"""`dse model`: models from what people have, and their contents."""

from __future__ import annotations

from dse.cli._help import add_command, command_group
from dse.cli.files.model._csv import from_csv_command
from dse.cli.files.model._huggingface import from_hf_command
from dse.cli.files.model._show import show_command
from dse.cli.files.model._torchrec import from_torchrec_command

__all__ = ["app"]

app = command_group(
    "Make a model from a list of tables, a TorchRec module or a Hugging Face configuration, "
    "or show one.",
    "dse model show dlrm_dcnv2",
    "dse model from-csv tables.csv --out mine.yaml",
)
add_command(
    app,
    "from-csv",
    from_csv_command,
    "dse model from-csv tables.csv --out mine.yaml",
    "dse model from-csv tables.csv --out mine.yaml --bottom-mlp 512,256,64 --pooling 20",
)
add_command(
    app,
    "from-hf",
    from_hf_command,
    "dse model from-hf config.json --out llama.yaml --sequence-length 8192",
)
add_command(
    app,
    "from-torchrec",
    from_torchrec_command,
    "dse model from-torchrec train.py:make_model --out mine.yaml --batches 100",
)
add_command(
    app, "show", show_command, "dse model show dlrm_dcnv2", "dse model show mine.yaml --json"
)
