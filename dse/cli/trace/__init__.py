"""`dse trace`: captured traces."""

from __future__ import annotations

import typer

from dse.cli.trace._capture import COMMAND_LINE, capture_command
from dse.cli.trace._info import info_command
from dse.cli.trace._overheads import overheads_command
from dse.cli.trace._simulate import simulate_command
from dse.cli.trace._whatif import whatif_command

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Look into captured traces and simulate them.")
app.command("info")(info_command)
app.command("simulate")(simulate_command)
app.command("whatif")(whatif_command)
app.command("overheads")(overheads_command)
app.command("capture", context_settings=COMMAND_LINE)(capture_command)
