"""Recording a command that is not touched."""

from __future__ import annotations

from dataclasses import dataclass
import os
from pathlib import Path
import signal
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING

from dse.errors import ConfigError
from dse.trace.capture._orders import VARIABLE, Note, Orders, read_notes
from dse.trace.capture._record import (
    CaptureRecord,
    execution_trace_name,
    kineto_name,
    read_records,
    record_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.trace.capture._settings import CaptureSettings

_HERE = Path(__file__).resolve().parent
#: Time that a command has to end after it was asked to, in seconds.
_GRACE_S = 20.0


@dataclass(frozen=True, slots=True)
class RefusalNote:
    """What a process could not do, or did only in part.

    Attributes:
        process: Number of the process on its machine.
        message: What happened, and what helps.
    """

    process: int
    message: str


@dataclass(frozen=True, slots=True)
class CommandRecording:
    """A command that has ended.

    Attributes:
        exit_code: That of the command; 128 and the signal's number if a signal ended it.
        timed_out: Whether it was ended because its time was over.
        interrupted: Whether it was ended by Ctrl-C.
        records: What was recorded, in order of the ranks.
        notes: What could not be recorded.
        why_nothing: Why there are no records; empty if there are.
    """

    exit_code: int
    timed_out: bool
    interrupted: bool
    records: tuple[CaptureRecord, ...]
    notes: tuple[RefusalNote, ...]
    why_nothing: str


def record_command(
    command: Sequence[str],
    directory: Path,
    settings: CaptureSettings,
    *,
    timeout_s: float | None = None,
    overwrite: bool = False,
    stdout: IO[bytes] | int | None = None,
) -> CommandRecording:
    """Runs a command and records the training loops of all its Python processes.

    Each process counts the steps of the first optimizer that steps in it; its first iteration ends
    before the recording's first one begins. Processes that a command starts are recorded, too.

    Args:
        command: Program and arguments, for example `python train.py`.
        directory: Folder of the files; empty, or not there yet.
        settings: What is recorded.
        timeout_s: Time after which the command is ended, in seconds.
        overwrite: Whether files of an earlier capture are removed first.
        stdout: Where the command's output goes; where that of this process goes by default.

    Raises:
        ConfigError: There is no such command, or the folder is not empty.
    """
    if not command:
        raise ConfigError("no command to run; put it at the end: -- python train.py")
    _prepare(directory, overwrite=overwrite)
    with tempfile.TemporaryDirectory(prefix="dse-capture-") as notes:
        orders = Orders(directory.resolve(), Path(notes), _HERE.parent.parent, settings)
        exit_code, timed_out, interrupted = _run(command, orders, timeout_s, stdout)
        answers = read_notes(Path(notes))
    records = read_records(directory)
    exit_code = exit_code if exit_code >= 0 else 128 - exit_code
    # What failed by itself says why on its own; how to capture it better is beside the point.
    failed = exit_code and not timed_out and not interrupted
    why = f"the command ended with exit code {exit_code}" if failed else _why(answers, settings)
    return CommandRecording(
        exit_code=exit_code,
        timed_out=timed_out,
        interrupted=interrupted,
        records=records,
        notes=tuple(
            RefusalNote(answer.process, message)
            for answer in answers
            for message in answer.messages
        ),
        why_nothing="" if records else why,
    )


def environment(orders: Orders, variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a command that is recorded.

    Args:
        orders: What its processes are told.
        variables: Those that it would have otherwise.
    """
    before = variables.get("PYTHONPATH", "")
    startup = str(_HERE / "startup")
    return {
        **variables,
        VARIABLE: orders.to_json(),
        "PYTHONPATH": f"{startup}{os.pathsep}{before}" if before else startup,
    }


def _prepare(directory: Path, *, overwrite: bool) -> None:
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file; name a folder")
    if overwrite:
        for name in (kineto_name(0), execution_trace_name(0), record_name(0)):
            for file in directory.glob(name.replace("0", "[0-9]*")):
                file.unlink()
    elif directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(
            f"{directory} is not empty; name another folder, or pass --overwrite to replace the "
            "capture in it"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {directory}: {error.strerror or error}") from error


def _run(
    command: Sequence[str], orders: Orders, timeout_s: float | None, stdout: IO[bytes] | int | None
) -> tuple[int, bool, bool]:
    """Returns the exit code, whether the time was over, and whether Ctrl-C was pressed."""
    try:
        process = subprocess.Popen(
            list(command), env=environment(orders, os.environ), stdout=stdout
        )
    except OSError as error:
        raise ConfigError(
            f"cannot run `{command[0]}`: {error.strerror or error}; give a program and its "
            "arguments, for example -- python train.py"
        ) from error
    try:
        return process.wait(timeout_s), False, False
    except subprocess.TimeoutExpired:
        # As Ctrl-C does: Python leaves its blocks, launchers end what they launched.
        process.send_signal(signal.SIGINT)
        return _end(process), True, False
    except KeyboardInterrupt:
        # The terminal has told the command, too; it may still be writing.
        return _end(process), False, True


def _end(process: subprocess.Popen[bytes]) -> int:
    for stronger in (process.terminate, process.kill):
        try:
            return process.wait(_GRACE_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            stronger()
    return process.wait()


def _why(answers: Sequence[Note], settings: CaptureSettings) -> str:
    hint = "put `with dse.capture(DIR) as capture:` around the loop and run it as usual"
    if not answers:
        return (
            "no Python process of the command imported torch; name the training script itself, "
            "and mind that `python -I`, `-E` and `-S` cannot be captured from outside: "
            f"{hint}"
        )
    told = [message for answer in answers for message in answer.messages]
    if told:
        return told[0]
    trained = [answer for answer in answers if answer.optimizer_steps]
    if trained:
        return (
            f"the process {trained[0].process} was killed before step {settings.end + 1} of its "
            "optimizer; give it more time, or lower --skip, --warm-up or --steps"
        )
    return f"torch was imported, but no optimizer of torch.optim stepped; {hint}"
