"""Lists of embedding tables, as a spreadsheet or a data warehouse exports them.

One row describes one table (or `count` equal ones). Columns go by the names that DLRM programs use
(`num_embeddings` and `hash_size` are rows). All problems are collected, each with its line, so
that a list of thousands can be corrected at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
import hashlib
import math
from typing import TYPE_CHECKING, TypeVar

from dse._io.reading import read_bytes
from dse._io.tables import Table, parse_table
from dse._text.suggest import hint, nearest
from dse.errors import ConfigError, Diagnostic
from dse.indices import IdOrder, IndexDistribution, Uniform, Zipf
from dse.model.dlrm._model import DataType, PoolingDistribution

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Value = TypeVar("Value")
Kind = TypeVar("Kind", bound=StrEnum)

#: Columns, and other names for them; case, spaces and hyphens do not matter.
TABLE_COLUMNS: dict[str, tuple[str, ...]] = {
    "name": ("table", "table_name", "feature", "feature_name"),
    "rows": ("num_embeddings", "hash_size", "num_rows", "vocabulary_size", "cardinality"),
    "dim": ("embedding_dim", "embedding_dimension", "embedding_vec_size", "width"),
    "pooling": ("pooling_factor", "pooling_factors", "hotness", "multi_hot_size", "avg_pooling"),
    "count": ("copies",),
    "data_type": ("dtype", "weights_precision"),
    "alpha": ("zipf_alpha", "zipf_exponent"),
    "ids": ("id_order",),
    "pooling_distribution": ("lengths",),
    "weighted": ("is_weighted",),
    "bags_per_sample": ("batch_share",),
}

#: Between the pooling factors of features that share a table; not a delimiter of columns.
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
_MAX_BAGS = 1000
_MAX_TABLES = 100_000
_MAX_NAME = 200

_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One row of a list of tables.

    Attributes:
        line: Its line in the file (row of a Parquet file).
        name: Name of the table, or the prefix of the names of `count` equal ones.
        rows: Rows of the table.
        dim: Columns of a row; None where the list has no such column or value.
        pooling_factors: Mean lookups per sample of each feature that reads the table; None
            likewise.
        count: Number of equal tables.
        data_type: Storage type; None likewise.
        indices: Popularity of the rows; None likewise.
        weighted: Whether lookups have weights; None likewise.
        bags_per_sample: Bags of a feature for one sample; None likewise.
        pooling_distribution: How lookups vary from bag to bag; None likewise.
        pooled: Whether a bag's rows are summed; a list cannot say otherwise.
    """

    line: int
    name: str
    rows: int
    dim: int | None = None
    pooling_factors: tuple[float, ...] | None = None
    count: int = 1
    data_type: DataType | None = None
    indices: IndexDistribution | None = None
    weighted: bool | None = None
    bags_per_sample: float | None = None
    pooling_distribution: PoolingDistribution | None = None
    pooled: bool = True


@dataclass(frozen=True, slots=True)
class TableList:
    """A list of tables as it was read.

    Attributes:
        file: Its path, as given.
        sha256: Digest of its bytes.
        entries: One for each row.
        unused_columns: Columns of the file that have no meaning here.
    """

    file: str
    sha256: str
    entries: tuple[TableEntry, ...]
    unused_columns: tuple[str, ...] = ()

    @property
    def table_count(self) -> int:
        """Number of tables, each of several equal ones counted."""
        return sum(entry.count for entry in self.entries)


def read_table_list(path: str | Path) -> TableList:
    """Reads a CSV, JSON-lines or Parquet file of embedding tables.

    The columns are those of :data:`TABLE_COLUMNS`, of which only `rows` is required. Without
    names, tables are called `table_0`, `table_1`, … Several features that share a table write
    their pooling factors as `3+1`. For the formats see :func:`dse._io.tables.parse_table`.

    Args:
        path: The file.

    Raises:
        ConfigError: The file is missing, or has problems; each is listed with its line.
    """
    file, content = str(path), read_bytes(path)
    table = parse_table(content, file)
    columns = _columns(table)
    if not len(table):
        raise table.header_error("", "no tables below the header; expected one line for each")
    reader = _Reader(table, columns)
    for index, line in enumerate(table.rows.tolist()):
        reader.read(index, line)
        if reader.total > _MAX_TABLES:
            raise ConfigError(f"{file}:{line}: more than the limit of {_MAX_TABLES} tables")
    if reader.problems:
        raise ConfigError(diagnostics=tuple(reader.problems))
    unused = tuple(name for name in table.columns if name not in columns.values())
    return TableList(file, hashlib.sha256(content).hexdigest(), tuple(reader.entries), unused)


