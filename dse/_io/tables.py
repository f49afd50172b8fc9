"""Tables of numbers and text: CSV, JSON lines and Parquet.

The format is recognised by the content, not by the name of the file. Sizes are bounded, and every
row keeps its line (or row number), so that each problem can be reported with its place. What the
columns mean is up to the caller.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from enum import StrEnum
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from dse._io.reading import MAX_TABLE_BYTES, JsonProblemError, byte_limit, load_json
from dse.errors import ConfigError, Diagnostic, OptionalDependencyError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Values of a Parquet file, whose run lengths may hide any number of rows in a few bytes.
_MAX_VALUES = 20_000_000

_MAX_COLUMNS = 1000

#: Unreadable rows that are listed one by one.
_MAX_LISTED = 10
#: Longest part of a line that a message quotes.
_MAX_SHOWN = 60

_PARQUET_MAGIC = b"PAR1"
_DELIMITERS = (",", "\t", ";", "|")


class RowKind(StrEnum):
    """What the number of a source row counts, from 1."""

    LINE = "line"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Origin:
    """The file behind some rows.

    Attributes:
        file: Path as the user gave it; empty for data made in memory.
        row_kind: Lines of a text, or rows of a Parquet file.
        time_unit: Unit in which the file's times were read; None if unknown.
    """

    file: str = ""
    row_kind: RowKind = RowKind.ROW
    time_unit: str | None = None

    def place(self, row: int) -> str:
        """Returns a place as text: `data.csv:12` or `data.parquet, row 12`."""
        if self.row_kind is RowKind.LINE:
            return f"{self.file}:{row}"
        return f"{self.file}, row {row}" if self.file else f"row {row}"

    def diagnostic(self, row: int | None, field: str, message: str) -> Diagnostic:
        """Returns a problem at a row, or of the whole file where `row` is None."""
        if row is None or self.row_kind is RowKind.LINE:
            return Diagnostic(self.file, row, None, field, message)
        return Diagnostic(self.file, None, None, field, f"row {row}: {message}")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Raw columns of a file.

    Attributes:
        origin: The file.
        columns: Values by the file's column name, shape `(rows,)`: strings without surrounding
            blanks from CSV, what JSON has from JSON lines, numbers or objects from Parquet.
        rows: Line or row of the file, from 1.
        header_line: Line of the column names; None where the format has no such line.
        notes: What was left out.
        is_log: True for the output of nccl-tests.
    """

    origin: Origin
    columns: Mapping[str, NDArray[Any]]
    rows: NDArray[np.int64]
    header_line: int | None = None
    notes: tuple[str, ...] = ()
    is_log: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, mask: NDArray[np.bool_]) -> Table:
        """Returns the rows of a mask."""
        columns = {name: values[mask] for name, values in self.columns.items()}
        return replace(self, columns=columns, rows=self.rows[mask])

    def named(self, names: Collection[str]) -> list[str]:
        """Returns the columns whose name in snake case is one of `names`."""
        return [column for column in self.columns if snake_case(column) in names]

    def problem(self, index: int, field: str, message: str) -> Diagnostic:
        """Returns a problem of the row with this index."""
        return self.origin.diagnostic(int(self.rows[index]), field, message)

    def header_error(self, field: str, message: str) -> ConfigError:
        """Returns an error about a column as a whole."""
        return _error(self.origin.file, self.header_line, field, message)


def snake_case(name: str) -> str:
    """Returns a column name in lower case and plain characters: `time_us` for `Time (µs)`."""
    plain = name.strip().lower().replace("µ", "u").replace("μ", "u")
    return re.sub(r"[^0-9a-z]+", "_", plain).strip("_")


