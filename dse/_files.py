"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING

from dse.errors import StudyError

if TYPE_CHECKING:
    from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces `path` by `content` in one step; a kill leaves the old file or the new one.

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
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise StudyError(
            f"cannot write {path}: {error.strerror or error}; choose another folder"
        ) from error


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
