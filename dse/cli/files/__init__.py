"""Commands on the files that people write, and on those that are built in."""

from __future__ import annotations

from dse.cli.files._list import list_command
from dse.cli.files._schema import schema_command
from dse.cli.files.model import app as model

__all__ = ["list_command", "model", "schema_command"]
