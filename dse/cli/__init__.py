"""Command line. It imports the library; nothing imports it."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    # The command line is not imported above: Ctrl-C meanwhile would end in a traceback.
    from dse._process.memory import collect_rarely
    from dse.cli._exit import ExitCode, terminable
    from dse.cli._streams import replace_closed_streams

    replace_closed_streams()
    collect_rarely()
    with terminable() as ending:
        try:
            from dse.cli._app import run_app

            run_app()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)  # noqa: T201
            sys.exit(ending.exit_code)
        except SystemExit as end:
            if end.code == ExitCode.INTERRUPTED:
                sys.exit(ending.exit_code)
            raise
        except Exception:
            # Some libraries, while they are imported, turn an interrupt into an error of theirs.
            if not ending.requested or "--debug" in sys.argv:
                raise
            print("interrupted", file=sys.stderr)  # noqa: T201
            sys.exit(ending.exit_code)
