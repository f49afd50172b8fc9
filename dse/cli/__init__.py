"""Command line. It imports the library; nothing imports it."""

from __future__ import annotations

from dse.cli._app import main

__all__ = ["main"]