def objects(values: Sequence[object]) -> NDArray[Any]:
    """Returns an array of objects, one for each value, whatever the values are."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def table_text(content: bytes, file: str) -> str:
    """Decodes a text file.

    Raises:
        ConfigError: It is not UTF-8, with the line.
    """
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _error(file, line, "", "neither UTF-8 text nor Parquet") from error


def parse_table(content: bytes, file: str) -> Table:
    """Parses a CSV, JSON-lines or Parquet file.

    CSV has a header; its cells are separated by commas, tabs, semicolons or vertical bars. Empty
    lines and lines that begin with `#` are skipped.

    Args:
        content: Bytes of the file.
        file: Its name for messages.

    Raises:
        ConfigError: It is in none of these formats, or too large; unreadable rows are listed.
        OptionalDependencyError: It is a Parquet file, and pyarrow is not installed.
    """
    if content.startswith(_PARQUET_MAGIC):
        return _parquet(content, file)
    text = table_text(content, file)
    return _json_lines(text, file) if text.lstrip().startswith(("{", "[")) else _csv(text, file)


def _csv(text: str, file: str) -> Table:
    lines = ["" if line.lstrip().startswith("#") else line for line in text.split("\n")]
    header = next((line for line in lines if line.strip()), "")
    reader = csv.reader(lines, delimiter=max(_DELIMITERS, key=header.count), strict=True)
    rows = _csv_rows(reader, file)
    header_line, names = next(rows, (None, []))
    if header_line is None:
        raise ConfigError(f"{file}: the file is empty; a header and rows are expected")
    _check_names(names, file, header_line)
    numbered, problems = [], []
    for line, cells in rows:
        if len(cells) == len(names):
            numbered.append((line, cells))
        else:
            message = f"expected {len(names)} cells as in the header, found {len(cells)}"
            problems.append(Diagnostic(file, line, None, "", message))
    _raise_first(problems)
    columns = {name: objects([cells[i] for _, cells in numbered]) for i, name in enumerate(names)}
    places = np.array([line for line, _ in numbered], dtype=np.int64)
    return Table(Origin(file, RowKind.LINE), columns, places, header_line)


def _csv_rows(reader: Any, file: str) -> Iterator[tuple[int, list[str]]]:
    """Yields line and cells of each row that is not empty."""
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if len(cells) > 1 or any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise _error(file, reader.line_num, "", f"not valid CSV: {error}") from None


def _json_lines(text: str, file: str) -> Table:
    records: list[dict[str, Any]] = []
    rows: list[int] = []
    problems: list[Diagnostic] = []
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            # What is wrong with a number is reported with the name of its column.
            record = load_json(content, finite=False)
        except JsonProblemError as error:
            message = f"{error.message}; one object a line is expected"
            problems.append(Diagnostic(file, line, None, "", message))
            continue
        if not isinstance(record, dict):
            message = f"expected one object a line, found `{content.strip()[:_MAX_SHOWN]}`"
            problems.append(Diagnostic(file, line, None, "", message))
            continue
        records.append(record)
        rows.append(line)
    # Without a single object it is a file of another kind, of which one line says enough.
    _raise_first(problems if records else problems[:1])
    names = dict.fromkeys(key for record in records for key in record)
    _check_names(list(names), file, None)
    columns = {key: objects([record.get(key) for record in records]) for key in names}
    return Table(Origin(file, RowKind.LINE), columns, np.array(rows, dtype=np.int64))


def _parquet(content: bytes, file: str) -> Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise OptionalDependencyError(
            f"{file}: reading Parquet needs pyarrow, which is not installed: pip install "
            "'.[tables]' in the project's folder, or write the table as CSV"
        ) from error
    try:
        schema = _checked_schema(pq.ParquetFile(io.BytesIO(content)), file)
        # Strings as dictionaries: a long one in many rows is held once.
        strings = [field.name for field in schema if _is_string(field.type)]
        table = pq.ParquetFile(io.BytesIO(content), read_dictionary=strings).read()
        columns = {column: _column_values(table.column(column)) for column in table.column_names}
    # Names and strings of a damaged file may be no text, its numbers beyond all types.
    except (pa.ArrowException, OSError, ValueError, LookupError, OverflowError) as error:
        raise ConfigError(f"{file}: cannot be read as Parquet: {error}") from error
    return Table(Origin(file), columns, np.arange(1, table.num_rows + 1, dtype=np.int64))


def _checked_schema(parquet: pq.ParquetFile, file: str) -> pa.Schema:
    """Returns the columns of a file of acceptable size.

    Raises:
        ConfigError: It is too large, or has lists or blocks as values.
    """
    schema, metadata = parquet.schema_arrow, parquet.metadata
    names = list(schema.names)
    _check_names(names, file, None)
    for field in schema:
        if not _is_plain(field.type):
            message = (
                f"expected a column of numbers or text, found lists or blocks ({field.type}); "
                "write one value a row, or leave the column out"
            )
            raise _error(file, None, field.name, message)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    if rows * len(names) > _MAX_VALUES:
        raise ConfigError(
            f"{file}: {rows} rows of {len(names)} columns, more than the limit of {_MAX_VALUES} "
            "values; leave out columns or rows"
        )
    # Columns state their size as well, but Arrow ends the process where that is damaged.
    uncompressed = sum(group.total_byte_size for group in groups)
    limit = byte_limit(MAX_TABLE_BYTES)
    if uncompressed > limit:
        raise ConfigError(
            f"{file}: {uncompressed} bytes once uncompressed, more than the limit of "
            f"{limit}; leave out columns or rows"
        )
    return schema


def _is_plain(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return _is_plain(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    return not pa.types.is_nested(kind)


def _is_string(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _column_values(column: pa.ChunkedArray) -> NDArray[Any]:
    """Returns the values of a column; equal strings are one object."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return np.asarray(column.to_numpy())
    parts = [np.empty(0, dtype=object)]
    for chunk in column.chunks:
        strings = objects([*chunk.dictionary.to_pylist(), None])
        parts.append(strings[chunk.indices.fill_null(len(strings) - 1).to_numpy()])
    return np.concatenate(parts)


def _check_names(names: Sequence[str], file: str, line: int | None) -> None:
    if len(names) > _MAX_COLUMNS:
        message = (
            f"{len(names)} columns, more than the limit of {_MAX_COLUMNS}; leave out those that "
            "are not needed"
        )
        raise _error(file, line, "", message)
    for column in names:
        if names.count(column) > 1:
            message = f"{names.count(column)} columns have this name; give each its own"
            raise _error(file, line, column, message)


def _raise_first(problems: Sequence[Diagnostic]) -> None:
    if problems:
        more = f"{len(problems)} rows cannot be read; the first {_MAX_LISTED}:"
        raise ConfigError(
            more if len(problems) > _MAX_LISTED else "", tuple(problems[:_MAX_LISTED])
        )


def _error(file: str, line: int | None, field: str, message: str) -> ConfigError:
    return ConfigError(diagnostics=(Diagnostic(file, line, None, field, message),))
