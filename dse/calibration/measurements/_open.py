"""What all readers do first: the table, its columns, the filters, and words for a whole file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dse._suggest import hint
from dse.calibration.measurements._columns import Columns, find_columns, time_unit
from dse.calibration.measurements._filters import apply_filters
from dse.calibration.measurements._formats import read_table
from dse.calibration.measurements._names import TIME_UNITS
from dse.calibration.measurements._values import Checker
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from dse.calibration.measurements._names import Vocabulary
    from dse.calibration.measurements._options import ColumnOptions
    from dse.calibration.measurements._origin import Origin
    from dse.calibration.measurements._table import Table


@dataclass(frozen=True, slots=True)
class Opened:
    """A file whose columns are known and whose rows are those that were asked for.

    Attributes:
        table: The rows.
        columns: Its columns by our names.
        options: What the user said.
        checker: Collects what is wrong with the values.
        unit: Unit of the times.
        notes: What was left out or taken for granted.
    """

    table: Table
    columns: Columns
    options: ColumnOptions
    checker: Checker
    unit: str
    notes: tuple[str, ...]

    @property
    def origin(self) -> Origin:
        """The file with the unit of its times."""
        return replace(self.table.origin, time_unit=self.unit)

    def sizes(self, field: str, *, least: int = 1, advice: str = "") -> NDArray[np.int64]:
        """Returns the whole numbers of a column by our name."""
        return self.checker.sizes(self.columns.of[field], least=least, advice=advice)

    def time_s(self) -> NDArray[np.float64]:
        """Returns the times in seconds."""
        return self.checker.positive(self.columns.of["time"]) * TIME_UNITS[self.unit]

    def words(self, field: str, constant: str | None, words: Vocabulary) -> NDArray[np.str_]:
        """Returns our names of a column's words, or the one that holds for the whole file.

        Raises:
            ConfigError: The one for the whole file is unknown, or the file says otherwise.
        """
        given = None if constant is None else _known(self.table, field, constant, words)
        if field not in self.columns.of:
            return np.array([given or ""] * len(self.table), dtype=np.str_)
        column = self.columns.of[field]
        if given is not None:
            values = self.table.columns[column].tolist()
            self._agree(
                column, np.array([words.find(str(value)) == given for value in values]), given
            )
        return self.checker.words(column, words)

    def numbers_or(self, field: str, constant: int | None, *, least: int) -> NDArray[np.int64]:
        """Returns the whole numbers of a column, or the one that holds for the whole file.

        Raises:
            ConfigError: The one for the whole file is too small, or the file says otherwise.
        """
        if constant is not None and constant < least:
            raise ConfigError(f"--{field}: at least {least} is expected, found {constant}")
        if field not in self.columns.of:
            return np.full(len(self.table), constant, dtype=np.int64)
        column = self.columns.of[field]
        numbers = self.sizes(field, least=least, advice=f"; choose rows with --where {column}=…")
        if constant is not None:
            self._agree(column, numbers == constant, constant)
        return numbers

    def _agree(self, column: str, same: NDArray[np.bool_], constant: object) -> None:
        self.checker.refuse(
            column,
            ~same,
            f"not `{constant}`, which was given for the whole file",
            f"leave that option out, or choose rows with --where {column}={constant}",
        )


def open_measurements(
    path: str | Path,
    options: ColumnOptions,
    *,
    required: Sequence[str],
    optional: Sequence[str],
    vocabularies: Mapping[str, Vocabulary],
    logs: bool = False,
) -> Opened:
    """Reads a file as far as all operators have in common.

    Args:
        path: The file.
        options: What the user said.
        required: Our names of columns that must be there.
        optional: Our names of columns that may be there.
        vocabularies: Our names of columns to the words they hold.
        logs: True if a log of nccl-tests may be given.

    Raises:
        ConfigError: The file cannot be read so.
    """
    table = read_table(path, in_place=options.in_place)
    if table.is_log:
        if not logs:
            raise ConfigError(
                f"{path}: this is a log of nccl-tests; collectives are fitted with "
                "`dse fit collective`"
            )
        table = _complete_log(table, options)
    columns = find_columns(table, required, optional, options)
    unit, notes = time_unit(table, columns, options)
    table = apply_filters(table, columns, options.filters, vocabularies)
    return Opened(table, columns, options, Checker(table), unit, (*table.notes, *notes))


def needed(field: str, constant: object) -> tuple[str, ...]:
    """Returns the column if no word for the whole file stands for it."""
    return (field,) if constant is None else ()


def _known(table: Table, field: str, word: str, words: Vocabulary) -> str:
    name = words.find(word)
    if name is None:
        raise ConfigError(
            f"{table.origin.file}: --{field}: unknown {words.kind} `{word}`; "
            f"{hint(word.lower(), words.names)}"
        )
    return name


def _complete_log(table: Table, options: ColumnOptions) -> Table:
    """Fills in what the runs of a log do not say of themselves."""
    columns = dict(table.columns)
    for name, constant, what in (
        ("op", options.op, "operation"),
        ("ranks", options.ranks, "number of ranks"),
    ):
        given: NDArray[Any] = np.array(columns.get(name, np.full(len(table), None)), dtype=object)
        unsaid = np.array([value is None for value in given], dtype=np.bool_)
        if unsaid.any() and constant is None:
            message = (
                f"the log does not say the {what} of {int(unsaid.sum())} of {len(table)} rows; "
                f"pass --{name}"
            )
            raise ConfigError(diagnostics=(table.problem(int(np.argmax(unsaid)), name, message),))
        given[unsaid] = constant
        columns[name] = given
    return replace(table, columns=columns)
