"""From a file to a table, by what the file holds rather than by its ending."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from dse._reading import (
    MAX_TABLE_BYTES,
    JsonProblemError,
    byte_limit,
    load_json,
    read_bytes,
)
from dse.calibration.measurements._nccl_log import is_nccl_log, parse_nccl_log
from dse.calibration.measurements._origin import Origin, RowKind
from dse.calibration.measurements._table import Table
from dse.errors import ConfigError, Diagnostic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Values of a Parquet file, whose run lengths may hide any number of rows in a few bytes.
_MAX_VALUES = 20_000_000

_MAX_COLUMNS = 1000
_PARQUET_MAGIC = b"PAR1"
_DELIMITERS = (",", "\t", ";")


def read_table(path: str | Path, *, in_place: bool = False) -> Table:
    """Reads a CSV, Parquet or JSON-lines file, or a log of nccl-tests.

    Args:
        path: The file.
        in_place: Take a log's in-place times.

    Raises:
        ConfigError: The file is missing, too large, or not of these formats.
    """
    content = read_bytes(path, MAX_TABLE_BYTES)
    name = str(path)
    if content.startswith(_PARQUET_MAGIC):
        table = _parquet(content, name)
    else:
        table = _text_table(content, name, in_place)
    if in_place and not table.is_log:
        raise ConfigError(
            f"{name}: --in-place is for logs of nccl-tests, and this is a table; "
            "name the column with --column time=NAME"
        )
    if not len(table):
        raise ConfigError(f"{name}: no measurements; at least one row is expected")
    return table


def _text_table(content: bytes, name: str, in_place: bool) -> Table:
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        message = "neither UTF-8 text nor Parquet"
        raise ConfigError(diagnostics=(Diagnostic(name, line, None, "", message),)) from error
    if is_nccl_log(text):
        return parse_nccl_log(text, name, in_place=in_place)
    if text.lstrip().startswith(("{", "[")):
        return _json_lines(text, name)
    return _csv(text, name)


def _parquet(content: bytes, name: str) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = _checked_schema(pq.ParquetFile(io.BytesIO(content)), name)
        # Words as dictionaries: a long one in many rows is held once.
        words = [field.name for field in schema if _is_text(field.type)]
        table = pq.ParquetFile(io.BytesIO(content), read_dictionary=words).read()
        columns = {column: _column_values(table.column(column)) for column in table.column_names}
    # Names and words of a damaged file may be no text, its numbers beyond all types.
    except (pa.ArrowException, OSError, ValueError, LookupError, OverflowError) as error:
        raise ConfigError(f"{name}: cannot be read as Parquet: {error}") from error
    rows = np.arange(1, table.num_rows + 1, dtype=np.int64)
    return Table(Origin(name, RowKind.ROW), columns, rows)


def _checked_schema(file: pq.ParquetFile, name: str) -> pa.Schema:
    """Returns the columns of a file whose size and kinds can be dealt with.

    Raises:
        ConfigError: They cannot.
    """
    schema, metadata = file.schema_arrow, file.metadata
    names = list(schema.names)
    _check_names(names, name, None)
    for field in schema:
        if not _is_plain(field.type):
            message = (
                f"expected a column of numbers or words, found lists or blocks ({field.type}); "
                "write one value a row, or leave the column out"
            )
            raise ConfigError(diagnostics=(Diagnostic(name, None, None, field.name, message),))
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    if rows * len(names) > _MAX_VALUES:
        raise ConfigError(
            f"{name}: {rows} rows of {len(names)} columns, more than the limit of {_MAX_VALUES} "
            "values; leave out columns or rows"
        )
    # The same is told of each column, but Arrow ends the process where that is damaged.
    uncompressed = sum(group.total_byte_size for group in groups)
    limit = byte_limit(MAX_TABLE_BYTES)
    if uncompressed > limit:
        raise ConfigError(
            f"{name}: {uncompressed} bytes once uncompressed, more than the limit of "
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


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _column_values(column: pa.ChunkedArray) -> NDArray[Any]:
    """Returns the values of a column; equal words are one object."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return np.asarray(column.to_numpy())
    parts = [np.empty(0, dtype=object)]
    for chunk in column.chunks:
        words = _objects([*chunk.dictionary.to_pylist(), None])
        parts.append(words[chunk.indices.fill_null(len(words) - 1).to_numpy()])
    return np.concatenate(parts)


