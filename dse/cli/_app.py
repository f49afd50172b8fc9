"""The `dse` command: global options, and errors as exit codes."""

from __future__ import annotations

from contextlib import contextmanager, suppress
import errno
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer

from dse import __version__
from dse._io.reading import shown_path
from dse.cli import files, job, machine, study, trace
from dse.cli._errors import UsageError, usage_problem
from dse.cli._exit import ExitCode
from dse.cli._help import SETTINGS, Group, add_command, examples
from dse.cli._streams import accept_any_encoding
from dse.errors import DseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _InterruptedError(Exception):
    """Ctrl-C or SIGTERM, under a name that Typer does not know: it would end silently."""

    def __init__(self, interrupt: KeyboardInterrupt) -> None:
        super().__init__(str(interrupt) or "interrupted")


class _ReaderGoneError(Exception):
    """A broken pipe, likewise: it would end with the exit code of a failed command."""


@contextmanager
def _renamed() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as interrupt:
        # The interrupt says what the command keeps.
        raise _InterruptedError(interrupt) from None
    except BrokenPipeError:
        raise _ReaderGoneError from None


class _Commands(Group):
    """The commands; an interrupt of any of them reaches :func:`run_app`."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        """Parses the arguments."""
        with _renamed():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        with _renamed():
            return super().invoke(ctx)


app = typer.Typer(
    name="dse",
    cls=_Commands,
    help="Find sharding plans, parallelism, batch sizes and machines for multi-GPU training, "
    "without running on hardware.",
    epilog=examples(
        "dse run dlrm_sharding",
        "dse predict dlrm_dcnv2 --platform h100_sxm --world-size 8 --global-batch-size 65536",
        "dse --install-completion",
    ),
    no_args_is_help=True,
    context_settings=SETTINGS,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_state = {"debug": False}

#: What helps when the system has no more of something.
_LIMITS = {
    errno.EMFILE: "raise the limit on open files (`ulimit -n`)",
    errno.EAGAIN: "raise the limit on processes (`ulimit -u`)",
    errno.ENOMEM: "end other programs, raise the limit (`ulimit -v`), or ask for less",
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`)",
}


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


def _add(group: str, name: str, command: Callable[..., None], *lines: str) -> None:
    """Adds a command to a group of the help."""
    add_command(app, name, command, *lines, rich_help_panel=group)


_JOB = "--platform h100_sxm --world-size 8 --global-batch-size 65536"
_SHARED_JOB = "--platform h100_sxm --global-batch-size 65536"

_add(
    "Plan",
    "predict",
    job.predict_command,
    f"dse predict dlrm_dcnv2 {_JOB} --explain",
    "dse predict llama3_8b --platform h100_sxm --world-size 16 --global-batch-size 256 --tensor 2 "
    "--data-sharding zero1",
    f"dse predict dlrm_dcnv2 {_JOB} --versus platform=h200_sxm",
)
_add(
    "Plan",
    "shard",
    job.shard_command,
    f"dse shard dlrm_dcnv2 {_JOB} --out plan.json",
    f"dse shard dlrm_dcnv2 {_JOB} --types row_wise,table_wise --pin cat_0=3",
)
_add(
    "Plan",
    "rank",
    job.rank_command,
    f"dse rank plan.json other.json --model dlrm_dcnv2 {_SHARED_JOB}",
)
_add(
    "Plan",
    "collective",
    machine.collective_command,
    "dse collective --platform h100_sxm --op all_reduce",
    "dse collective --platform h100_sxm --op all_to_all --size 64MiB --world-size 16",
)
_add(
    "Search",
    "run",
    study.run_command,
    "dse run dlrm_sharding --trials 100 --jobs 2 --out results/first",
    "dse run dlrm_sharding --out results/first --resume",
)
_add("Search", "report", study.report_command, "dse report results/first --open")
_add(
    "Search",
    "validate",
    study.validate_command,
    "dse validate results/first --top 3 --budget 5min",
)
_add(
    "Search",
    "export",
    study.export_command,
    "dse export results/first --candidate 12 --format torchrec --out plan.json",
    "dse export results/first --candidate 12 --format yaml",
)
_add(
    "Decide",
    "recommend",
    study.recommend_command,
    'dse recommend dlrm_dcnv2 --target "10M samples/s"',
    'dse recommend llama3_8b --samples "1T tokens" --deadline 30d --world-sizes 32,64',
)
_add(
    "Decide",
    "whatif",
    study.whatif_command,
    "dse whatif results/first --set price=2.10USD/GPU/h",
    "dse whatif results/first --set network.bandwidth=*2 --out results/faster",
)
_add("Decide", "compare", study.compare_command, "dse compare results/first results/second")
app.add_typer(trace.app, name="trace", rich_help_panel="Traces")
_add(
    "Traces",
    "replay",
    machine.replay_command,
    "dse replay capture --iterations 20",
    "dse replay capture --compute-only --scale-batch 2",
)
_add(
    "Machine",
    "doctor",
    machine.doctor_command,
    "dse doctor",
    "dse doctor --platform h100_sxm",
)
_add(
    "Machine",
    "calibrate",
    machine.calibrate_command,
    "dse calibrate --collectives gloo --budget 5min --out local_cpu.yaml",
)
_add(
    "Machine",
    "fit",
    machine.fit_command,
    "dse fit collective nccl.log --platform h100_sxm --op all_reduce --ranks 8 --out ours.json",
    "dse fit gemm gemm.csv --platform h100_sxm --time-unit us --out ours.json",
)
_add(
    "Files",
    "list",
    files.list_command,
    "dse list platforms",
    "dse list programs --json",
)
app.add_typer(files.model, name="model", rich_help_panel="Files")
_add("Files", "schema", files.schema_command, "dse schema space > space.schema.json")


def run_app() -> None:
    """Runs a command and exits with its code."""
    accept_any_encoding()
    try:
        code = app(prog_name="dse", standalone_mode=False)
        # Here, where a full disk or a reader that has gone is still an error of ours.
        sys.stdout.flush()
        sys.exit(code)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.message)
        else:
            _end_with(usage_problem(error))
        sys.exit(ExitCode.BAD_INPUT)
    except DseError as error:
        if _state["debug"]:
            raise
        _end_with(str(error))
    except _InterruptedError as interrupt:
        print(interrupt, file=sys.stderr)  # noqa: T201
        sys.exit(ExitCode.INTERRUPTED)
    except (_ReaderGoneError, BrokenPipeError):
        # The reader (head, less) has gone.
        _discard(sys.stdout)
        sys.exit(ExitCode.BAD_INPUT)
    except (OSError, MemoryError) as error:
        if _state["debug"]:
            raise
        _end_with(_system_problem(error))


def _system_problem(error: OSError | MemoryError) -> str:
    """Returns what the system refused, such as a name that is too long for it, or more memory."""
    if isinstance(error, MemoryError):
        return f"out of memory; {_LIMITS[errno.ENOMEM]}"
    step = _LIMITS.get(error.errno or 0)
    if error.filename is not None:
        problem = f"{shown_path(error.filename)}: {error.strerror}"
        return f"{problem}; {step}" if step else problem
    # The disk of standard output may be full.
    _discard(sys.stdout)
    return f"{error.strerror or error}; {step or '`dse --debug` shows where'}"


def _discard(stream: TextIO) -> None:
    """Discards what a stream still buffers: written at the end, it could fail again."""
    with suppress(OSError):  # it may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _end_with(message: str) -> NoReturn:
    from dse._text.terminal import visible

    try:
        for line in message.splitlines():
            print(f"error: {visible(line)}", file=sys.stderr)  # noqa: T201
        sys.stderr.flush()
    except OSError:  # standard error may be full; the exit code still tells
        _discard(sys.stderr)
    sys.exit(ExitCode.BAD_INPUT)
