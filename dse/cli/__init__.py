"""Command line. It imports the library; nothing imports it."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    try:
        # Not above: Ctrl-C during the imports would end in a traceback.
        from dse.cli._app import run_app

        run_app()
    except KeyboardInterrupt:
        from dse.cli._exit import ExitCode

        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(ExitCode.INTERRUPTED)