def _csv(text: str, name: str) -> Table:
    lines = text.split("\n")
    header_line, header = _csv_header(lines, name)
    delimiter = max(_DELIMITERS, key=header.count)
    reader = csv.reader(lines[header_line:], delimiter=delimiter)
    try:
        names = [cell.strip() for cell in next(csv.reader([header], delimiter=delimiter))]
    except csv.Error as error:
        message = f"not valid CSV: {error}"
        raise ConfigError(
            diagnostics=(Diagnostic(name, header_line, None, "", message),)
        ) from None
    _check_names(names, name, header_line)
    cells: list[list[str]] = []
    rows: list[int] = []
    problems: list[Diagnostic] = []
    try:
        for row in reader:
            line = header_line + reader.line_num
            if not row or (len(row) == 1 and not row[0].strip()) or row[0].startswith("#"):
                continue
            if len(row) != len(names):
                message = f"expected {len(names)} cells as in the header, found {len(row)}"
                problems.append(Diagnostic(name, line, None, "", message))
                continue
            cells.append([cell.strip() for cell in row])
            rows.append(line)
    except csv.Error as error:
        line = header_line + reader.line_num
        problems.append(Diagnostic(name, line, None, "", f"not valid CSV: {error}"))
    _raise_first(problems)
    columns = {column: _objects([row[i] for row in cells]) for i, column in enumerate(names)}
    return Table(
        Origin(name, RowKind.LINE),
        columns,
        np.array(rows, dtype=np.int64),
        header_line=header_line,
    )


def _csv_header(lines: Sequence[str], name: str) -> tuple[int, str]:
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            return number, line
    raise ConfigError(f"{name}: the file is empty; a header and rows are expected")


def _check_names(names: Sequence[str], file: str, line: int | None) -> None:
    if len(names) > _MAX_COLUMNS:
        message = (
            f"{len(names)} columns, more than the limit of {_MAX_COLUMNS}; leave out those that "
            "are not needed"
        )
        raise ConfigError(diagnostics=(Diagnostic(file, line, None, "", message),))
    for column in names:
        if names.count(column) > 1:
            message = f"{names.count(column)} columns have this name; give each its own"
            raise ConfigError(diagnostics=(Diagnostic(file, line, None, column, message),))


def _json_lines(text: str, name: str) -> Table:
    records: list[dict[str, Any]] = []
    rows: list[int] = []
    problems: list[Diagnostic] = []
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            # What is wrong with a number is told with the name of its column.
            record = load_json(content, finite=False)
        except JsonProblemError as error:
            message = f"{error.message}; one object a line is expected"
            problems.append(Diagnostic(name, line, None, "", message))
            continue
        if not isinstance(record, dict):
            message = f"expected one object a line, found a {type(record).__name__}"
            problems.append(Diagnostic(name, line, None, "", message))
            continue
        records.append(record)
        rows.append(line)
    _raise_first(problems)
    names = dict.fromkeys(key for record in records for key in record)
    _check_names(list(names), name, None)
    columns = {key: _objects([record.get(key) for record in records]) for key in names}
    return Table(Origin(name, RowKind.LINE), columns, np.array(rows, dtype=np.int64))


def _objects(values: Sequence[object]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _raise_first(problems: Sequence[Diagnostic], shown: int = 10) -> None:
    if problems:
        more = f"{len(problems)} rows cannot be read; the first {shown}:"
        raise ConfigError(more if len(problems) > shown else "", tuple(problems[:shown]))
