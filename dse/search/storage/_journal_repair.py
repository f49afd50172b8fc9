"""Repair of journals: a torn end is skipped, damage before it is located.

Optuna appends one line an operation and has it flushed to the disk before the operation counts.
So a kill, a full disk or a power cut harms only what follows the last good line: a part of a line,
or blocks of zeros that the file system had not filled yet. Nothing of it was ever said to be
finished, so it may go. Anything else that is wrong is other damage, and continuing could lose
finished trials: it is refused with its place.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from dse._files import unwritable
from dse._reading import MAX_JOURNAL_BYTES, open_file
from dse.errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

#: Codes of Optuna's journal format for what creates studies and trials; all other operations
#: change one of those by its number.
_CREATE_STUDY = 0
CREATE_TRIAL = 4
_LAST_CODE = 10
#: What Optuna takes from an operation without a look at it.
_BLOCKS = ("user_attr", "user_attrs", "system_attr", "system_attrs", "params", "distributions")


def stored_operations(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the operations of a journal; a torn end is passed over and stays where it is.

    Raises:
        StudyError: A line before the end is damaged, with its byte offset; or the file cannot be
            read.
        ConfigError: It is no ordinary file.
    """
    return (operation for operation, _ in _operations(path))


def repair_journal(path: Path) -> None:
    """Cuts off a torn end and checks that what is left can be appended to.

    Raises:
        StudyError: A line before the end is damaged, with its byte offset; or the file cannot be
            read or written.
    """
    if not path.exists():
        return
    intact_bytes = max((end for _, end in _operations(path)), default=0)
    try:
        with path.open("r+b") as file:
            if file.seek(0, os.SEEK_END) > intact_bytes:
                file.truncate(intact_bytes)
                os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(path, error) from error


def _operations(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields each operation and the size in bytes of the file up to its end."""
    known = _Known()
    offset = 0
    try:
        with open_file(path, MAX_JOURNAL_BYTES) as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                operation, problem = _parsed(line)
                problem = problem or known.problem(operation)
                if problem:
                    # Blocks of a line reach the disk in any order, its end before its middle.
                    if b"\0" in line and not file.read(1):
                        return
                    raise StudyError(
                        f"{path}: damaged at byte {offset} (line {number}): {problem}; restore it "
                        f"from a copy, or drop that line and all after it with `truncate -s "
                        f"{offset}` and evaluate them again with --resume"
                    )
                offset += len(line)
                yield operation, offset
    except OSError as error:
        raise StudyError(f"cannot read {path}: {error.strerror or error}") from error


def _parsed(line: bytes) -> tuple[dict[str, Any], str]:
    """Returns an operation, or what is wrong with its line."""
    try:
        operation = json.loads(line)
    except (ValueError, RecursionError):
        return {}, "not JSON"
    if not isinstance(operation, dict):
        return {}, "not an operation"
    return operation, ""


class _Known:
    """Which studies and trials the operations so far have created."""

    def __init__(self) -> None:
        self._studies = 0
        self._trials = 0

    def problem(self, operation: dict[str, Any]) -> str:
        """Counts an operation; returns why it cannot follow those before it, or nothing."""
        code = operation.get("op_code")
        if type(code) is not int or not 0 <= code <= _LAST_CODE or "worker_id" not in operation:
            return "not an operation of Optuna"
        for name, count in (("study", self._studies), ("trial", self._trials)):
            if f"{name}_id" in operation:
                number = operation[f"{name}_id"]
                if type(number) is not int or not 0 <= number < count:
                    return f"there is no {name} {number}"
        if code == CREATE_TRIAL and not {"study_id", "datetime_start"} <= set(operation):
            return "an operation without its fields"
        for name in _BLOCKS:
            if not isinstance(operation.get(name, {}), dict):
                return f"`{name}` is not a block"
        self._studies += code == _CREATE_STUDY
        self._trials += code == CREATE_TRIAL
        return ""
