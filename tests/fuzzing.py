"""Mutations of valid files, and a check of what a reader does with them.

Seeds are mutated as bytes (flipped, cut, repeated, with hostile tokens inserted) and as data
(values of another type or size; keys removed, repeated or moved; nesting). The same seed gives the
same files on every machine.
"""

from __future__ import annotations

from contextlib import contextmanager
import copy
import gzip
import json
import os
import random
import re
import resource
import signal
from typing import TYPE_CHECKING, Any

import yaml

from dse.errors import DseError
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

#: Files over all readers, in slow and in default runs.
FILES = int(os.environ.get("DSE_FUZZ_FILES", "10000"))
QUICK_FILES = 1000

#: Processor time that one file may take.
MOST_SECONDS = 10.0

#: Memory that one reader may take on top of what the process has.
MOST_BYTES = 2 * 2**30

_TOKENS: tuple[bytes, ...] = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e400",
    b"-1e-400",
    b"NaN",
    b"-Infinity",
    b".nan",
    b".inf",
    b"0x" + b"f" * 2000,
    b"9" * 400,
    b"9" * 5000,
    b"1000000000000000000",
    b"9223372036854775808",
    b"-9223372036854775809",
    b"[" * 100,
    b"[" * 20000,
    b'{"a":' * 200,
    b"{a: " * 200,
    b"- " * 300,
    b"!!python/object/apply:os.system [x]",
    b"!!bool x",
    b"!!int ''",
    b"!!float ''",
    b"!!timestamp x",
    b"&a [*a, *a]",
    b"&a {<<: *a}",
    b"<<: [{a: 1}, 2]",
    b"1:1:1:1:1",
    b"2024-13-45",
    b"\\ud800",
    b'"\\ud800"',
    b'"\\u0000"',
    b'"\\x00"',
    "\u2028\u202e\x85".encode(),
    b"../../../../etc/passwd",
    b"/dev/zero",
    b"\x1b]0;x\x07",
    b"[red]",
    b"'",
    b'"',
    b"{",
    b"}",
    b",",
    b":",
    b"\n",
    b"\t",
    b"---\n",
    b"...\n",
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    7,
    0.5,
    -0.0,
    1e-320,
    1e308,
    -1e308,
    float("inf"),
    float("nan"),
    2**31,
    2**53 + 1,
    2**63,
    -(2**63) - 1,
    10**18,
    10**30,
    10**299,
    10**320,
    "",
    " ",
    "x",
    "x" * 300,
    "x" * 70000,
    "0",
    "1e999",
    "nan",
    "-5 GiB",
    "1e308 TB/s",
    "5 us",
    "none",
    "../../x",
    "/dev/zero",
    "a\0b",
    "\x1b[31m",
    "[red]x[/]",
    "</script><script>alert(1)</script>",
    "=1+1",
    "\u202eabc",
    [],
    [[]],
    {},
    [None],
    {"": None},
    {"kind": "x"},
)
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")
_WORD = re.compile(rb"[A-Za-z_]{2,}")


class TooSlowError(BaseException):
    """A file took longer than any may."""


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """Returns content with one to four changes of its bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(content) + 1)
        end = min(len(content), at + rng.choice((1, 2, 8, 64, 1024)))
        kind = rng.randrange(8)
        if kind == 0 and at < len(content):
            flipped = content[at] ^ (1 << rng.randrange(8))
            content = content[:at] + bytes((flipped,)) + content[at + 1 :]
        elif kind == 1:
            content = content[:at]
        elif kind == 2:
            content = content[:at] + content[end:]
        elif kind == 3:
            content = content[:end] + content[at:]
        elif kind == 4:
            content = content[:at] + rng.choice(_TOKENS) + content[at:]
        elif kind == 5:
            content = content[:at] + rng.randbytes(end - at) + content[end:]
        else:
            content = _swapped(content, _NUMBER if kind == 6 else _WORD, rng)
    return content


def _swapped(content: bytes, pattern: re.Pattern[bytes], rng: random.Random) -> bytes:
    """Replaces one number or word by a hostile one, or by another of the file."""
    found = list(pattern.finditer(content))
    if not found:
        return content
    one, other = rng.choice(found), rng.choice(found)
    token = other.group() if rng.random() < 0.4 else rng.choice(_TOKENS)
    return content[: one.start()] + token + content[one.end() :]


def mutated_data(data: Any, rng: random.Random) -> Any:
    """Returns plain data with one to three changes of its values or keys."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(data))
        if not places:
            return rng.choice(_VALUES)
        holder, key = rng.choice(places)
        kind = rng.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            other, name = rng.choice(places)
            holder[key] = copy.deepcopy(other[name])
        elif kind == 2 and isinstance(holder, dict):
            holder[str(rng.choice(_VALUES))[:100]] = holder.pop(key)
        elif kind == 2:
            holder.append(copy.deepcopy(holder[key]))
        elif kind == 3 and isinstance(holder[key], list) and holder[key]:
            holder[key] = holder[key] * rng.choice((2, 3, 100))
        elif kind == 4:
            deep: Any = holder[key]
            for _ in range(rng.choice((1, 2, 70))):
                deep = [deep] if rng.random() < 0.5 else {"a": deep}
            holder[key] = deep
        elif kind == 5 and isinstance(holder[key], int | float) and abs(holder[key]) < 1e300:
            holder[key] *= rng.choice((-1, 0, 2, 1000, 10**9, 10**15))
        else:
            holder[key] = copy.deepcopy(rng.choice(_VALUES))
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [data]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])


