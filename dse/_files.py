"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from typing import TYPE_CHECKING

from dse.errors import StudyError

if TYPE_CHECKING:
    from pathlib import Path

#: Errors that another folder on the same disk would not help against.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces `path` by `content` in one step; a kill leaves the old file or the new one.

    When it returns, the new one is on the disk and stays there in a power cut.

    Raises:
        StudyError: The folder cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes private files; results are ordinary ones.
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
            flush_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> StudyError:
    """Returns the error that says what cannot be written, why, and what helps."""
    step = (
        "make room on the disk and do it again; a study goes on with --resume"
        if error.errno in _FULL
        else "choose another folder"
    )
    return StudyError(f"cannot write {path}: {error.strerror or error}; {step}")


def flush_folder(folder: Path) -> None:
    """Has the names in a folder written to the disk, so that a power cut loses no new file.

    Does nothing where that is not possible, as on some network file systems.
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
