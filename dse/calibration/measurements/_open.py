"""Opening a file of measurements: its table, columns and filters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dse._io.reading import MAX_TABLE_BYTES, read_bytes
from dse._io.tables import Table, parse_table, snake_case, table_text
from dse._text.suggest import hint
from dse.calibration.measurements._checks import Checker, check_count, check_repeats
from dse.calibration.measurements._columns import (
    DEVICE_COLUMNS,
    Columns,
    find_columns,
    time_unit,
)
from dse.calibration.measurements._dispatch import all_to_alls, is_dispatch_table
from dse.calibration.measurements._names import TIME_UNITS
from dse.calibration.measurements._nccl_log import BUS_RATIO, is_nccl_log, parse_nccl_log
from dse.errors import ConfigError
from dse.machine.platforms import may_be_same_device, nearest_platform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from dse._io.tables import Origin
    from dse.calibration.measurements._columns import ColumnOptions
    from dse.calibration.measurements._names import Vocabulary


#: Values of a column that a message lists.
_MAX_VALUES_SHOWN = 12

#: Names of devices that are looked up, of a file that may have another one in each row.
_MAX_DEVICES = 50

#: Cells of a column of devices that name none.
_NO_DEVICE = ("", "None", "nan")


@dataclass(frozen=True, slots=True)
class Opened:
    """A file with known columns and the selected rows.

    Attributes:
        table: The rows.
        columns: Its columns by our names.
        options: Options of the user.
        checker: Collects what is wrong with the values.
        unit: Unit of the times.
        notes: What was left out or assumed.
        fills: Our names of columns whose option stands only for what the file does not say.
    """

    table: Table
    columns: Columns
    options: ColumnOptions
    checker: Checker
    unit: str
    notes: tuple[str, ...]
    fills: frozenset[str]

    @property
    def origin(self) -> Origin:
        """The file with the unit of its times."""
        return replace(self.table.origin, time_unit=self.unit)

    def sizes(self, field: str, *, least: int = 1, advice: str = "") -> NDArray[np.int64]:
        """Returns the whole numbers of a column by our name."""
        return self.checker.sizes(self.columns.of[field], least=least, advice=advice)

    def common(
        self,
        keys: Mapping[str, NDArray[Any]],
        *notes: str,
        minimum_points: int,
        tolerance: float,
        option: str = "",
    ) -> dict[str, Any]:
        """Returns what all samples have; reports all that is wrong with the file.

        Args:
            keys: What makes two rows measurements of the same.
            *notes: Said ahead of those on the rows.
            minimum_points: Fewest rows.
            tolerance: How much longer, as a fraction, the longest of several times of the same
                may be than the shortest.
            option: Option that sets the tolerance; empty if none does.

        Raises:
            ConfigError: Values are impossible.
            CalibrationError: Too few rows, or repeated ones that disagree.
        """
        time_s = self.checker.positive(self.columns.of["time"]) * TIME_UNITS[self.unit]
        self.checker.finish()
        check_count(self.table, minimum_points)
        used = (*self.columns.of.values(), BUS_RATIO)
        repeats = check_repeats(self.table, keys, time_s, tolerance, used, option=option)
        return {
            "time_s": time_s,
            "source_rows": self.table.rows,
            "origin": self.origin,
            "notes": (*notes, *self.notes, *repeats),
        }

    def words(self, field: str, constant: str | None, words: Vocabulary) -> NDArray[np.str_]:
        """Returns our names for the terms of a column, or the one given for the whole file.

        Raises:
            ConfigError: The one for the whole file is unknown, or the file says otherwise.
        """
        given = None if constant is None else _known(self.table, field, constant, words)
        if field not in self.columns.of:
            return np.array([given or ""] * len(self.table), dtype=np.str_)
        column = self.columns.of[field]
        if given is not None and field not in self.fills:
            values = self.table.columns[column].tolist()
            self._agree(
                column, np.array([words.find(str(value)) == given for value in values]), given
            )
        return self.checker.words(column, words)

    def numbers_or(self, field: str, constant: int | None, *, least: int) -> NDArray[np.int64]:
        """Returns the whole numbers of a column, or the one given for the whole file.

        Raises:
            ConfigError: The one for the whole file is too small, or the file says otherwise.
        """
        if constant is not None and constant < least:
            raise ConfigError(f"--{field}: at least {least} is expected, found {constant}")
        if field not in self.columns.of:
            return np.full(len(self.table), constant, dtype=np.int64)
        column = self.columns.of[field]
        numbers = self.sizes(field, least=least, advice=f"; choose rows with --where {column}=…")
        if constant is not None and field not in self.fills:
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
    fills: frozenset[str] = frozenset(),
) -> Opened:
    """Reads the part of a file that all operators have in common.

    Args:
        path: The file.
        options: Options of the user.
        required: Our names of columns that must be there.
        optional: Our names of columns that may be there.
        vocabularies: The terms that a column holds, by our name of the column.
        logs: True if collectives are read: a log of nccl-tests may be given, or a table of
            dispatches of mixtures of experts.
        fills: Our names of columns whose option stands only for what the file does not say.

    Raises:
        ConfigError: The file cannot be read so.
    """
    table = _read_table(path, in_place=options.in_place)
    if table.is_log:
        if not logs:
            raise ConfigError(
                f"{path}: this is a log of nccl-tests; collectives are fitted with "
                "`dse fit collective`"
            )
        table, completed = _complete_log(table, options)
        fills |= completed
    elif logs and is_dispatch_table(table):
        table = all_to_alls(table)
    columns = find_columns(table, required, optional, options)
    unit, notes = time_unit(table, columns, options)
    table = _filtered(table, columns, options.filters, vocabularies)
    checker = Checker(table)
    notes += _check_device(table, checker, options.device)
    return Opened(table, columns, options, checker, unit, (*table.notes, *notes), fills)


def _check_device(table: Table, checker: Checker, measured: str) -> list[str]:
    """Refuses rows that name another known device; returns notes on names that are not known.

    Args:
        table: The selected rows.
        checker: Collects what is wrong with the values.
        measured: Name of the device that was measured; empty if any.
    """
    notes: list[str] = []
    known = nearest_platform(measured) is not None
    for column in table.named(DEVICE_COLUMNS) if measured else ():
        texts = [str(value).strip() for value in table.columns[column].tolist()]
        named = [name for name in dict.fromkeys(texts) if name not in _NO_DEVICE]
        same = [name for name in named if may_be_same_device(name, measured)]
        found = {name: nearest_platform(name) for name in named[:_MAX_DEVICES] if name not in same}
        others = {name: platform.name for name, platform in found.items() if platform and known}
        if others:
            advice = (
                f"choose rows with --where {column}={same[0]}"
                if same
                else f"fit them with --platform {next(iter(others.values()))}"
            )
            rows = np.array([text in others for text in texts], dtype=np.bool_)
            checker.refuse(column, rows, "of another device", f"{measured} is expected; {advice}")
            return []
        # Systems have names of their own.
        if found and column != "system":
            shown = ", ".join(f"`{name}`" for name in list(found)[:_MAX_VALUES_SHOWN])
            notes.append(f"`{column}` names {shown}; all rows taken as times of {measured}")
    return notes


def _read_table(path: str | Path, *, in_place: bool) -> Table:
    """Reads a CSV, Parquet or JSON-lines file, or a log of nccl-tests.

    Raises:
        ConfigError: The file is missing, too large, or in none of these formats.
    """
    content, file = read_bytes(path, MAX_TABLE_BYTES), str(path)
    if is_nccl_log(content):
        table = parse_nccl_log(table_text(content, file), file, in_place=in_place)
    else:
        table = parse_table(content, file)
    if in_place and not table.is_log:
        raise ConfigError(
            f"{file}: --in-place is for logs of nccl-tests, and this is a table; "
            "name the column with --column time=NAME"
        )
    if not len(table):
        raise ConfigError(f"{file}: no measurements; at least one row is expected")
    return table


def needed(field: str, constant: object) -> tuple[str, ...]:
    """Returns the column unless a constant for the whole file replaces it."""
    return (field,) if constant is None else ()


def _known(table: Table, field: str, word: str, words: Vocabulary) -> str:
    name = words.find(word)
    if name is None:
        raise ConfigError(
            f"{table.origin.file}: --{field}: unknown {words.kind} `{word}`; "
            f"{hint(word.lower(), words.names)}"
        )
    return name


def _complete_log(table: Table, options: ColumnOptions) -> tuple[Table, frozenset[str]]:
    """Fills in what the runs of a log do not state, and names what some do not."""
    columns = dict(table.columns)
    completed = set()
    for name, constant, what in (
        ("op", options.op, "operation"),
        ("ranks", options.ranks, "number of ranks"),
        ("nodes", options.nodes, "number of nodes"),
    ):
        given: NDArray[Any] = np.array(columns.get(name, np.full(len(table), None)), dtype=object)
        unsaid = np.array([value is None for value in given], dtype=np.bool_)
        if name == "nodes" and constant is None:
            # Where the log does not name the hosts, full nodes are assumed later.
            constant = 0
        if unsaid.any() and constant is None:
            message = (
                f"the log does not say the {what} of {int(unsaid.sum())} of {len(table)} rows; "
                f"pass --{name}"
            )
            raise ConfigError(diagnostics=(table.problem(int(np.argmax(unsaid)), name, message),))
        given[unsaid] = constant
        columns[name] = given
        if unsaid.any():
            completed.add(name)
    return replace(table, columns=columns), frozenset(completed)


def _filtered(
    table: Table,
    columns: Columns,
    filters: Mapping[str, str | int | float],
    vocabularies: Mapping[str, Vocabulary],
) -> Table:
    """Keeps the rows that have the wanted values; each filter leaves a note with its count.

    Args:
        table: The file.
        columns: Its columns by our names.
        filters: Column (the file's name or ours) to the wanted value.
        vocabularies: The terms that a column holds, by our name of the column.

    Raises:
        ConfigError: A column does not exist, or nothing is left.
    """
    for key, wanted in filters.items():
        column = _column(table, columns, key)
        ours = next((ours for ours, name in columns.of.items() if name == column), "")
        mask = _equal(table.columns[column], wanted, vocabularies.get(ours))
        if not mask.any():
            raise _nothing_left(table, column, wanted)
        note = f"filter {column}={wanted}: {int(mask.sum())} of {len(table)} rows kept"
        table = replace(table.select(mask), notes=(*table.notes, note))
    return table


def _column(table: Table, columns: Columns, key: str) -> str:
    if key in table.columns:
        return key
    if key in columns.of:
        return columns.of[key]
    same = [name for name in table.columns if snake_case(name) == snake_case(key)]
    if len(same) == 1:
        return same[0]
    raise ConfigError(
        f"{table.origin.file}: --where {key}: no column is called `{key}`; "
        f"{hint(key, (*table.columns, *columns.of))}"
    )


def _equal(
    values: NDArray[Any], wanted: str | int | float, words: Vocabulary | None
) -> NDArray[np.bool_]:
    """Returns where a column has a value; other spellings count only if nobody uses this one."""
    texts = [str(value).strip() for value in values.tolist()]
    different = list(dict.fromkeys(texts))
    same = {text for text in different if _is_exactly(text, wanted)}
    meant = words.find(str(wanted)) if words is not None and not same else None
    if words is not None and meant is not None:
        same = {text for text in different if words.find(text) == meant}
    return np.fromiter((text in same for text in texts), dtype=np.bool_)


def _is_exactly(text: str, wanted: str | int | float) -> bool:
    if text == str(wanted).strip():
        return True
    try:
        return float(text) == float(wanted)
    except (ValueError, OverflowError):
        return False


def _nothing_left(table: Table, column: str, wanted: object) -> ConfigError:
    there = list(dict.fromkeys(str(value) for value in table.columns[column].tolist()))
    shown = ", ".join(f"`{value}`" for value in there[:_MAX_VALUES_SHOWN])
    more = f" and {len(there) - _MAX_VALUES_SHOWN} more" if len(there) > _MAX_VALUES_SHOWN else ""
    return ConfigError(
        f"{table.origin.file}: --where {column}={wanted} matches none of {len(table)} rows; "
        f"the column has {shown}{more}"
    )
