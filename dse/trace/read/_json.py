"""JSON of Kineto traces → typed events, a bounded number at a time.

One scan finds where events begin and end; these are then decoded in blocks. An event that does not
fit the types is read separately and leniently.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import (
    UNSET,
    DecodeError,
    Raw,
    Struct,
    UnsetType,
    ValidationError,
    field,
    json,
    structs,
)
import numpy as np

from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BLOCK_EVENTS = 8192
#: Values take memory, however short they are written; those of traces have 15 bytes on average.
_MANY_VALUES = 20_000_000
_LEAST_BYTES = 6
_MOST_ELEMENTS = 2.0**62
_NOT_NUMBERS = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|inf|NaN|Infinity|infinity)(?=\s*[,}\]])")
#: Missing text.
NOTHING = Raw(b"")

Document = TypeVar("Document")


class Arguments(Struct, gc=False):
    """Arguments of an event; others are skipped."""

    correlation: int = -1
    device: int = -1
    stream: int = -1
    bytes: int = -1
    external: int = field(default=-1, name="External id")
    external_old: int = field(default=-1, name="external id")
    order: int = field(default=-1, name="Ev Idx")
    record_function: int = field(default=-1, name="Record function id")
    sequence: int = field(default=-1, name="Sequence number")
    forward_thread: int = field(default=-1, name="Fwd thread id")
    dims: Raw = field(default=NOTHING, name="Input Dims")
    types: Raw = field(default=NOTHING, name="Input type")
    wait_stream: int = field(default=-1, name="wait_on_stream")
    wait_correlation: int = field(default=-1, name="wait_on_cuda_event_record_corr_id")
    label: str = field(default="", name="name")
    collective: str = field(default="", name="Collective name")
    input_elements: int = field(default=-1, name="In msg nelems")
    output_elements: int = field(default=-1, name="Out msg nelems")
    group_size: int = field(default=0, name="Group size")
    dtype: str = ""
    group: str = field(default="", name="Process Group Name")
    ranks: Raw = field(default=NOTHING, name="Process Group Ranks")
    input_splits: Raw = field(default=NOTHING, name="In split size")
    output_splits: Raw = field(default=NOTHING, name="Out split size")
    collective_sequence: int = field(default=-1, name="Seq")
    source: int = field(default=-1, name="Src Rank")
    destination: int = field(default=-1, name="Dst Rank")


class Event(Struct, gc=False):
    """One entry of `traceEvents`; missing times are `nan`."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = math.nan
    dur: float = math.nan
    pid: int | str = ""
    tid: int | str = ""
    id: int | str = -1
    args: Arguments | None = None


class KinetoDocument(Struct):
    """The top of a Kineto trace."""

    events: list[Raw] | UnsetType = field(default=UNSET, name="traceEvents")
    distributed: Raw = field(default=NOTHING, name="distributedInfo")
    devices: Raw = field(default=NOTHING, name="deviceProperties")
    base_time: int = field(default=0, name="baseTimeNanoseconds")
    nodes: Raw = NOTHING


_EVENTS = json.Decoder(list[Event])
_EVENT = json.Decoder(Event)
#: Spelling and name of the arguments of each type.
_NUMBERS, _TEXTS, _RAWS = (
    tuple((info.encode_name, info.name) for info in structs.fields(Arguments) if info.type is kind)
    for kind in (int, str, Raw)
)


def decode(content: bytearray, kind: type[Document], file: str) -> tuple[Document, list[str]]:
    """Decodes a whole document; NaN and broken UTF-8 are repaired and noted.

    Raises:
        ConfigError: The text is empty, truncated, not JSON, or not of this kind.
    """
    commas = content.count(b",")
    if commas > _MANY_VALUES and commas * _LEAST_BYTES > len(content):
        raise ConfigError(
            f"{file}: not a trace: at least {commas} values in {len(content)} bytes, which would "
            "take many times their size in memory"
        )
    notes: list[str] = []
    text: bytes | bytearray = content
    while True:
        try:
            return json.decode(text, type=kind), notes
        except ValidationError as error:
            raise ConfigError(f"{file}: not a trace: {error}") from error
        except (DecodeError, UnicodeDecodeError) as error:
            repaired = None if notes else _repaired(text)
            if repaired is None:
                raise ConfigError(_diagnosis(text, file, error)) from error
            text, note = repaired
            notes.append(note)
        except RecursionError:
            raise ConfigError(f"{file}: nested too deeply for a trace") from None


