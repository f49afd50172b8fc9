"""From a path to the text of each trace: plain, gzip, tar, a folder; no more than a limit."""

from __future__ import annotations

import gzip
import io
from pathlib import Path, PurePosixPath
import tarfile
from typing import TYPE_CHECKING, Protocol
import zlib

from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Limit on the unpacked bytes of one file or archive.
MAX_UNPACKED_BYTES = 4 * 2**30

_BLOCK_BYTES = 4 * 2**20
_GZIP_MAGIC = b"\x1f\x8b"
_TAR_MAGIC = b"ustar"
_TAR_MAGIC_AT = 257
_TAR_BLOCK = 512
_ENDINGS = (".json", ".json.gz", ".tar.gz", ".tgz")

#: In folders and archives, files of a capture that are no Kineto traces, and no execution traces.
NOT_KINETO = (".capture.json", ".et.json", ".et.json.gz")
NOT_EXECUTION_TRACES = (".capture.json", ".pt.trace.json", ".pt.trace.json.gz")


class _Readable(Protocol):
    """Whatever bytes can be read from."""

    def read(self, size: int = -1, /) -> bytes:
        """Reads up to a number of bytes."""


def documents(
    path: str | Path,
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES,
    leave_out: tuple[str, ...] = (),
) -> Iterator[tuple[str, bytearray]]:
    """Yields the name and the text of each trace, one at a time.

    Args:
        path: A JSON file, the same under gzip, a tar archive (under gzip or not) of such files,
            or a folder of any of them.
        max_unpacked_bytes: Limit on the bytes that one file may unpack to.
        leave_out: Endings of files in folders and archives that are not looked at.

    Raises:
        ConfigError: The path does not exist or cannot be read, gzip data or an archive are damaged
            or reach outside, or more bytes come out than the limit allows.
    """
    file = Path(path)
    if file.is_dir():
        found = sorted(
            item
            for item in file.iterdir()
            if item.name.endswith(_ENDINGS) and not item.name.endswith(leave_out)
        )
        if not found:
            raise ConfigError(f"{file}: no traces in this folder; {', '.join(_ENDINGS)} are read")
        for item in found:
            yield from _of_file(item, max_unpacked_bytes, leave_out)
    else:
        yield from _of_file(file, max_unpacked_bytes, leave_out)


def _of_file(
    file: Path, limit: int, leave_out: tuple[str, ...]
) -> Iterator[tuple[str, bytearray]]:
    try:
        with file.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            stream: _Readable = gzip.GzipFile(fileobj=raw) if packed else raw
            yield from _of_stream(file, _Bounded(stream, str(file), limit), leave_out)
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file") from None
    except gzip.BadGzipFile as error:
        raise ConfigError(f"{file}: the gzip data is damaged ({error}); copy it again") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error


def _of_stream(
    file: Path, bounded: _Bounded, leave_out: tuple[str, ...]
) -> Iterator[tuple[str, bytearray]]:
    head = bounded.read(_TAR_BLOCK)
    bounded.put_back(head)
    if head[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC):
        yield from _members(file, bounded, leave_out)
    else:
        yield str(file), _all_of(bounded)


def _members(
    file: Path, bounded: _Bounded, leave_out: tuple[str, ...]
) -> Iterator[tuple[str, bytearray]]:
    found = False
    try:
        with tarfile.open(fileobj=bounded, mode="r|") as archive:
            for member in archive:
                _check_member(file, member)
                name = PurePosixPath(member.name).name
                content = archive.extractfile(member) if member.isfile() else None
                if content is None or name.startswith(".") or not name.endswith(_ENDINGS[:2]):
                    continue
                if name.endswith(leave_out):
                    continue
                found = True
                place = f"{file}:{member.name}"
                if name.endswith(".gz"):
                    unpacked = gzip.GzipFile(fileobj=content)
                    yield place, _all_of(_Bounded(unpacked, place, bounded.limit))
                else:
                    yield place, _all_of(content)
    except tarfile.TarError as error:
        raise ConfigError(f"{file}: the archive is damaged ({error}); copy it again") from error
    if not found:
        raise ConfigError(f"{file}: no .json files in this archive")


def _check_member(file: Path, member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name:
        raise ConfigError(f"{file}: the member `{member.name[:200]}` points outside the archive")
    if not (member.isfile() or member.isdir()):
        raise ConfigError(
            f"{file}: the member `{member.name[:200]}` is a link or a device; "
            "only files and folders are read"
        )


def _all_of(stream: _Readable) -> bytearray:
    content = bytearray()
    while block := stream.read(_BLOCK_BYTES):
        content += block
    return content


class _Bounded(io.RawIOBase):
    """A stream that gives no more than a limit of bytes and explains damage."""

    def __init__(self, stream: _Readable, name: str, limit: int) -> None:
        super().__init__()
        self._stream = stream
        self._name = name
        self._given = 0
        self._ahead = b""
        self.limit = limit

    def put_back(self, block: bytes) -> None:
        """Gives bytes again that were read ahead."""
        self._ahead = block

    def read(self, size: int = -1, /) -> bytes:
        """Reads up to a number of bytes."""
        if self._ahead:
            cut = len(self._ahead) if size < 0 else size
            block, self._ahead = self._ahead[:cut], self._ahead[cut:]
            return block
        try:
            block = self._stream.read(size if size >= 0 else _BLOCK_BYTES)
        except (EOFError, zlib.error) as error:
            raise ConfigError(
                f"{self._name}: the gzip data is damaged or cut off after {self._given} unpacked "
                "bytes; copy it again"
            ) from error
        self._given += len(block)
        if self._given > self.limit:
            raise ConfigError(
                f"{self._name}: more than the limit of {self.limit} unpacked bytes; "
                "profile fewer steps"
            )
        return block
