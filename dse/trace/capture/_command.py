"""Capture of a command without changing it."""

from __future__ import annotations

from dataclasses import dataclass
import os
from pathlib import Path
import signal
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING

import dse
from dse.errors import ConfigError
from dse.trace.capture._agent import VARIABLE, CaptureRequest, ProcessReport, read_reports
from dse.trace.capture._files import (
    CaptureRecord,
    execution_trace_name,
    kineto_name,
    read_records,
    record_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.trace.capture._settings import CaptureSettings

_STARTUP = Path(__file__).resolve().parent / "startup"
_HOME = Path(dse.__file__).resolve().parents[1]
#: Time that a command has to end after a signal, in seconds.
_GRACE_S = 20.0


@dataclass(frozen=True, slots=True)
class ProcessNote:
    """Something that a process could not record, or only in part.

    Attributes:
        process: Id of the process on its machine.
        message: What happened, and what helps.
    """

    process: int
    message: str


@dataclass(frozen=True, slots=True)
class CommandRecording:
    """Recording of a command that has ended.

    Attributes:
        exit_code: Exit code of the command; 128 plus the signal's number if a signal ended it.
        timed_out: Whether the timeout ended it.
        interrupted: Whether Ctrl-C ended it.
        records: What was recorded, in order of the ranks.
        notes: What could not be recorded.
        why_nothing: Why nothing was recorded; empty if something was.
    """

    exit_code: int
    timed_out: bool
    interrupted: bool
    records: tuple[CaptureRecord, ...]
    notes: tuple[ProcessNote, ...]
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
    before the recording's first one begins. Child processes of the command are recorded, too.

    Args:
        command: Program and arguments, for example `python train.py`.
        directory: Folder of the files; empty or new.
        settings: What to record.
        timeout_s: Time after which the command is ended, in seconds.
        overwrite: Whether files of an earlier capture are removed first.
        stdout: Destination of the command's output; that of this process by default.

    Raises:
        ConfigError: The command does not exist, or the folder is not empty.
    """
    if not command:
        raise ConfigError("no command to run; put it at the end: -- python train.py")
    _prepare(directory, overwrite=overwrite)
    with tempfile.TemporaryDirectory(prefix="dse-capture-") as folder:
        request = CaptureRequest(directory.resolve(), Path(folder), _HOME, settings)
        exit_code, timed_out, interrupted = _run(command, request, timeout_s, stdout)
        reports = read_reports(Path(folder))
    records = read_records(directory)
    exit_code = exit_code if exit_code >= 0 else 128 - exit_code
    # A command that failed explains itself; advice on capturing it would only distract.
    failed = exit_code and not timed_out and not interrupted
    why = f"the command ended with exit code {exit_code}" if failed else _why(reports, settings)
    return CommandRecording(
        exit_code=exit_code,
        timed_out=timed_out,
        interrupted=interrupted,
        records=records,
        notes=tuple(
            ProcessNote(report.process, message)
            for report in reports
            for message in report.messages
        ),
        why_nothing="" if records else why,
    )


def environment(request: CaptureRequest, variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of a recorded command.

    Args:
        request: What its processes have to record.
        variables: Its variables without a recording.
    """
    # Without the filter, an empty entry would put the current folder on the path.
    path = os.pathsep.join(filter(None, (str(_STARTUP), variables.get("PYTHONPATH", ""))))
    return {**variables, VARIABLE: request.to_json(), "PYTHONPATH": path}


def _prepare(directory: Path, *, overwrite: bool) -> None:
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file; expected a folder")
    if overwrite:
        for name in (kineto_name(0), execution_trace_name(0), record_name(0)):
            for file in directory.glob(name.replace("0", "[0-9]*")):
                file.unlink()
    elif directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(
            f"{directory} is not empty; choose another folder, or pass --force to replace the "
            "capture in it"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make {directory}: {error.strerror or error}; choose another folder"
        ) from error


def _run(
    command: Sequence[str],
    request: CaptureRequest,
    timeout_s: float | None,
    stdout: IO[bytes] | int | None,
) -> tuple[int, bool, bool]:
    """Returns the exit code, whether the command timed out, and whether Ctrl-C was pressed."""
    try:
        process = subprocess.Popen(
            list(command), env=environment(request, os.environ), stdout=stdout
        )
    except OSError as error:
        raise ConfigError(
            f"cannot run `{command[0]}`: {error.strerror or error}; give a program and its "
            "arguments, for example -- python train.py"
        ) from error
    try:
        return process.wait(timeout_s), False, False
    except subprocess.TimeoutExpired:
        # Like Ctrl-C: Python leaves its `with` blocks, launchers end their children.
        process.send_signal(signal.SIGINT)
        return _end(process), True, False
    except KeyboardInterrupt:
        # The command got Ctrl-C from the terminal, too; it may still be writing.
        return _end(process), False, True


def _end(process: subprocess.Popen[bytes]) -> int:
    for stronger in (process.terminate, process.kill):
        try:
            return process.wait(_GRACE_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            stronger()
    return process.wait()


def _why(reports: Sequence[ProcessReport], settings: CaptureSettings) -> str:
    hint = "put `with dse.capture(DIR) as capture:` around the loop and run it as usual"
    if not reports:
        return (
            "no Python process of the command imported torch; run the training script directly. "
            f"`python -I`, `-E` and `-S` cannot be captured from outside: {hint}"
        )
    messages = [message for report in reports for message in report.messages]
    if messages:
        return messages[0]
    trained = [report for report in reports if report.optimizer_steps]
    if trained:
        return (
            f"process {trained[0].process} was killed before step {settings.end + 1} of its "
            "optimizer; give it more time, or lower --skip, --warm-up or --steps"
        )
    return f"torch was imported, but no optimizer of torch.optim stepped; {hint}"