def _columns(table: Table) -> dict[str, str]:
    """Returns the file's column for each of our names that it has.

    Raises:
        ConfigError: There is no column of rows, or two have the same meaning.
    """
    found = {}
    for meaning, others in TABLE_COLUMNS.items():
        fitting = table.named({meaning, *others})
        if len(fitting) > 1:
            both = " and ".join(f"`{title[:_MAX_SHOWN]}`" for title in fitting[:2])
            raise table.header_error("", f"{both} both mean {meaning}; keep one of the columns")
        if fitting:
            found[meaning] = fitting[0]
    if "rows" not in found:
        meanings = [name for key, others in TABLE_COLUMNS.items() for name in (key, *others)]
        unused = [title for title in table.columns if title not in found.values()]
        near = next((title for title in unused if nearest(title.lower(), meanings)), None)
        meant = f" (`{near}`? {hint(near.lower(), meanings)})" if near else ""
        raise table.header_error(
            "",
            f"no column of rows{meant}; expected `rows` or one of "
            f"{', '.join(f'`{other}`' for other in TABLE_COLUMNS['rows'])}, found "
            f"{', '.join(f'`{title[:_MAX_SHOWN]}`' for title in [*table.columns][:10])}",
        )
    return found


class _Reader:
    """Turns rows into entries and collects their problems."""

    def __init__(self, table: Table, columns: dict[str, str]) -> None:
        self.entries: list[TableEntry] = []
        self.problems: list[Diagnostic] = []
        self.total = 0
        self._table = table
        self._values = {name: table.columns[column] for name, column in columns.items()}
        self._seen: dict[str, int] = {}

    def read(self, index: int, line: int) -> None:
        """Reads one row."""
        before = len(self.problems)
        count = self._value(index, "count", _whole(_MAX_TABLES)) or 1
        rows = self._value(index, "rows", _whole(_MAX_ROWS))
        if rows is None and len(self.problems) == before:
            self._report(index, "rows", "expected the number of rows, found nothing")
        entry = TableEntry(
            line=line,
            name=self._name(index, line),
            rows=rows or 1,
            dim=self._value(index, "dim", _whole(_MAX_DIM)),
            pooling_factors=self._value(index, "pooling", _factors),
            count=count,
            data_type=self._value(index, "data_type", _data_type),
            indices=self._indices(index),
            weighted=self._value(index, "weighted", _yes_or_no),
            bags_per_sample=self._value(index, "bags_per_sample", _bags),
            pooling_distribution=self._value(
                index, "pooling_distribution", _member(PoolingDistribution)
            ),
        )
        self.total += count
        if len(self.problems) == before:
            self.entries.append(entry)

    def _text(self, index: int, column: str) -> str:
        """Returns a cell as text; empty where the file has no value."""
        value = self._values[column][index] if column in self._values else None
        # Data frames write a missing number as NaN.
        return "" if value is None or value != value else str(value).strip()

    def _value(self, index: int, column: str, read: Callable[[str], Value]) -> Value | None:
        text = self._text(index, column)
        if not text:
            return None
        try:
            return read(text)
        except ValueError as error:
            self._report(index, column, f"expected {error}, found `{text[:_MAX_SHOWN]}`")
            return None

    def _indices(self, index: int) -> IndexDistribution | None:
        alpha = self._value(index, "alpha", _alpha)
        ids = self._value(index, "ids", _member(IdOrder))
        if alpha is None:
            if ids is not None:
                self._report(index, "ids", "expected an exponent in `alpha` beside it")
            return None
        return Zipf(alpha, ids=ids or IdOrder.HASHED) if alpha else Uniform()

    def _name(self, index: int, line: int) -> str:
        named = "name" in self._values
        name = self._text(index, "name") if named else f"table_{len(self._seen)}"
        if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
            shown = ascii(name[:_MAX_SHOWN])
            self._report(
                index, "name", f"expected 1 to {_MAX_NAME} printable characters, found {shown}"
            )
        elif name in self._seen:
            self._report(
                index,
                "name",
                f"`{name}` is the name of line {self._seen[name]} too; a table that several "
                "features share has one line, with a pooling factor for each, such as `3+1`",
            )
        self._seen.setdefault(name, line)
        return name

    def _report(self, index: int, column: str, message: str) -> None:
        self.problems.append(self._table.problem(index, column, message))


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


def _yes_or_no(text: str) -> bool:
    given = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in given:
        raise ValueError("true or false")
    return given[text.lower()]


def _bags(text: str) -> float:
    if not _is_number(text) or not 0 < float(text) <= _MAX_BAGS:
        raise ValueError(f"bags a sample, above 0 and at most {_MAX_BAGS:,}")
    return float(text)


def _member(kinds: type[Kind]) -> Callable[[str], Kind]:
    def read(text: str) -> Kind:
        if text.lower() not in [*kinds]:
            raise ValueError(f"one of {', '.join(kinds)}")
        return kinds(text.lower())

    return read


def _data_type(text: str) -> DataType:
    kind = _DATA_TYPES.get(text.lower().removeprefix("torch."))
    if kind is None:
        raise ValueError(f"one of {', '.join(DataType)}")
    return kind
