"""The part of UBJSON (ubjson.org, draft 12) that XGBoost writes, read strictly.

Numbers are big-endian. Arrays of numbers carry their type and count in front; strings and keys
their length. What else the format has, a key twice, and anything behind the end are refused, so
that there is only one way to read what is accepted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Blocks, lists, words, switches, numbers, and arrays of numbers.
Value: TypeAlias = "dict[str, Value] | list[Value] | str | bool | int | float | NDArray[Any]"

_SCALARS = {
    ord("i"): struct.Struct(">b"),
    ord("U"): struct.Struct(">B"),
    ord("I"): struct.Struct(">h"),
    ord("l"): struct.Struct(">i"),
    ord("L"): struct.Struct(">q"),
    ord("d"): struct.Struct(">f"),
    ord("D"): struct.Struct(">d"),
}
_DTYPES = {marker: np.dtype(one.format) for marker, one in _SCALARS.items()}
_WHOLE = frozenset(map(ord, "iUIlL"))
_MAX_DEPTH = 16
_MAX_WORD = 10_000


def read_ubjson(content: bytes) -> Value:
    """Returns the value that a text in UBJSON holds.

    Raises:
        ValueError: It is none, or not one that XGBoost would write.
    """
    reader = _Reader(content)
    try:
        value = reader.value(reader.byte(), 0)
    except (IndexError, struct.error) as error:
        raise ValueError("it ends too early") from error
    if reader.at != len(content):
        raise ValueError(f"there is more behind byte {reader.at}")
    return value


class _Reader:
    """A place in the text."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def value(self, marker: int, depth: int) -> Value:
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
        if marker == ord("{"):
            return self._block(depth)
        if marker == ord("["):
            return self._list(depth)
        if marker == ord("S"):
            return self._word()
        if marker in (ord("T"), ord("F")):
            return marker == ord("T")
        return self._scalar(marker)

    def _scalar(self, marker: int) -> int | float:
        if marker not in _SCALARS:
            raise ValueError(f"an unknown marker {marker} at byte {self.at - 1}")
        kind = _SCALARS[marker]
        (number,) = kind.unpack_from(self._content, self.at)
        self.at += kind.size
        return number  # type: ignore[no-any-return]

    def _length(self) -> int:
        marker = self.byte()
        length = self._scalar(marker)
        if marker not in _WHOLE or not 0 <= length <= len(self._content) - self.at:
            raise ValueError(f"an impossible length {length} at byte {self.at}")
        return int(length)

    def _word(self) -> str:
        length = self._length()
        if length > _MAX_WORD:
            raise ValueError(f"a word of {length} bytes")
        self.at += length
        return self._content[self.at - length : self.at].decode("utf-8")

    def _block(self, depth: int) -> Value:
        block: dict[str, Value] = {}
        while self._content[self.at] != ord("}"):
            key = self._word()
            if key in block:
                raise ValueError(f"the key `{key[:60]}` is given twice")
            block[key] = self.value(self.byte(), depth + 1)
        self.at += 1
        return block

    def _list(self, depth: int) -> Value:
        following = self._content[self.at]
        if following == ord("$"):
            self.at += 1
            return self._array()
        if following == ord("#"):
            self.at += 1
            return [self.value(self.byte(), depth + 1) for _ in range(self._length())]
        listed = []
        while self._content[self.at] != ord("]"):
            listed.append(self.value(self.byte(), depth + 1))
        self.at += 1
        return listed

    def _array(self) -> Value:
        marker = self.byte()
        if marker not in _DTYPES or self.byte() != ord("#"):
            raise ValueError(f"an array of an unknown type at byte {self.at}")
        count, dtype = self._length(), _DTYPES[marker]
        start, self.at = self.at, self.at + count * dtype.itemsize
        if self.at > len(self._content):
            raise ValueError("it ends too early")
        return np.frombuffer(self._content, dtype, count, start)
