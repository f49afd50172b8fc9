"""Journal backend for Optuna: trials without their records.

A record is by far the largest part of its trial. Optuna keeps every trial in memory and reads back
what it has just written; with the records of ten thousand trials that would be most of the memory
and of the time of the proposing process. They are read from the file when they are needed.
"""

from __future__ import annotations

from contextlib import contextmanager
import os
from typing import TYPE_CHECKING

from dse.search.storage._journal_line import CREATE_TRIAL, RECORD_KEY, line_of
from dse.search.storage._journal_repair import stored_operations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Any


class JournalBackend:
    """A journal that at most one process appends to; a journal backend of Optuna.

    Args:
        path: The journal file; started when it is missing and may be appended to.
        append: Whether it may be appended to, which takes the lock of the folder. Otherwise it
            stays as it is: a torn end is passed over.

    Raises:
        OSError: The file is to be appended to and cannot be.
    """

    def __init__(self, path: Path, *, append: bool) -> None:
        if append:
            path.open("ab").close()
        self._path = path
        self._append = append
        self._read = False
        self._appended: list[dict[str, Any]] = []
        self._held: list[bytes] | None = None

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yields the operations that Optuna has not read yet: all of the file, then the new ones.

        Args:
            log_number_from: Number of the first one; Optuna counts those it has read.

        Raises:
            StudyError: The file cannot be read or is damaged.
        """
        del log_number_from
        if not self._read:
            for operation in stored_operations(self._path):
                yield _without_record(operation)
            self._read = True
        appended, self._appended = self._appended, []
        yield from appended

    def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
        """Appends operations and has them written to the disk.

        Raises:
            OSError: They cannot be written.
        """
        if not self._append:
            raise OSError(f"{self._path} is open for reading only")
        if self._held is None:
            self._write(map(line_of, logs))
        else:
            self._held += map(line_of, logs)
        self._appended += map(_without_record, logs)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Batches what is appended in the block into one write and one fsync.

        Raises:
            OSError: It cannot be written.
        """
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            if held:
                self._write(held)

    def _write(self, lines: Iterable[bytes]) -> None:
        with self._path.open("ab") as file:
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())


def stored_records(path: Path) -> Iterator[object]:
    """Yields the record of every trial of a journal, as JSON; None of a trial without one.

    Raises:
        StudyError: The file cannot be read or is damaged.
    """
    for operation in stored_operations(path):
        if operation["op_code"] == CREATE_TRIAL:
            attributes = operation.get("user_attrs")
            yield attributes.get(RECORD_KEY) if isinstance(attributes, dict) else None


def _without_record(operation: dict[str, Any]) -> dict[str, Any]:
    attributes = operation.get("user_attrs")
    if not isinstance(attributes, dict):
        return operation
    rest = {name: value for name, value in attributes.items() if name != RECORD_KEY}
    return {**operation, "user_attrs": rest}
