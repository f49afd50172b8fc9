"""Trace files: plain, gzip, tar or a folder, up to a limit of unpacked bytes."""

from __future__ import annotations

from contextlib import contextmanager, suppress
import gzip
import io
from pathlib import Path, PurePosixPath
import tarfile
from typing import TYPE_CHECKING, Protocol
import zlib

from dse._io.reading import LIMIT_VARIABLE, MAX_TRACE_BYTES, byte_limit, is_folder, open_file
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Beyond the first bytes, more than this ratio of unpacked to packed size is no trace: traces
#: compress ten to fifty times, zip bombs a thousand times.
_MAX_RATIO = 200
_UNSUSPECTED_BYTES = 64 * 2**20

#: Most files of one folder or archive: one per rank.
_MAX_FILES = 100_000

_BLOCK_BYTES = 4 * 2**20
_GZIP_MAGIC = b"\x1f\x8b"
_TAR_MAGIC = b"ustar"
_TAR_MAGIC_AT = 257
_TAR_BLOCK = 512
_ENDINGS = (".json", ".json.gz", ".tar.gz", ".tgz")

#: Endings of the Kineto traces that a capture and PyTorch's handler for TensorBoard write.
_KINETO = (".pt.trace.json", ".pt.trace.json.gz")

#: Files of a capture that other readers read, by file ending.
NOT_KINETO = (".capture.json", ".et.json", ".et.json.gz")
NOT_EXECUTION_TRACES = (".capture.json", *_KINETO)


