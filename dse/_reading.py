"""Reading files that nobody vouches for: ordinary files only, of bounded size, as plain data.

Every file that the package reads comes through here, so that a file from a stranger can neither
hang a command (a pipe, a device), nor take all memory (size, nesting), nor smuggle in what JSON
does not know (a key twice, numbers that are none, half characters).
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

#: Limits on the size of one file, by what it is: what people write (YAML, JSON), tables and logs
#: of measurements, captured traces once unpacked, and the journal of a study.
MAX_DOCUMENT_BYTES = 64 * 2**20
MAX_TABLE_BYTES = 512 * 2**20
MAX_TRACE_BYTES = 4 * 2**30
MAX_JOURNAL_BYTES = 4 * 2**30

#: Environment variable with another limit, in bytes, for files of every kind.
LIMIT_VARIABLE = "DSE_MAX_FILE_BYTES"

#: Most ranks of a job, ten times the largest; what is kept of each has to fit into memory.
MAX_RANKS = 1_000_000

#: Levels of lists and blocks inside each other.
MAX_DEPTH = 64

#: Digits of a whole number: what fits into a floating-point number.
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
    """JSON text that is not taken.

    Attributes:
        message: What is wrong.
        line: 1-based line, or None where the whole text is meant.
        column: 1-based column, likewise.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        self.message = message
        self.line = line
        self.column = column
        super().__init__(message if line is None else f"{message} (line {line}, column {column})")


def byte_limit(usual: int) -> int:
    """Returns the limit on the bytes of a file.

    Args:
        usual: The limit where the environment variable `DSE_MAX_FILE_BYTES` gives no other.

    Raises:
        ConfigError: The variable is not a whole number of bytes.
    """
    given = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not given:
        return usual
    if not (given.isascii() and given.isdecimal() and len(given) <= 18 and int(given) > 0):
        raise ConfigError(
            f"{LIMIT_VARIABLE}={given[:40]}: expected a whole number of bytes such as 1000000000"
        )
    return int(given)


@contextmanager
def open_file(path: str | Path, limit_bytes: int | None = None) -> Iterator[BufferedReader]:
    """Opens an ordinary file for reading; links are followed.

    Args:
        path: The file.
        limit_bytes: Most bytes that it may have now, unless the environment says otherwise; None
            where the reader stops by itself.

    Raises:
        ConfigError: It is missing, a folder, a pipe or a device, too large, or cannot be read;
            also when reading fails later.
    """
    file = Path(path)
    # A pipe that nobody writes to would block here otherwise.
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
    """Reads a whole file of bounded size.

    Args:
        path: The file.
        limit_bytes: Most bytes, unless the environment says otherwise.

    Raises:
        ConfigError: It cannot be opened, see :func:`open_file`, or is larger than the limit.
    """
    limit = byte_limit(limit_bytes)
    with open_file(path, limit_bytes) as stream:
        content = bytearray()
        # What the system says of the size of a file need not be so: it may be growing.
        while block := stream.read(_BLOCK_BYTES):
            content += block
            if len(content) > limit:
                raise too_large(path, f"at least {len(content)} bytes", limit)
    return bytes(content)


def read_text(path: str | Path, limit_bytes: int = MAX_DOCUMENT_BYTES) -> str:
    """Reads a UTF-8 text of bounded size; a byte-order mark is left out.

    Raises:
        ConfigError: As for :func:`read_bytes`, or the text is not UTF-8, with the line.
    """
    return decoded(read_bytes(path, limit_bytes), path)


def decoded(content: bytes, path: str | Path) -> str:
    """Returns UTF-8 text without a byte-order mark.

    Args:
        content: The text's bytes.
        path: File name for the message.

    Raises:
        ConfigError: It is not UTF-8, with the line.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            diagnostics=(Diagnostic(shown_path(path), line, None, "", "not UTF-8 text"),)
        ) from error


def load_json(text: str | bytes, *, finite: bool = True) -> Any:
    """Returns the plain data of a JSON text that keeps to the rules.

    Refused are a key twice in one block, halves of characters, whole numbers that no
    floating-point number can hold, and more than 64 levels of nesting.

    Args:
        text: The JSON.
        finite: Refuse `NaN`, `Infinity` and numbers beyond the largest one, too. Readers that look
            at every number themselves can say better where it stands.

    Raises:
        JsonProblemError: The text is not such JSON.
    """
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8-sig")
        data = json.loads(
            plain,
            object_pairs_hook=_block,
            parse_int=_whole_number,
            parse_constant=_no_number if finite else None,
            parse_float=_number if finite else None,
        )
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg}"
        raise JsonProblemError(message, error.lineno, error.colno) from error
    except UnicodeDecodeError as error:
        raise JsonProblemError("not UTF-8 text") from error
    except RecursionError:
        raise JsonProblemError(f"nested more than {MAX_DEPTH} levels deep") from None
    check_depth(data)
    if _SURROGATE.search(plain):
        _check_characters(data)
    return data


def check_depth(data: object) -> None:
    """Refuses lists and blocks that lie too deep inside each other.

    Raises:
        JsonProblemError: There are more than 64 levels.
    """
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


def too_large(path: str | Path, found: str, limit: int) -> ConfigError:
    """Returns the error for a file beyond its limit, with the way out."""
    return ConfigError(
        f"{shown_path(path)}: {found}, more than the limit of {limit}; if the file is right, set "
        f"{LIMIT_VARIABLE} to more bytes"
    )


def is_there(path: Path) -> bool:
    """Whether a file or folder of this name is there; there is none of an impossible name."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a path is a folder; one of an impossible name is none."""
    return is_there(path) and path.is_dir()


def shown_path(path: str | Path) -> str:
    """Returns a path for messages; one of absurd length is cut."""
    text = str(path)
    return text if len(text) <= 1000 else f"{text[:500]}…"


def _check_ordinary(file: Path, found: os.stat_result, limit_bytes: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = next((words for test, words in _KINDS if test(found.st_mode)), "no ordinary file")
        raise ConfigError(f"{shown_path(file)}: this is {what}; a file is expected")
    if limit_bytes is not None and found.st_size > (limit := byte_limit(limit_bytes)):
        raise too_large(file, f"{found.st_size} bytes", limit)


def _unreadable(file: Path, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else None
    return ConfigError(f"{shown_path(file)}: cannot be read: {reason or error}")


def _block(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    block = dict(pairs)
    if len(block) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonProblemError(f"the key `{key[:60]}` is given twice in one block")
            seen.add(key)
    return block


def _no_number(word: str) -> float:
    raise JsonProblemError(f"`{word}` is no number of JSON; a finite number is expected")


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise JsonProblemError(
            f"`{digits[:20]}…` has {len(digits)} digits, more than the limit of {MAX_DIGITS}"
        )
    return int(digits)


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise JsonProblemError(f"`{digits[:40]}` is beyond the largest number, 1.8e308")
    return number


def _check_characters(data: object) -> None:
    """Refuses text with half a character, which no file could be written with."""
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
                    f"the text `{place}` holds half of a surrogate pair, which is no character"
                ) from None
