"""Lock of a study directory: one run at a time writes to it.

The lock is the operating system's (`flock`), so it ends with its holder, however that ends; the
file `run.lock` says who holds it. It also holds between machines that share the folder over NFS.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from datetime import UTC, datetime
import errno
import os
import socket
from typing import TYPE_CHECKING

from dse._io.writing import unwritable
from dse.errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Name of the file in the study directory.
LOCK_NAME = "run.lock"

#: What `flock` answers when another holds the lock; the second one on network file systems.
_HELD = (errno.EWOULDBLOCK, errno.EACCES)

#: What it answers on file systems that have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)

#: Longest note of a holder that is read.
_NOTE_BYTES = 300


@contextmanager
def lock_folder(root: Path) -> Iterator[None]:
    """Holds the lock of a study directory, which is created where it is missing.

    The lock of a holder that has died is taken over.

    Args:
        root: The directory.

    Raises:
        StudyError: Another run holds the lock; or the directory cannot be written, or is on a file
            system without locks.
    """
    path = root / LOCK_NAME
    created = False
    try:
        created = not root.exists()
        root.mkdir(parents=True, exist_ok=True)
        handle = _locked(path)
    except (OSError, ValueError) as error:
        lockless = isinstance(error, OSError) and error.errno in _NO_LOCKS
        if created:
            with suppress(OSError):
                if lockless:  # nobody can hold it
                    path.unlink()
                root.rmdir()
        if isinstance(error, OSError) and lockless:
            raise StudyError(
                f"cannot lock {path}: {error.strerror}; choose an --out on a file system that has "
                "locks"
            ) from error
        raise unwritable(path, error) from error
    try:
        yield
    finally:
        # While it is held: afterwards it might be the next holder's.
        with suppress(OSError):
            path.unlink()
        _release(handle)
        if created:
            # Nothing was written, so nothing is left behind.
            with suppress(OSError):
                root.rmdir()


def _locked(path: Path) -> int:
    """Returns the handle of the locked file."""
    from fcntl import LOCK_EX, LOCK_NB, flock

    # A link could lead to a file of somebody else, and a pipe would wait.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        handle = os.open(path, flags, 0o666)
        try:
            flock(handle, LOCK_EX | LOCK_NB)
            # The holder before may have removed the file since it was opened.
            if _is_file(handle, path):
                note = f"process {os.getpid()} on {socket.gethostname()} since {_now()}"
                try:
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, note.encode(errors="replace"), 0)
                except OSError:
                    with suppress(OSError):
                        path.unlink()
                    raise
                return handle
            os.close(handle)
        except BaseException as error:
            note = " ".join(os.pread(handle, _NOTE_BYTES, 0).decode(errors="replace").split())
            os.close(handle)
            if isinstance(error, OSError) and error.errno in _HELD:
                raise StudyError(
                    f"{path.parent} is in use by another run ({note or 'just started'}); wait for "
                    "its end, or choose another --out; runs share a study with --storage"
                ) from None
            raise


def _is_file(handle: int, path: Path) -> bool:
    """Returns whether a handle is of the file that is there now."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _release(handle: int) -> None:
    from fcntl import LOCK_UN, flock

    # A process that was forked from this one has the handle too, so closing it is not enough.
    with suppress(OSError):
        flock(handle, LOCK_UN)
    os.close(handle)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
