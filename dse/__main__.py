"""`python -m dse` is the command line."""

from __future__ import annotations

from dse.cli import main

main()
