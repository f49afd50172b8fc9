"""Entry point of `python -m dse`, the command line."""

from __future__ import annotations

from dse.cli import main

main()
