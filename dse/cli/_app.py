"""The `dse` command: global options, and errors as exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from dse import __version__
from dse._reading import shown_path
from dse.cli import files, job, machine, study, trace
from dse.cli._exit import ExitCode, Terminated
from dse.cli._streams import accept_any_encoding
from dse.errors import DseError


class _InterruptedError(Exception):
    """Ctrl-C or SIGTERM, under a name that Typer does not know: it would end silently."""

    def __init__(self, interrupt: KeyboardInterrupt) -> None:
        super().__init__(str(interrupt) or "interrupted")
        terminated = isinstance(interrupt, Terminated)
        self.exit_code = ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED


class _Commands(TyperGroup):
    """The commands; an interrupt of any of them reaches :func:`main`."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            # The interrupt says what the command keeps.
            raise _InterruptedError(interrupt) from None


app = typer.Typer(
    name="dse",
    cls=_Commands,
    help="Find sharding plans, batch sizes and machines for multi-GPU training, without running "
    "on hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_state = {"debug": False}


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"dse {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    _state["debug"] = debug


app.command("run")(study.run_command)
app.command("predict")(job.predict_command)
app.command("collective")(machine.collective_command)
app.command("shard")(job.shard_command)
app.command("rank")(job.rank_command)
app.command("replay")(machine.replay_command)
app.command("validate")(study.validate_command)
app.command("report")(study.report_command)
app.command("recommend")(study.recommend_command)
app.command("whatif")(study.whatif_command)
app.command("compare")(study.compare_command)
app.command("export")(study.export_command)
app.command("list")(files.list_command)
app.add_typer(files.model, name="model")
app.command("calibrate")(machine.calibrate_command)
app.command("fit")(machine.fit_command)
app.add_typer(trace.app, name="trace")
app.command("schema")(files.schema_command)
app.command("doctor")(machine.doctor_command)


def main() -> None:
    """Runs the command line and exits with its code."""
    accept_any_encoding()
    try:
        app()
    except DseError as error:
        if _state["debug"]:
            raise
        _end_with(str(error))
    except _InterruptedError as interrupt:
        print(interrupt, file=sys.stderr)  # noqa: T201
        sys.exit(interrupt.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.BAD_INPUT)
    except OSError as error:
        # Of the system, such as a name that is too long for it.
        if _state["debug"] or error.filename is None:
            raise
        _end_with(f"{shown_path(error.filename)}: {error.strerror}")


def _end_with(message: str) -> NoReturn:
    from dse._terminal import visible

    for line in message.splitlines():
        print(f"error: {visible(line)}", file=sys.stderr)  # noqa: T201
    sys.exit(ExitCode.BAD_INPUT)
