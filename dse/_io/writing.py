"""Atomic and durable writing of files."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import TYPE_CHECKING

from dse._io.reading import check_writable, shown_path
from dse._process.interrupts import defer_interrupts
from dse.errors import StudyError

if TYPE_CHECKING:
    from pathlib import Path

#: Errors that another folder on the same disk would not avoid, and what does.
_FULL = {
    errno.ENOSPC: "free disk space",
    errno.EDQUOT: "free disk space",
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`)",
}


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces the file at `path` atomically: a killed process leaves the old or the new file.

    On return the new file is on disk and survives a power failure. Interrupts wait for that, so
    they leave no temporary file behind.

    Raises:
        ConfigError: A folder, a device or another thing that is no file stands at `path`.
        StudyError: The folder cannot be written.
    """
    check_writable(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with defer_interrupts():
            _replace(path, data)
    except OSError as error:
        raise unwritable(path, error) from error


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = _create_beside(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _create_beside(path: Path) -> tuple[int, Path]:
    """Creates a file for the new content; returns its handle and its name.

    The system applies the umask, which only a change would tell, and that is one of all threads.
    """
    while True:
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
        with contextlib.suppress(FileExistsError):
            return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), temporary


def unwritable(path: Path, error: OSError | ValueError) -> StudyError:
    """Returns the error for a file that cannot be written, or whose name is not valid."""
    step = "choose another folder"
    reason = str(error)
    if isinstance(error, OSError):
        reason = error.strerror or reason
        if room := _FULL.get(error.errno or 0):
            step = f"{room} and retry; a study continues with --resume"
    return StudyError(f"cannot write {shown_path(path)}: {reason}; {step}")


def fsync_folder(folder: Path) -> None:
    """Fsyncs a folder, so that a power failure loses no new file name.

    Ignored where unsupported, as on some network file systems.
    """
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
