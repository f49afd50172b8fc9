"""Atomic and durable writing of files."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from typing import TYPE_CHECKING

from dse._interrupts import defer_interrupts
from dse._reading import shown_path
from dse.errors import StudyError

if TYPE_CHECKING:
    from pathlib import Path

#: Errors that another folder on the same disk would not avoid.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces the file at `path` atomically: a killed process leaves the old or the new file.

    On return the new file is on disk and survives a power failure. Interrupts wait for that, so
    they leave no temporary file behind.

    Raises:
        StudyError: The folder cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with defer_interrupts():
            _replace(path, data)
    except OSError as error:
        raise unwritable(path, error) from error


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp creates private files.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        fsync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def unwritable(path: Path, error: OSError | ValueError) -> StudyError:
    """Returns the error for a file that cannot be written, or whose name is not valid."""
    step = "choose another folder"
    reason = str(error)
    if isinstance(error, OSError):
        reason = error.strerror or reason
        if error.errno in _FULL:
            step = "free disk space and retry; a study continues with --resume"
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


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
