"""From a file to a table, by what the file holds rather than by its ending."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.errors import ConfigError, Diagnostic
from dse.measurements._nccl_log import is_nccl_log, parse_nccl_log
from dse.measurements._origin import Origin, RowKind
from dse.measurements._table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MAX_BYTES = 512 * 2**20
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
    file = Path(path)
    content = _content(file)
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


def _content(file: Path) -> bytes:
    try:
        if file.is_dir():
            raise ConfigError(f"{file}: this is a folder; a file is expected")
        size = file.stat().st_size
        if size > _MAX_BYTES:
            raise ConfigError(f"{file}: {size} bytes, more than the limit of {_MAX_BYTES}")
        return file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error


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
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{name}: cannot be read as Parquet: {error}") from error
    columns = {
        column: np.asarray(table.column(column).to_numpy()) for column in table.column_names
    }
    rows = np.arange(1, table.num_rows + 1, dtype=np.int64)
    return Table(Origin(name, RowKind.ROW), columns, rows)


def _csv(text: str, name: str) -> Table:
    lines = text.split("\n")
    header_line, header = _csv_header(lines, name)
    delimiter = max(_DELIMITERS, key=header.count)
    reader = csv.reader(lines[header_line:], delimiter=delimiter)
    names = [cell.strip() for cell in next(csv.reader([header], delimiter=delimiter))]
    _no_name_twice(names, name, header_line)
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


def _no_name_twice(names: Sequence[str], file: str, line: int) -> None:
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
            record = json.loads(content)
        except (json.JSONDecodeError, RecursionError) as error:
            message = f"not valid JSON: {error}; one object a line is expected"
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
