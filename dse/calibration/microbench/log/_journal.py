"""Append-only file of JSON lines that survives a kill.

A kill in the middle of a write leaves a torn last line. It is skipped when the file is read, and
cut off before the file is appended to.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dse._io.reading import MAX_TABLE_BYTES, JsonProblemError, load_json, read_bytes
from dse.errors import CalibrationError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def journal_lines(path: Path) -> list[dict[str, Any]]:
    """Reads the lines of a journal; a torn last one is left out.

    Raises:
        CalibrationError: The file cannot be read, or a line is damaged.
    """
    lines = []
    for number, line in enumerate(_content(path).splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            parsed = load_json(line)
        except JsonProblemError:
            parsed = None
        if not isinstance(parsed, dict):
            raise CalibrationError(
                f"{path}: line {number} is damaged; restore the file from a copy, or measure "
                "again into another one"
            )
        lines.append(parsed)
    return lines


def open_journal(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a journal that will be appended to; none if it is missing.

    Raises:
        CalibrationError: The file cannot be read or written, or a line is damaged.
    """
    if not path.exists():
        return []
    content = _content(path)
    try:
        if not content.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)
    except OSError as error:
        raise CalibrationError(f"cannot open {path}: {error.strerror or error}") from error
    return journal_lines(path)


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Appends one line.

    Raises:
        CalibrationError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
    except OSError as error:
        raise CalibrationError(
            f"cannot write {path}: {error.strerror or error}; make it writable, or free disk "
            "space, and run again: what is in it is not measured twice"
        ) from error


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path, MAX_TABLE_BYTES)
    except (ConfigError, OSError) as error:
        raise CalibrationError(f"cannot read the log: {error}") from error
