"""Safe reading of untrusted files.

Every file that the package reads goes through this module. An untrusted file cannot hang a command
(pipes and devices are rejected), exhaust memory (size and nesting are limited) or contain invalid
JSON (duplicate keys, NaN and infinity, lone surrogates).
"""

from __future__ import annotations

from contextlib import contextmanager
import json
import math
import os
from pathlib import Path
import re
import stat
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError, Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

#: Size limits of one file: YAML and JSON documents, tables and logs of measurements, captured
#: traces once unpacked, and the journal of a study.
MAX_DOCUMENT_BYTES = 64 * 2**20
MAX_TABLE_BYTES = 512 * 2**20
MAX_TRACE_BYTES = 4 * 2**30
MAX_JOURNAL_BYTES = 4 * 2**30

#: Environment variable that overrides the size limit, in bytes, for files of every kind.
LIMIT_VARIABLE = "DSE_MAX_FILE_BYTES"

#: Most ranks of a job, ten times the largest real one: per-rank data has to fit into memory.
MAX_RANKS = 1_000_000

#: Most levels of nested lists and blocks.
MAX_DEPTH = 64

#: Most digits of an integer: what fits into a float.
MAX_DIGITS = 300

_BLOCK_BYTES = 2**20
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class JsonProblemError(ValueError):
    """JSON text that is invalid or breaks a limit.

    Attributes:
        message: The problem, without its place.
        line: 1-based line; None if the problem has no place.
        column: 1-based column; None if the problem has no place.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        self.message = message
        self.line = line
        self.column = column
        super().__init__(message if line is None else f"{message} (line {line}, column {column})")


def byte_limit(default: int) -> int:
    """Returns the size limit of a file in bytes.

    Args:
        default: Limit unless the environment variable `DSE_MAX_FILE_BYTES` overrides it.

    Raises:
        ConfigError: The variable is not a positive integer.
    """
    given = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not given:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= 18 and int(given) > 0):
        raise ConfigError(
            f"{LIMIT_VARIABLE}={given[:40]}: expected a whole number of bytes such as 1000000000",
            key=LIMIT_VARIABLE,
            value=given,
        )
    return int(given)


@contextmanager
def open_file(path: str | Path, limit_bytes: int | None = None) -> Iterator[BufferedReader]:
    """Opens a regular file for reading; follows links.

    Args:
        path: The file.
        limit_bytes: Size limit before any override by the environment; None if the caller limits
            what it reads.

    Raises:
        ConfigError: The path is missing, not a regular file, too large or unreadable; also raised
            when reading fails later.
    """
    file = Path(path)
    # Without O_NONBLOCK, opening a pipe without a writer would block.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        number = os.open(file, flags | getattr(os, "O_NOCTTY", 0))
    except FileNotFoundError:
        raise ConfigError(f"{shown_path(file)}: no such file") from None
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    try:
        _check_ordinary(file, os.fstat(number), limit_bytes)
        stream = os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise
    with stream:
        try:
            yield stream
        except OSError as error:
            raise _unreadable(file, error) from error


def read_bytes(path: str | Path, limit_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Reads a whole file.

    Args:
        path: The file.
        limit_bytes: Size limit before any override by the environment.

    Raises:
        ConfigError: As for :func:`open_file`.
    """
    limit = byte_limit(limit_bytes)
    with open_file(path, limit_bytes) as stream:
        content = bytearray()
        # The size reported by the system may be wrong: the file may be growing, or in /proc.
        while block := stream.read(_BLOCK_BYTES):
            content += block
            if len(content) > limit:
                raise too_large(path, f"at least {len(content)} bytes", limit)
    return bytes(content)


def read_text(path: str | Path) -> str:
    """Reads a UTF-8 text file without its byte-order mark.

    Raises:
        ConfigError: As for :func:`read_bytes`, or the text is not UTF-8.
    """
    return decoded(read_bytes(path), path)


