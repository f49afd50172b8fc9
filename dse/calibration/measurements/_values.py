"""From raw values to checked arrays; all problems of a file are collected before it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dse._suggest import hint
from dse.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.calibration.measurements._names import Vocabulary
    from dse.calibration.measurements._table import Table
    from dse.errors import Diagnostic

#: Whole numbers up to here are exact in double precision.
_MAX_WHOLE = 2**53

#: Unknown words of a column that are reported one by one, and how much of a value is shown.
_MAX_WORDS = 5
_MAX_SHOWN = 60


class Checker:
    """Reads columns of a table and remembers what is wrong with them.

    A problem is reported once a column and kind, with the number of rows and the first of them.
    Arrays are only meaningful if :meth:`finish` does not raise.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._problems: list[tuple[int, Diagnostic]] = []

    def sizes(self, column: str, *, least: int = 1, advice: str = "") -> NDArray[np.int64]:
        """Returns whole numbers of at least `least`."""
        numbers, bad = self._numbers(column)
        bad = bad | self._refuse(
            column,
            ~bad & (numbers != np.floor(numbers)),
            "not whole",
            "a whole number is expected",
        )
        self._refuse(
            column,
            ~bad & ((numbers < least) | (numbers > _MAX_WHOLE)),
            "out of range",
            f"a number from {least} to 2^53 is expected{advice}",
        )
        safe = np.where((numbers >= least) & (numbers <= _MAX_WHOLE), numbers, least)
        return safe.astype(np.int64)

    def positive(self, column: str, advice: str = "") -> NDArray[np.float64]:
        """Returns finite numbers above zero."""
        numbers, bad = self._numbers(column)
        zero = "zero or negative"
        self._refuse(column, ~bad & (numbers <= 0), zero, f"more than 0 is expected{advice}")
        return np.where(numbers > 0, numbers, 1.0)

    def not_negative(self, column: str) -> NDArray[np.float64]:
        """Returns finite numbers from zero on."""
        numbers, bad = self._numbers(column)
        self._refuse(column, ~bad & (numbers < 0), "negative", "at least 0 is expected")
        return np.where(numbers >= 0, numbers, 0.0)

    def words(self, column: str, vocabulary: Vocabulary) -> NDArray[np.str_]:
        """Returns our names of a column's words; unknown ones are refused."""
        values, different = self._texts(column)
        ours = {word: vocabulary.find(word) for word in different}
        unknown = [word for word in different if ours[word] is None]
        where = f"rows to keep can be chosen with --where {column}=VALUE"
        for word in unknown[:_MAX_WORDS]:
            self._refuse(
                column,
                values == word,
                f"of the unknown {vocabulary.kind} `{word[:_MAX_SHOWN]}`" if word else "empty",
                f"{hint(word.lower(), vocabulary.names)}; {where}",
                show=False,
            )
        rest = set(unknown[_MAX_WORDS:])
        self._refuse(
            column,
            np.array([word in rest for word in values.tolist()], dtype=np.bool_),
            f"of {len(rest)} more unknown words",
            where,
        )
        return np.array(
            [ours[word] or vocabulary.names[0] for word in values.tolist()], dtype=np.str_
        )

    def any_words(self, column: str, vocabulary: Vocabulary) -> NDArray[np.str_]:
        """Returns our names where there are any, other words in lower case."""
        values, different = self._texts(column)
        ours = {word: vocabulary.find(word) or word.lower() for word in different}
        return np.array([ours[word] for word in values.tolist()], dtype=np.str_)

    def refuse(self, column: str, mask: NDArray[np.bool_], what: str, expected: str) -> None:
        """Remembers that the rows of a mask are unusable."""
        self._refuse(column, mask, what, expected)

    def finish(self) -> None:
        """Raises what was found.

        Raises:
            ConfigError: With one diagnostic for each column and kind, in file order.
        """
        if self._problems:
            ordered = sorted(self._problems, key=lambda item: item[0])
            raise ConfigError(diagnostics=tuple(problem for _, problem in ordered))

    def _numbers(self, column: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Returns numbers (1 where there is none) and where they are unusable."""
        values = self._table.columns[column]
        numbers, missing, unreadable = _parsed(values)
        number = "a number is expected"
        bad = self._refuse(column, missing, "missing", number, show=False)
        bad |= self._refuse(column, unreadable, "no number", number)
        bad |= self._refuse(column, ~bad & np.isnan(numbers), "not a number (NaN)", number)
        bad |= self._refuse(
            column, ~bad & np.isinf(numbers), "infinite", "a finite one is expected"
        )
        return np.where(bad, 1.0, numbers), bad

    def _texts(self, column: str) -> tuple[NDArray[Any], list[str]]:
        values = self._table.columns[column]
        texts = ["" if value is None else str(value).strip() for value in values.tolist()]
        array = np.empty(len(texts), dtype=object)
        array[:] = texts
        return array, list(dict.fromkeys(texts))

    def _refuse(
        self, column: str, mask: NDArray[np.bool_], what: str, expected: str, *, show: bool = True
    ) -> NDArray[np.bool_]:
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
    """Returns numbers, where there is no value, and where a value is not a number."""
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
