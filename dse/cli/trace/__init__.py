"""`dse trace`: captured traces."""

from __future__ import annotations

from dse.cli._help import add_command, command_group
from dse.cli.trace._capture import COMMAND_LINE, capture_command
from dse.cli.trace._info import info_command
from dse.cli.trace._overheads import overheads_command
from dse.cli.trace._simulate import simulate_command
from dse.cli.trace._whatif import whatif_command

__all__ = ["app"]

app = command_group(
    "Capture traces, read them, and simulate a step as it is or under changes.",
    "dse trace capture --out capture -- torchrun --nproc-per-node 2 train.py",
    "dse trace info capture",
)
add_command(
    app,
    "capture",
    capture_command,
    "dse trace capture --out capture -- torchrun --nproc-per-node 2 train.py",
    context_settings=COMMAND_LINE,
)
add_command(app, "info", info_command, "dse trace info capture", "dse trace info r0.json.gz")
add_command(
    app, "simulate", simulate_command, "dse trace simulate capture --timeline simulated.json.gz"
)
add_command(
    app,
    "whatif",
    whatif_command,
    "dse trace whatif --list",
    "dse trace whatif capture -O network=2x -O precision=bf16",
)
add_command(app, "overheads", overheads_command, "dse trace overheads capture --out host.yaml")