def decoded(content: bytes, path: str | Path) -> str:
    """Decodes UTF-8 text without its byte-order mark.

    Args:
        content: The bytes.
        path: File name for the message.

    Raises:
        ConfigError: The bytes are not UTF-8; the diagnostic has the line.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            diagnostics=(Diagnostic(shown_path(path), line, None, "", "not UTF-8 text"),)
        ) from error


def load_json(text: str | bytes, *, finite: bool = True) -> Any:
    """Parses JSON text.

    Duplicate keys, lone surrogates, integers beyond the range of floats and more than 64 levels of
    nesting are rejected.

    Args:
        text: The JSON.
        finite: Also reject `NaN`, `Infinity` and floats that overflow. Callers that validate every
            number themselves can report its place and pass False.

    Raises:
        JsonProblemError: The text is invalid or breaks a limit.
    """
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8-sig")
        data = json.loads(
            plain,
            object_pairs_hook=_unique_keys,
            parse_int=_bounded_int,
            parse_constant=_reject_constant if finite else None,
            parse_float=_finite_float if finite else None,
        )
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg}"
        raise JsonProblemError(message, error.lineno, error.colno) from error
    except UnicodeDecodeError as error:
        raise JsonProblemError("not UTF-8 text") from error
    except RecursionError:
        raise JsonProblemError(f"nested more than {MAX_DEPTH} levels deep") from None
    _check_depth(data)
    if _SURROGATE.search(plain):
        _check_characters(data)
    return data


def too_large(path: str | Path, found: str, limit: int) -> ConfigError:
    """Returns the error for a file above its size limit."""
    return ConfigError(
        f"{shown_path(path)}: {found}, more than the limit of {limit}; if the file is right, "
        f"raise the limit with {LIMIT_VARIABLE}",
        key=LIMIT_VARIABLE,
        limit=limit,
    )


def path_exists(path: Path) -> bool:
    """Returns whether a path exists; False if it is not a valid name."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Returns whether a path is a folder; False if it is not a valid name."""
    return path_exists(path) and path.is_dir()


def is_file(path: Path) -> bool:
    """Returns whether a path is a regular file; False if it is not a valid name."""
    return path_exists(path) and path.is_file()


def shown_path(path: str | Path) -> str:
    """Returns a path for messages, truncated to a readable length."""
    text = str(path)
    return text if len(text) <= 1000 else f"{text[:500]}…"


def check_writable(path: Path) -> None:
    """Refuses to replace what is no file, such as a folder, a pipe or a device.

    Raises:
        ConfigError: Something else stands at the path.
    """
    # A link such as /dev/stdout may lead to a file: not that, but the link would be replaced.
    if path.parent == Path("/dev"):
        raise ConfigError(f"{shown_path(path)}: this is a device; a file is expected")
    try:
        found = path.stat()
    except (OSError, ValueError):
        # Nothing stands there, or nothing can: writing tells.
        return
    _check_regular(path, found)


def _check_regular(file: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = next((name for test, name in _KINDS if test(found.st_mode)), "not a regular file")
        raise ConfigError(f"{shown_path(file)}: this is {what}; a file is expected")


def _check_ordinary(file: Path, found: os.stat_result, limit_bytes: int | None) -> None:
    _check_regular(file, found)
    if limit_bytes is not None and found.st_size > (limit := byte_limit(limit_bytes)):
        raise too_large(file, f"{found.st_size} bytes", limit)


def _unreadable(file: Path, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else None
    return ConfigError(f"{shown_path(file)}: cannot be read: {reason or error}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    block = dict(pairs)
    if len(block) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonProblemError(f"the key `{key[:60]}` is given twice in one block")
            seen.add(key)
    return block


def _reject_constant(text: str) -> float:
    raise JsonProblemError(f"`{text}` is not valid JSON; expected a finite number")


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise JsonProblemError(
            f"`{digits[:20]}…` has {len(digits)} digits, more than the limit of {MAX_DIGITS}"
        )
    return int(digits)


def _finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise JsonProblemError(f"`{digits[:40]}` is larger than the largest float, 1.8e308")
    return number


def _check_depth(data: object) -> None:
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise JsonProblemError(f"nested more than {MAX_DEPTH} levels deep")


def _check_characters(data: object) -> None:
    """Rejects lone surrogates, which cannot be encoded as UTF-8."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.keys()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                place = value.encode("utf-8", "replace").decode("utf-8")[:60]
                raise JsonProblemError(
                    f"the text `{place}` contains half of a surrogate pair"
                ) from None
