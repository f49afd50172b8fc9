"""A list of embedding tables as a spreadsheet or a data warehouse gives it: CSV, a line a table.

Columns go by the names that DLRM programs use (`num_embeddings` and `hash_size` are rows). All
problems are collected, each with its line, so that a list of thousands can be mended at once.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, TypeVar

from dse._suggest import hint, nearest
from dse.config import read_source
from dse.errors import ConfigError, Diagnostic
from dse.model._dlrm import DataType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Value = TypeVar("Value")

#: Columns, and other names for them; capitals, spaces and hyphens do not count.
TABLE_COLUMNS: dict[str, tuple[str, ...]] = {
    "name": ("table", "table_name", "feature", "feature_name"),
    "rows": ("num_embeddings", "hash_size", "num_rows", "vocabulary_size", "cardinality"),
    "dim": ("embedding_dim", "embedding_dimension", "embedding_vec_size", "width"),
    "pooling": ("pooling_factor", "pooling_factors", "hotness", "multi_hot_size", "avg_pooling"),
    "count": ("copies",),
    "data_type": ("dtype", "weights_precision"),
    "alpha": ("zipf_alpha", "zipf_exponent"),
}

_DELIMITERS = (",", "\t", ";", "|")
#: Between the pooling factors of features that share a table; no delimiter of columns.
_BETWEEN_FACTORS = "+"
_DATA_TYPES = {
    **{kind.value: kind for kind in DataType},
    "float32": DataType.FP32,
    "float16": DataType.FP16,
    "half": DataType.FP16,
    "bfloat16": DataType.BF16,
}

_MAX_ROWS = 10**12
_MAX_DIM = 2**24
_MAX_POOLING = 10**6
_MAX_ALPHA = 10.0
_MAX_TABLES = 100_000
_MAX_NAME = 200

#: More problems than this are not listed: they are one mistake, made on every line.
_MAX_PROBLEMS = 50
_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One line of a list of tables.

    Attributes:
        line: Where it stands in its file.
        name: Name of the table, or the first part of the names of `count` equal ones.
        rows: Rows of the table.
        dim: Columns of a row; None where the list has no such column or value.
        pooling_factors: Mean lookups a sample of each feature that reads the table; None likewise.
        count: Equal tables.
        data_type: Storage type; None likewise.
        alpha: Zipf exponent of the popularity of rows, 0 if uniform; None likewise.
    """

    line: int
    name: str
    rows: int
    dim: int | None = None
    pooling_factors: tuple[float, ...] | None = None
    count: int = 1
    data_type: DataType | None = None
    alpha: float | None = None


@dataclass(frozen=True, slots=True)
class TableList:
    """A list of tables as it was read.

    Attributes:
        file: Its path, as given.
        sha256: Digest of its bytes.
        entries: One for each line.
        unused_columns: Columns of the file that say nothing here.
    """

    file: str
    sha256: str
    entries: tuple[TableEntry, ...]
    unused_columns: tuple[str, ...] = ()

    @property
    def table_count(self) -> int:
        """Tables, equal ones counted each."""
        return sum(entry.count for entry in self.entries)


def read_table_list(path: str | Path) -> TableList:
    """Reads a CSV of embedding tables.

    The first line names the columns (:data:`TABLE_COLUMNS`), of which only `rows` is needed.
    Without names, tables are called `table_0`, `table_1`, … Values are separated by commas, tabs,
    semicolons or vertical bars. Empty lines and lines that begin with `#` are left out. Several
    features that share a table write their pooling factors as `3+1`.

    Args:
        path: The file.

    Raises:
        ConfigError: The file is missing, or has problems; each is listed with its line.
    """
    source = read_source(path)
    file = str(path)
    lines = _lines(source.text.removeprefix("\ufeff"), file)
    first = next(lines, None)
    if first is None:
        message = "no header; expected one such as `name,rows,dim,pooling`"
        raise ConfigError(diagnostics=(Diagnostic(file, 1, None, "", message),))
    columns, unused = _columns(first[1], first[0], file)
    reader = _Reader(file, columns, len(first[1]))
    for number, cells in lines:
        reader.read(number, cells)
        if reader.total > _MAX_TABLES:
            raise ConfigError(f"{file}:{number}: more than the limit of {_MAX_TABLES} tables")
    if not reader.entries and not reader.problems:
        message = "no tables below the header; expected one line for each"
        reader.problems.append(Diagnostic(file, first[0], None, "", message))
    if reader.problems:
        raise ConfigError(diagnostics=_bounded(reader.problems, file))
    return TableList(file, source.sha256, tuple(reader.entries), unused)