def _repaired(text: bytes | bytearray) -> tuple[bytes, str] | None:
    repaired, numbers = _NOT_NUMBERS.subn(rb"\1null", bytes(text))
    what = [f"{numbers} values that are not numbers were taken as missing"] if numbers else []
    try:
        repaired.decode("utf-8")
    except UnicodeDecodeError:
        repaired = repaired.decode("utf-8", "replace").encode("utf-8")
        what.append("bytes that are not UTF-8 were replaced")
    return (repaired, "; ".join(what)) if what else None


def _diagnosis(content: bytes | bytearray, file: str, error: Exception) -> str:
    if not content.strip():
        return f"{file}: the file is empty; a JSON trace is expected"
    if "truncated" in str(error):
        last = content.count(b'"ph"') - 1
        where = f", in or after event {last}" if last >= 0 else ""
        return (
            f"{file}: the JSON ends too early, after {len(content)} bytes{where}; export or copy "
            "the trace again"
        )
    return f"{file}: not valid JSON: {error}"


def plain(content: bytes | str | Raw) -> Any:
    """Returns the data of JSON text; None if it is empty or invalid."""
    text = content if isinstance(content, str) else bytes(content)
    try:
        return json.decode(text) if text else None
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None


def compact(content: bytes) -> str:
    """Returns JSON text without spaces; invalid text is returned as it is."""
    if not content:
        return ""
    try:
        return json.encode(json.decode(content)).decode()
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return content.decode("utf-8", "replace")


def elements_of(shape: object) -> int:
    """Returns the number of elements of a recorded shape; those of lists of shapes are multiplied.

    Raises:
        TypeError: Not a shape.
        ValueError: Not a shape, or larger than any memory.
    """
    size = float(np.prod(cast("list[int]", shape), dtype=np.float64))
    if not 0 <= size < _MOST_ELEMENTS:
        raise ValueError(f"a shape of {size:g} elements")
    return int(np.prod(cast("list[int]", shape), dtype=np.int64))


def blocks(raws: Sequence[Raw]) -> Iterator[tuple[int, list[Event | None]]]:
    """Yields the index of the first event of each block and its events; None if unreadable."""
    for first in range(0, len(raws), _BLOCK_EVENTS):
        part = raws[first : first + _BLOCK_EVENTS]
        try:
            yield first, list(_EVENTS.decode(b"[" + b",".join(part) + b"]"))
        except (DecodeError, UnicodeDecodeError, RecursionError):
            yield first, [_one(raw) for raw in part]


def _one(raw: Raw) -> Event | None:
    try:
        return _EVENT.decode(raw)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        data = json.decode(bytes(raw).decode("utf-8", "replace"))
    except (DecodeError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    given = data.get("args")
    return Event(
        ph=_text(data.get("ph")),
        name=_text(data.get("name")),
        cat=_text(data.get("cat")),
        ts=_number(data.get("ts")),
        dur=_number(data.get("dur")),
        pid=_key(data.get("pid")),
        tid=_key(data.get("tid")),
        id=_key(data.get("id")),
        args=_arguments(given) if isinstance(given, dict) else None,
    )


def _arguments(given: dict[str, Any]) -> Arguments:
    result = Arguments()
    for written, ours in _NUMBERS:
        number = _number(given.get(written))
        if math.isfinite(number):
            setattr(result, ours, int(number))
    for written, ours in _TEXTS:
        setattr(result, ours, _text(given.get(written)))
    for written, ours in _RAWS:
        if written in given:
            setattr(result, ours, Raw(json.encode(given[written])))
    return result


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _key(value: object) -> int | str:
    return value if isinstance(value, int | str) else _text(value)


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan
