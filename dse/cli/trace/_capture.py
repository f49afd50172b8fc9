"""`dse trace capture`: traces of an unchanged training command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._exit import ExitCode
from dse.cli._options import JsonOption, folder_of, quantity
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse._text.terminal import Console
    from dse.trace.capture import CaptureRecord, CommandRecording

#: The first argument that is not an option begins the command with its own options.
COMMAND_LINE = {"allow_interspersed_args": False}


def capture_command(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND",
            help="python train.py …, torchrun --nproc-per-node 2 train.py …, or any other.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", parser=folder_of, metavar="DIR", help="Folder of the traces; new or empty."
        ),
    ],
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, help="Iterations to record.")
    ] = 3,
    warm_up: Annotated[
        int,
        typer.Option(
            "--warm-up", metavar="N", min=1, help="Warm-up iterations, with the profiler on."
        ),
    ] = 2,
    skip: Annotated[
        int,
        typer.Option("--skip", metavar="N", min=0, help="Iterations before those, not profiled."),
    ] = 3,
    shapes: Annotated[
        bool, typer.Option("--shapes/--no-shapes", help="Record shapes of operators' inputs.")
    ] = True,
    stacks: Annotated[bool, typer.Option("--stacks", help="Record Python stacks; slow.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Record allocations.")] = False,
    execution_trace: Annotated[
        bool,
        typer.Option("--execution-trace/--no-execution-trace", help="A PyTorch execution trace."),
    ] = True,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="TIME", help="End the command after, for example, 10min."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier capture in the folder.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a command and record its training loop, on every rank, without changing it.

    Steps of the first torch optimizer of a process are counted. The exit code is the command's.
    """
    import sys

    from dse.cli._output import emit, fields_of
    from dse.config import UnitKind
    from dse.report.console import line
    from dse.trace.capture import CaptureSettings, record_command

    settings = CaptureSettings(
        steps=steps,
        warm_up=warm_up,
        skip=skip,
        shapes=shapes,
        stacks=stacks,
        memory=memory,
        execution_trace=execution_trace,
    )
    done = record_command(
        command,
        out,
        settings,
        timeout_s=None if timeout is None else quantity("--timeout", timeout, UnitKind.TIME),
        overwrite=force,
        stdout=sys.stderr.fileno() if as_json else None,
    )
    _warn(done, timeout)
    document = {
        "directory": out,
        "exit_code": done.exit_code,
        "timed_out": done.timed_out,
        "ranks": [fields_of(record, "distorted") for record in done.records],
        "notes": done.notes,
    }

    def show(console: Console) -> None:
        for record in done.records:
            line(console, _summary(record, out))
        if done.records:
            line(console, f"  try: dse trace info {out}")

    emit(document, show, as_json=as_json)
    if done.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    # A command that was ended on purpose has done what it was run for.
    if done.exit_code and not (done.timed_out and done.records):
        raise typer.Exit(done.exit_code)


def _warn(done: CommandRecording, timeout: str | None) -> None:
    """Prints problems on standard error; a command that failed keeps its exit code."""
    if done.timed_out:
        typer.echo(f"the command was ended after {timeout} (--timeout)", err=True)
    if done.interrupted:
        typer.echo("interrupted", err=True)
    if not done.records:
        if not done.exit_code and not done.interrupted:
            raise ConfigError(done.why_nothing)
        typer.echo(f"error: nothing was captured: {done.why_nothing}", err=True)
        return
    for note in done.notes:
        typer.echo(f"warning: process {note.process}: {note.message}", err=True)
    there = {record.rank for record in done.records}
    world = max(record.world_size for record in done.records)
    if len(there) < world:
        missing = ", ".join(str(rank) for rank in range(world) if rank not in there)
        typer.echo(
            f"warning: {len(there)} of {world} ranks are here; not rank {missing}", err=True
        )
    for record in done.records:
        if record.distorted:
            typer.echo(
                f"warning: rank {record.rank}: a step takes {_ms(record.step_s_profiled)} with "
                f"the profiler, {_ms(record.step_s_unprofiled)} without; the trace has the "
                "former. --no-execution-trace reduces the difference most, then larger batches "
                "and --no-shapes",
                err=True,
            )


def _summary(record: CaptureRecord, out: Path) -> str:
    from dse.report.console import plural

    numbers = record.steps
    which = f" ({numbers[0]}–{numbers[-1]})" if len(numbers) > 1 else ""
    size = sum(file.size_bytes for file in record.files)
    return (
        f"rank {record.rank}: {out / record.files[0].name}, "
        f"{plural(len(numbers), 'step')}{which}, "
        f"{_ms(record.step_s_profiled)} a step, {_ms(record.step_s_unprofiled)} unprofiled, "
        f"{size / 1e6:.2f} MB in {len(record.files)} files"
    )


def _ms(duration_s: float | None) -> str:
    return "? ms" if duration_s is None else f"{duration_s * 1e3:.3g} ms"