class _Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Reads up to a number of bytes."""


def is_kineto(name: str) -> bool:
    """Returns whether a file in a folder or archive is a Kineto trace by its name."""
    return name.endswith(_KINETO)


def is_execution_trace(name: str) -> bool:
    """Returns whether a file in a folder or archive is read as an execution trace."""
    return name.endswith(_ENDINGS) and not name.endswith(NOT_EXECUTION_TRACES)


def file_names(path: str | Path) -> tuple[str, ...]:
    """Returns the names of the files in a folder, or of the JSON files in an archive; else none.

    Raises:
        ConfigError: As :func:`documents`.
    """
    file = Path(path)
    if is_folder(file):
        try:
            return tuple(sorted(item.name for item in file.iterdir()))
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error}") from error
    if file.name.endswith(_ENDINGS[:2]):
        return ()
    with _opened(file, byte_limit(MAX_TRACE_BYTES)) as (bounded, packed):
        if not packed:
            return ()
        with _archive(file, bounded) as archive:
            return tuple(name for _, name in _files_of(file, archive))


def documents(
    path: str | Path, leave_out: tuple[str, ...], only: tuple[str, ...] = ("",)
) -> Iterator[tuple[str, bytearray]]:
    """Yields name and text of each trace, one at a time.

    Args:
        path: A JSON file, the same under gzip, a tar archive (under gzip or not) of such files,
            or a folder of any of them.
        leave_out: Endings of files in folders and archives that are skipped.
        only: Endings of those that are not.

    Raises:
        ConfigError: The path does not exist or cannot be read, gzip data or an archive is damaged,
            an archive member or a link points outside, or the unpacked bytes exceed the limit.
    """
    file, limit = Path(path), byte_limit(MAX_TRACE_BYTES)
    if not is_folder(file):
        yield from _of_file(file, limit, leave_out, only)
        return
    for item in _in_folder(file, leave_out, only):
        yield from _of_file(item, limit, leave_out, only)


def _in_folder(folder: Path, leave_out: tuple[str, ...], only: tuple[str, ...]) -> list[Path]:
    """Returns the traces of a folder by name."""
    try:
        found = sorted(
            item
            for item in folder.iterdir()
            if item.name.endswith(_ENDINGS)
            and item.name.endswith(only)
            and not item.name.endswith(leave_out)
        )
        within = folder.resolve()
        outside = [item for item in found if item.resolve().parent != within]
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{folder}: cannot be read: {error}") from error
    if not found:
        problem = f"{folder}: no traces in this folder (files {', '.join(_ENDINGS)})"
        if inner := _with_traces(folder):
            problem += f"; there are some in {inner}: pass that folder"
        raise ConfigError(problem)
    if len(found) > _MAX_FILES:
        raise ConfigError(f"{folder}: {len(found)} traces, more than the limit of {_MAX_FILES}")
    if outside:
        raise ConfigError(
            f"{outside[0]}: a link out of the folder, to {outside[0].resolve()}; if you mean that "
            "file, pass it directly"
        )
    return found


def _with_traces(folder: Path) -> Path | None:
    """Returns the first folder with traces in it inside a folder; archives often make one."""
    with suppress(OSError):
        for inner in sorted(item for item in folder.iterdir() if item.is_dir()):
            if any(item.name.endswith(_ENDINGS) for item in inner.iterdir()):
                return inner
    return None


def _of_file(
    file: Path, limit: int, leave_out: tuple[str, ...], only: tuple[str, ...]
) -> Iterator[tuple[str, bytearray]]:
    with _opened(file, limit) as (bounded, is_archive):
        if is_archive:
            yield from _members(file, bounded, leave_out, only)
        else:
            yield str(file), _all_of(bounded)


@contextmanager
def _opened(file: Path, limit: int) -> Iterator[tuple[_Bounded, bool]]:
    """Opens a file, unpacked if it is under gzip; also returns whether it is an archive."""
    with open_file(file) as raw:
        packed = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        if packed:
            unpacked = gzip.GzipFile(fileobj=raw)
            bounded = _Bounded(unpacked, str(file), limit, raw.tell)
        else:
            bounded = _Bounded(raw, str(file), limit)
        head = bounded.read(_TAR_BLOCK)
        bounded.put_back(head)
        yield bounded, head[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC)


def _members(
    file: Path, bounded: _Bounded, leave_out: tuple[str, ...], only: tuple[str, ...]
) -> Iterator[tuple[str, bytearray]]:
    found = False
    with _archive(file, bounded) as archive:
        for member, name in _files_of(file, archive):
            if not name.endswith(only) or name.endswith(leave_out):
                continue
            content = archive.extractfile(member)
            if content is None:
                continue
            found = True
            place = f"{file}:{member.name}"
            if name.endswith(".gz"):
                unpacked = gzip.GzipFile(fileobj=content)
                inner = _Bounded(unpacked, place, bounded.limit, content.tell)
            else:
                inner = _Bounded(content, place, bounded.limit)
            yield place, _all_of(inner)
    if not found:
        raise ConfigError(f"{file}: no .json files in this archive")


@contextmanager
def _archive(file: Path, bounded: _Bounded) -> Iterator[tarfile.TarFile]:
    """Opens an archive as a stream; explains damage that is found while it is read."""
    try:
        with tarfile.open(fileobj=bounded, mode="r|") as archive:
            yield archive
    # tarfile does not check the numbers in an archive's headers.
    except (tarfile.TarError, ValueError, LookupError, OverflowError) as error:
        raise ConfigError(f"{file}: the archive is damaged ({error}); copy it again") from error


def _files_of(file: Path, archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """Yields the JSON files of an archive with their names, without folders."""
    found = 0
    for member in archive:
        _check_member(file, member)
        name = PurePosixPath(member.name).name
        if not member.isfile() or name.startswith(".") or not name.endswith(_ENDINGS[:2]):
            continue
        found += 1
        if found > _MAX_FILES:
            raise ConfigError(f"{file}: more than the limit of {_MAX_FILES} files")
        yield member, name


def _check_member(file: Path, member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name:
        raise ConfigError(f"{file}: the member `{member.name[:200]}` points outside the archive")
    if member.issparse() or not (member.isfile() or member.isdir()):
        raise ConfigError(
            f"{file}: the member `{member.name[:200]}` is a link, a device or a sparse file; "
            "only files and folders are read"
        )


def _all_of(stream: _Readable) -> bytearray:
    content = bytearray()
    while block := stream.read(_BLOCK_BYTES):
        content += block
    return content


class _Bounded(io.RawIOBase):
    """A stream that returns at most a limit of bytes and explains damage.

    Args:
        stream: Where the bytes come from.
        name: Name in messages.
        limit: Most bytes.
        packed_bytes: Returns the packed bytes consumed so far; None for plain files.
    """

    def __init__(
        self,
        stream: _Readable,
        name: str,
        limit: int,
        packed_bytes: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._packed_bytes = packed_bytes
        self._stream = stream
        self._name = name
        self._given = 0
        self._ahead = b""
        self.limit = limit

    def put_back(self, block: bytes) -> None:
        """Returns bytes that were read ahead to the stream."""
        self._ahead = block

    def read(self, size: int = -1, /) -> bytes:
        """Reads up to a number of bytes."""
        if self._ahead:
            cut = len(self._ahead) if size < 0 else size
            block, self._ahead = self._ahead[:cut], self._ahead[cut:]
            return block
        try:
            block = self._stream.read(size if size >= 0 else _BLOCK_BYTES)
        except gzip.BadGzipFile as error:
            raise ConfigError(
                f"{self._name}: the gzip data is damaged ({error}); copy it again"
            ) from error
        except (EOFError, zlib.error) as error:
            raise ConfigError(
                f"{self._name}: the gzip data is damaged or truncated after {self._given} "
                "unpacked bytes; copy it again"
            ) from error
        self._given += len(block)
        if self._given > self.limit:
            raise ConfigError(
                f"{self._name}: more than the limit of {self.limit} unpacked bytes; "
                f"profile fewer steps, or set {LIMIT_VARIABLE} to more bytes"
            )
        if self._packed_bytes is not None and self._given > _UNSUSPECTED_BYTES:
            ratio = self._given // max(self._packed_bytes(), 1)
            if ratio > _MAX_RATIO:
                raise ConfigError(
                    f"{self._name}: unpacks to {ratio} times its size, more than the limit of "
                    f"{_MAX_RATIO}; traces do not compress that well: unpack it yourself if it "
                    "is one"
                )
        return block
