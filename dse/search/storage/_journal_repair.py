"""Repair of journals: a torn end is skipped, damage before it is located.

Each operation is one line that is flushed to the disk before the operation counts. So a kill, a
full disk or a power cut harms only what follows the last good line: a part of a line, or blocks of
zeros that the file system had not filled yet. Nothing of it was ever said to be finished, so it
may go. Anything else that is wrong is other damage, and continuing would lose finished trials: it
is refused with its place, unless the user has chosen to drop it.
"""

from __future__ import annotations

from dataclasses import dataclass
import os
from typing import TYPE_CHECKING

from dse._io.reading import MAX_JOURNAL_BYTES, open_file
from dse._io.writing import unwritable, write_atomically
from dse.errors import StudyError
from dse.search.storage._journal_line import RECORD_KEY, Checker, line_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any


@dataclass(frozen=True, slots=True)
class JournalDamage:
    """A damaged line of a journal.

    Attributes:
        offset: Byte at which it begins.
        line: Its number, from 1.
        problem: What is wrong with it.
    """

    offset: int
    line: int
    problem: str

    def __str__(self) -> str:
        return f"byte {self.offset} (line {self.line}): {self.problem}"


def stored_operations(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the operations of a journal; a torn end is passed over and stays where it is.

    Raises:
        StudyError: A line before the end is damaged, with its byte offset; or the file cannot be
            read.
        ConfigError: It is no ordinary file.
    """
    return (operation for operation, _ in _intact(path))


def repair_journal(path: Path) -> None:
    """Cuts off a torn end and checks that what is left can be appended to.

    Only the holder of the folder's lock may call this.

    Raises:
        StudyError: A line before the end is damaged, with its byte offset; or the file cannot be
            read or written.
    """
    if not path.exists():
        return
    intact_bytes = sum(len(line) for _, line in _intact(path))
    try:
        with path.open("r+b") as file:
            if file.seek(0, os.SEEK_END) > intact_bytes:
                file.truncate(intact_bytes)
                os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(path, error) from error


def drop_damage(path: Path, start: Mapping[str, Any]) -> tuple[JournalDamage, ...]:
    """Drops every damaged line; returns what was dropped.

    Only the holder of the folder's lock may call this.

    Args:
        path: The journal.
        start: Operation that creates the study, for a journal whose own one is damaged.

    Raises:
        StudyError: The file cannot be read or written.
    """
    if not path.exists():
        return ()
    dropped = []
    kept = []
    answered = set()
    checker = Checker(lenient=True)
    for operation, line, damage in _lines(path, checker):
        if damage is not None:
            dropped.append(damage)
            continue
        record = operation.get("user_attrs", {}).get(RECORD_KEY)
        known = record if isinstance(record, dict) else {}
        revised = bool(known.get("thorough") or known.get("borrowed"))
        choice = repr(known.get("parameters")) if known else ""
        if not revised:
            answered.add(choice)
        kept.append((line, revised, choice))
    if dropped:
        first = b"" if checker.has_study else line_of(start)
        # A later answer must not take the place of a first one that was lost: the sampler
        # learned from that one.
        rest = (line for line, revised, choice in kept if not revised or choice in answered)
        write_atomically(path, first + b"".join(rest))
    return tuple(dropped)


def _intact(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yields each operation and its line."""
    for operation, line, damage in _lines(path, Checker()):
        if damage is not None:
            raise StudyError(
                f"{path}: damaged at {damage}; restore the file from a copy, or continue with "
                "--resume --repair, which drops every damaged line and evaluates it again"
            )
        yield operation, line


def _lines(
    path: Path, checker: Checker
) -> Iterator[tuple[dict[str, Any], bytes, JournalDamage | None]]:
    """Yields each line as an operation, as bytes, and what is wrong with it."""
    offset = 0
    try:
        with open_file(path, MAX_JOURNAL_BYTES) as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                operation, problem = checker.parsed(line)
                # Blocks of a line reach the disk in any order, its end before its middle.
                if problem and b"\0" in line and not file.read(1):
                    return
                yield operation, line, JournalDamage(offset, number, problem) if problem else None
                offset += len(line)
    except OSError as error:
        raise StudyError(f"cannot read {path}: {error.strerror or error}") from error