def _lines(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Yields lines with their number, as stripped cells."""
    numbered = [
        (number, line)
        for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not numbered:
        return
    header = numbered[0][1]
    delimiter = max(_DELIMITERS, key=header.count)
    for number, line in numbered:
        try:
            cells = next(csv.reader([line], delimiter=delimiter, strict=True))
        except (csv.Error, StopIteration) as error:
            message = f"not valid CSV: {error}"
            raise ConfigError(diagnostics=(Diagnostic(file, number, None, "", message),)) from None
        yield number, [cell.strip() for cell in cells]


def _columns(header: list[str], line: int, file: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """Returns the index of each known column, and the names of the others.

    Raises:
        ConfigError: There is no column of rows, or two mean the same.
    """
    meanings = {other: name for name, others in TABLE_COLUMNS.items() for other in (name, *others)}
    found: dict[str, int] = {}
    unused = []
    for index, title in enumerate(header):
        word = title.lower().replace(" ", "_").replace("-", "_")
        meaning = meanings.get(word)
        if meaning is None:
            unused.append(title)
        elif meaning in found:
            message = (
                f"`{header[found[meaning]]}` and `{title}` both mean {meaning}; "
                "keep one of the two columns"
            )
            raise ConfigError(diagnostics=(Diagnostic(file, line, None, "", message),))
        else:
            found[meaning] = index
    if "rows" not in found:
        near = next((title for title in unused if nearest(title.lower(), meanings)), None)
        meant = f" (`{near}`? {hint(near.lower(), meanings)})" if near else ""
        message = (
            f"no column of rows{meant}; expected `rows` or one of "
            f"{', '.join(f'`{other}`' for other in TABLE_COLUMNS['rows'])}, found "
            f"{', '.join(f'`{title[:_MAX_SHOWN]}`' for title in header[:10])}"
        )
        raise ConfigError(diagnostics=(Diagnostic(file, line, None, "", message),))
    return found, tuple(unused)


class _Reader:
    """Turns lines into entries and collects what is wrong with them."""

    def __init__(self, file: str, columns: dict[str, int], width: int) -> None:
        self.entries: list[TableEntry] = []
        self.problems: list[Diagnostic] = []
        self.total = 0
        self._file = file
        self._columns = columns
        self._width = width
        self._seen: dict[str, int] = {}

    def read(self, line: int, cells: list[str]) -> None:
        """Reads one line."""
        if len(cells) != self._width:
            self._report(
                line,
                "",
                f"expected {self._width} values as in the header, found {len(cells)}; numbers "
                "are written without separators of thousands",
            )
            return
        before = len(self.problems)
        count = self._value(line, cells, "count", _whole(_MAX_TABLES)) or 1
        rows = self._value(line, cells, "rows", _whole(_MAX_ROWS))
        if rows is None and len(self.problems) == before:
            self._report(line, "rows", "expected the number of rows, found nothing")
        name = self._name(line, cells)
        entry = TableEntry(
            line=line,
            name=name,
            rows=rows or 1,
            dim=self._value(line, cells, "dim", _whole(_MAX_DIM)),
            pooling_factors=self._value(line, cells, "pooling", _factors),
            count=count,
            data_type=self._value(line, cells, "data_type", _data_type),
            alpha=self._value(line, cells, "alpha", _alpha),
        )
        self.total += count
        if len(self.problems) == before:
            self.entries.append(entry)

    def _value(
        self, line: int, cells: list[str], column: str, read: Callable[[str], Value]
    ) -> Value | None:
        index = self._columns.get(column)
        if index is None or not cells[index]:
            return None
        try:
            return read(cells[index])
        except ValueError as error:
            shown = cells[index][:_MAX_SHOWN]
            self._report(line, column, f"expected {error}, found `{shown}`")
            return None

    def _name(self, line: int, cells: list[str]) -> str:
        index = self._columns.get("name")
        name = f"table_{len(self._seen)}" if index is None else cells[index]
        if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
            shown = ascii(name[:_MAX_SHOWN])
            self._report(
                line, "name", f"expected 1 to {_MAX_NAME} printable characters, found {shown}"
            )
        elif name in self._seen:
            self._report(
                line,
                "name",
                f"`{name}` is the name of line {self._seen[name]} too; a table that several "
                "features share has one line, with a pooling factor for each, such as `3+1`",
            )
        self._seen.setdefault(name, line)
        return name

    def _report(self, line: int, column: str, message: str) -> None:
        self.problems.append(Diagnostic(self._file, line, None, column, message))


def _whole(limit: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            # Spreadsheets and data frames write whole numbers as 4e7 or 128.0.
            number = float(text) if _is_number(text) else math.nan
            value = int(number) if number.is_integer() else 0
        if not 1 <= value <= limit:
            raise ValueError(f"a whole number from 1 to {limit:,}")
        return value

    return read


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _factors(text: str) -> tuple[float, ...]:
    values = [part.strip() for part in text.split(_BETWEEN_FACTORS)]
    if not all(_is_number(value) and 0 < float(value) <= _MAX_POOLING for value in values):
        raise ValueError(
            f"mean lookups a sample, above 0 and at most {_MAX_POOLING:,} (several features that "
            "share the table: `3+1`)"
        )
    return tuple(float(value) for value in values)


def _alpha(text: str) -> float:
    if not _is_number(text) or not 0 <= float(text) <= _MAX_ALPHA:
        raise ValueError(f"a Zipf exponent from 0 (uniform) to {_MAX_ALPHA:g}")
    return float(text)


def _data_type(text: str) -> DataType:
    kind = _DATA_TYPES.get(text.lower().removeprefix("torch."))
    if kind is None:
        raise ValueError(f"one of {', '.join(DataType)}")
    return kind


def _bounded(problems: list[Diagnostic], file: str) -> tuple[Diagnostic, ...]:
    if len(problems) <= _MAX_PROBLEMS:
        return tuple(problems)
    rest = len(problems) - _MAX_PROBLEMS
    return (*problems[:_MAX_PROBLEMS], Diagnostic(file, None, None, "", f"and {rest} more"))
