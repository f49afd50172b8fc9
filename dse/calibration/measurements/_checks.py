"""Checks of values: raw columns become arrays, and all problems of a file are collected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dse._io.tables import objects
from dse._text.suggest import hint
from dse.calibration.measurements._samples import joined
from dse.errors import CalibrationError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dse._io.tables import Table
    from dse.calibration.measurements._names import Vocabulary
    from dse.calibration.measurements._samples import CollectiveSamples
    from dse.errors import Diagnostic

#: Whole numbers up to here are exact in double precision.
_MAX_WHOLE = 2**53

#: Times and other figures that are measured, in any unit; fits of others overflow.
_MEASURED = (1e-15, 1e18)

#: Unknown terms of a column that are listed, and characters of a value that are shown.
_MAX_WORDS = 5
_MAX_SHOWN = 60


class Checker:
    """Reads columns of a table and collects their problems.

    A problem is reported once a column and kind, with the number of rows and the first of them.
    Arrays are only meaningful if :meth:`finish` does not raise.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._problems: list[tuple[int, Diagnostic]] = []

    def sizes(self, column: str, *, least: int = 1, advice: str = "") -> NDArray[np.int64]:
        """Returns whole numbers of at least `least`."""
        numbers, bad = self._numbers(column)
        bad = bad | self.refuse(
            column,
            ~bad & (numbers != np.floor(numbers)),
            "not whole",
            "a whole number is expected",
        )
        self.refuse(
            column,
            ~bad & ((numbers < least) | (numbers > _MAX_WHOLE)),
            "out of range",
            f"a number from {least} to 2^53 is expected{advice}",
        )
        safe = np.where((numbers >= least) & (numbers <= _MAX_WHOLE), numbers, least)
        return safe.astype(np.int64)

    def positive(self, column: str) -> NDArray[np.float64]:
        """Returns numbers above zero of a size that is measured in any unit."""
        numbers, bad = self._numbers(column)
        zero = "zero or negative"
        bad = bad | self.refuse(column, ~bad & (numbers <= 0), zero, "more than 0 is expected")
        least, most = _MEASURED
        inside = (numbers >= least) & (numbers <= most)
        self.refuse(
            column,
            ~bad & ~inside,
            "out of range",
            f"a number from {least:g} to {most:g} is expected",
        )
        return np.where(inside, numbers, 1.0)

    def not_negative(self, column: str) -> NDArray[np.float64]:
        """Returns finite numbers from zero on."""
        numbers, bad = self._numbers(column)
        self.refuse(column, ~bad & (numbers < 0), "negative", "at least 0 is expected")
        return np.where(numbers >= 0, numbers, 0.0)

    def words(self, column: str, vocabulary: Vocabulary) -> NDArray[np.str_]:
        """Returns our names for the terms of a column; unknown terms are a problem."""
        values, different = self._texts(column)
        ours = {word: vocabulary.find(word) for word in different}
        unknown = [word for word in different if ours[word] is None]
        where = f"rows to keep can be chosen with --where {column}=VALUE"
        for word in unknown[:_MAX_WORDS]:
            self.refuse(
                column,
                values == word,
                f"of the unknown {vocabulary.kind} `{word[:_MAX_SHOWN]}`" if word else "empty",
                f"{hint(word.lower(), vocabulary.names)}; {where}",
                show=False,
            )
        rest = set(unknown[_MAX_WORDS:])
        self.refuse(
            column,
            np.array([word in rest for word in values.tolist()], dtype=np.bool_),
            f"of {len(rest)} more unknown terms",
            where,
        )
        return np.array(
            [ours[word] or vocabulary.names[0] for word in values.tolist()], dtype=np.str_
        )

    def any_words(self, column: str, vocabulary: Vocabulary) -> NDArray[np.str_]:
        """Returns our names for the terms of a column, unknown terms in lower case."""
        values, different = self._texts(column)
        ours = {word: vocabulary.find(word) or word.lower() for word in different}
        return np.array([ours[word] for word in values.tolist()], dtype=np.str_)

    def finish(self) -> None:
        """Raises the collected problems.

        Raises:
            ConfigError: With one diagnostic for each column and kind, in file order.
        """
        if self._problems:
            ordered = sorted(self._problems, key=lambda item: item[0])
            raise ConfigError(diagnostics=tuple(problem for _, problem in ordered))

    def _numbers(self, column: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Returns numbers (1 where unusable) and the mask of unusable ones."""
        values = self._table.columns[column]
        numbers, missing, unreadable = _parsed(values)
        number = "a number is expected"
        bad = self.refuse(column, missing, "missing", number, show=False)
        bad |= self.refuse(column, unreadable, "no number", number)
        bad |= self.refuse(column, ~bad & np.isnan(numbers), "not a number (NaN)", number)
        bad |= self.refuse(
            column, ~bad & np.isinf(numbers), "infinite", "a finite one is expected"
        )
        return np.where(bad, 1.0, numbers), bad

    def _texts(self, column: str) -> tuple[NDArray[Any], list[str]]:
        values = self._table.columns[column]
        texts = ["" if value is None else str(value).strip() for value in values.tolist()]
        return objects(texts), list(dict.fromkeys(texts))

    def refuse(
        self, column: str, mask: NDArray[np.bool_], what: str, expected: str, *, show: bool = True
    ) -> NDArray[np.bool_]:
        """Reports that the rows of a mask are unusable; returns the mask."""
        count = int(np.count_nonzero(mask))
        if count:
            first = int(np.argmax(mask))
            found = str(self._table.columns[column][first])
            value = f", here `{found[:_MAX_SHOWN]}`" if show else ""
            message = (
                f"{count} of {len(self._table)} values {'is' if count == 1 else 'are'} "
                f"{what}{value}; {expected}"
            )
            self._problems.append((first, self._table.problem(first, column, message)))
        return np.asarray(mask, dtype=np.bool_)


def _parsed(
    values: NDArray[Any],
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns numbers, the mask of missing values, and the mask of values that are no numbers."""
    missing = np.zeros(len(values), dtype=np.bool_)
    unreadable = np.zeros(len(values), dtype=np.bool_)
    if values.dtype.kind in "iuf":
        return values.astype(np.float64), missing, unreadable
    if values.dtype.kind in "mM":
        # As numbers these would be counts of whatever unit the file stores.
        return np.full(len(values), np.nan), missing, ~unreadable
    numbers = np.full(len(values), np.nan)
    for index, value in enumerate(values.tolist()):
        if value is None or value == "":
            missing[index] = True
        elif isinstance(value, bool):
            unreadable[index] = True
        else:
            try:
                numbers[index] = float(value)
            except (TypeError, ValueError, OverflowError):
                unreadable[index] = True
    return numbers, missing, unreadable


def check_count(table: Table, minimum_points: int) -> None:
    """Refuses a file with too few measurements.

    Raises:
        CalibrationError: Fewer than `minimum_points`.
    """
    if len(table) < minimum_points:
        notes = "".join(f"; {note}" for note in table.notes)
        raise CalibrationError(
            f"{table.origin.file}: {len(table)} measurements, at least {minimum_points} are "
            f"needed{notes}; measure more sizes"
        )


def check_repeats(
    table: Table,
    keys: Mapping[str, NDArray[Any]],
    time_s: NDArray[np.float64],
    tolerance: float,
    used: Sequence[str],
    *,
    option: str = "",
) -> list[str]:
    """Refuses measurements of the same thing that disagree; returns notes on those that agree.

    Args:
        table: The file.
        keys: What makes two rows the same, by our names.
        time_s: Their times.
        tolerance: How much longer than the shortest the longest of the same rows may take, as a
            fraction.
        used: The file's columns that are read; others may distinguish the rows.
        option: Option that sets the tolerance; empty if none does.

    Raises:
        CalibrationError: Times of the same rows differ by more.
    """
    places = [table.origin.place(int(row)) for row in table.rows]
    repeated, disagreement = _repeats(keys, time_s, tolerance, places)
    if disagreement is not None:
        low, high, text = disagreement
        raise CalibrationError(
            f"{text}; {_advice(table, low, high, used)}"
            + (f"; or allow more with {option}" if option else "")
        )
    if not repeated:
        return []
    return [f"{repeated} points are measured more than once; all {len(table)} rows kept"]


def check_files(
    measured: Sequence[CollectiveSamples], nodes: NDArray[np.int64], tolerance: float
) -> None:
    """Refuses files that disagree on the time of a collective.

    Versions of the communication library and data types, which a network is fitted to together,
    make no difference.

    Args:
        measured: The files' collectives.
        nodes: Nodes of each row of all of them.
        tolerance: How much longer than the shortest the longest time may be, as a fraction.

    Raises:
        CalibrationError: They do.
    """
    samples = joined(measured)
    keys = {
        "op": samples.op,
        "ranks": samples.ranks,
        "nodes": nodes,
        "size_bytes": samples.size_bytes,
    }
    places = [one.origin.place(int(row)) for one in measured for row in one.source_rows]
    _, disagreement = _repeats(keys, samples.time_s, tolerance, places)
    if disagreement is not None:
        raise CalibrationError(
            f"{disagreement[2]}; fit one of them, or allow more with --tolerance"
        )


def _repeats(
    keys: Mapping[str, NDArray[Any]],
    time_s: NDArray[np.float64],
    tolerance: float,
    places: Sequence[str],
) -> tuple[int, tuple[int, int, str] | None]:
    """Returns how many points are repeated, and of the first that disagree rows and a text."""
    group = _groups(keys)
    count = np.bincount(group)
    shortest = np.full(len(count), np.inf)
    longest = np.zeros(len(count))
    np.minimum.at(shortest, group, time_s)
    np.maximum.at(longest, group, time_s)
    apart = longest / shortest - 1
    disagreeing = np.flatnonzero(apart > tolerance)
    repeated = int(np.count_nonzero(count > 1))
    if not len(disagreeing):
        return repeated, None
    rows = np.flatnonzero(np.isin(group, disagreeing))
    worst = group[rows[0]]
    members = np.flatnonzero(group == worst)
    low, high = members[np.argmin(time_s[members])], members[np.argmax(time_s[members])]
    same = ", ".join(f"{name}={values[low]}" for name, values in keys.items() if values[low] != "")
    return repeated, (
        int(low),
        int(high),
        f"{places[low]}: {len(disagreeing)} of {repeated} repeated points disagree; the first "
        f"({same}) takes {time_s[low]:.4g} s here and {time_s[high]:.4g} s at {places[high]}, "
        f"{apart[worst]:.0%} more where {tolerance:.0%} are allowed",
    )


def _groups(keys: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Returns a number for each row that is the same for rows with the same keys."""
    group = np.zeros(len(next(iter(keys.values()))), dtype=np.int64)
    for values in keys.values():
        _, codes = np.unique(values, return_inverse=True)
        _, group = np.unique(group * (codes.max() + 1) + codes, return_inverse=True)
    return group.astype(np.int64)


def _advice(table: Table, low: int, high: int, used: Sequence[str]) -> str:
    different = {
        name: len(set(map(str, values.tolist())))
        for name, values in table.columns.items()
        if name not in used and str(values[low]) != str(values[high]) and _is_setting(values)
    }
    if different:
        name = min(different, key=different.__getitem__)
        return (
            f"they differ in `{name}`: choose one with --where {name}={table.columns[name][low]}"
        )
    return "measure again, or keep one of them"


def _is_setting(values: NDArray[Any]) -> bool:
    """Returns whether a column may tell how rows were measured, not what was.

    Measured figures, such as a bandwidth, are other numbers in most rows.
    """
    numbers, _, unreadable = _parsed(values)
    return bool(unreadable.any()) or 2 * len(np.unique(numbers)) <= len(numbers)