def as_json(data: Any) -> bytes:
    """Returns data as JSON, with whatever it should not hold."""
    return json.dumps(data).encode("utf-8", "surrogatepass")


def as_yaml(data: Any) -> bytes:
    """Returns data as YAML."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(data, Dumper=dumper, allow_unicode=True, sort_keys=False).encode("utf-8")


def variants(seeds: Sequence[bytes], count: int, number: int) -> Iterator[bytes]:
    """Yields the seeds, then mutated files, of the bytes and, where there are any, of the data.

    Args:
        seeds: Valid files.
        count: How many files.
        number: Seed of the random numbers.
    """
    rng = random.Random(number)
    plain = [_loaded(seed) for seed in seeds]
    yield from seeds
    for _ in range(count):
        at = rng.randrange(len(seeds))
        data, write = plain[at]
        if data is None or rng.random() < 0.4:
            yield mutated_bytes(seeds[at], rng)
        else:
            yield write(mutated_data(data, rng))


def _loaded(seed: bytes) -> tuple[Any, Callable[[Any], bytes]]:
    try:
        return json.loads(seed), as_json
    except ValueError:
        pass
    try:
        data = yaml.safe_load(seed)
    except (yaml.YAMLError, UnicodeDecodeError):
        data = None
    return (data if isinstance(data, dict) else None), as_yaml


def packed(content: bytes) -> bytes:
    """Returns content under gzip, quickly."""
    return gzip.compress(content, compresslevel=1, mtime=0)


@contextmanager
def limits() -> Iterator[Callable[[], None]]:
    """Gives a call that starts the clock of the next file; memory is limited, too."""

    def too_slow(_signal: int, _frame: object) -> None:
        raise TooSlowError(f"more than {MOST_SECONDS} s of processor time")

    before = signal.signal(signal.SIGVTALRM, too_slow)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MOST_BYTES, hard))
    try:
        yield lambda: signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check_words(error: Exception) -> None:
    """Checks that an error says something, at some length, that can be printed."""
    words = str(error)
    assert words.strip()
    assert len(words) < 100_000
    assert words.encode("utf-8")


def check_reader(
    files: Iterator[bytes],
    path: Path,
    read: Callable[[Path], object],
    *,
    valid: int = 0,
) -> None:
    """Checks that each file is read and usable, or refused by an error of ours with words.

    Args:
        files: What is written to the path, one after the other.
        path: Where.
        read: Reads the path and uses what it gets.
        valid: How many files, the first ones, have to be read.
    """
    done = number = 0
    with limits() as start:
        for number, content in enumerate(files):
            path.write_bytes(content)
            start()
            try:
                read(path)
            except DseError as error:
                if number < valid:
                    raise AssertionError(f"file {number} is valid, but: {error}") from error
                check_words(error)
            except BaseException as error:
                kept = path.with_name(f"kept_{number}{''.join(path.suffixes)}")
                kept.write_bytes(content)
                raise AssertionError(
                    f"file {number}, kept as {kept}: {type(error).__name__}: {str(error)[:300]}"
                ) from error
            else:
                done += 1
    if number > 100:
        assert done > valid, "no mutated file was read, so using one was not tested"


def mutated_lines(seed: bytes, files: int, number: int):
    """Yields files of JSON lines in which one line is changed."""
    rng = random.Random(number)
    lines = seed.splitlines()
    yield seed
    for _ in range(files):
        at = rng.randrange(len(lines))
        _, line = variants([lines[at]], 1, rng.randrange(2**32))
        yield b"\n".join([*lines[:at], line, *lines[at + 1 :]]) + b"\n"


def text_of(*paths: str) -> list[bytes]:
    """Returns the content of files of the repository."""
    return [(ROOT / path).read_bytes() for path in paths]
