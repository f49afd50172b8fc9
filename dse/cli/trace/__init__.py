"""`dse trace`: captured traces."""

from __future__ import annotations

import typer

from dse.cli._help import Command, Group, examples
from dse.cli.trace._capture import COMMAND_LINE, capture_command
from dse.cli.trace._info import info_command
from dse.cli.trace._overheads import overheads_command
from dse.cli.trace._simulate import simulate_command
from dse.cli.trace._whatif import whatif_command

__all__ = ["app"]

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look into captured traces and simulate them.",
    epilog=examples(
        "dse trace capture --out capture -- torchrun --nproc-per-node 2 train.py",
        "dse trace info capture",
    ),
)
app.command(
    "info", cls=Command, epilog=examples("dse trace info capture", "dse trace info r0.json.gz")
)(info_command)
app.command(
    "simulate",
    cls=Command,
    epilog=examples("dse trace simulate capture --timeline simulated.json.gz"),
)(simulate_command)
app.command(
    "whatif",
    cls=Command,
    epilog=examples(
        "dse trace whatif --list",
        "dse trace whatif capture -O network=2x -O precision=bf16",
    ),
)(whatif_command)
app.command(
    "overheads",
    cls=Command,
    epilog=examples("dse trace overheads capture --out host.yaml"),
)(overheads_command)
app.command(
    "capture",
    cls=Command,
    context_settings=COMMAND_LINE,
    epilog=examples("dse trace capture --out capture -- torchrun --nproc-per-node 2 train.py"),
)(capture_command)
