"""Checks of samples as a whole: enough of them, and repeats that agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dse.errors import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dse.calibration.measurements._table import Table


def check_count(table: Table, minimum_points: int) -> None:
    """Refuses a file with too few measurements.

    Raises:
        CalibrationError: Fewer than `minimum_points`.
    """
    if len(table) < minimum_points:
        told = "".join(f"; {note}" for note in table.notes)
        raise CalibrationError(
            f"{table.origin.file}: {len(table)} measurements, at least {minimum_points} are "
            f"needed{told}; measure more sizes"
        )


def check_repeats(
    table: Table,
    keys: Mapping[str, NDArray[Any]],
    time_s: NDArray[np.float64],
    tolerance: float,
    used: Sequence[str],
) -> list[str]:
    """Refuses measurements of the same thing that disagree; returns notes on those that agree.

    Args:
        table: The file.
        keys: What makes two rows the same, by our names.
        time_s: Their times.
        tolerance: How much longer than the shortest the longest of the same rows may take, as a
            fraction.
        used: The file's columns that are read; others may tell the rows apart.

    Raises:
        CalibrationError: Times of the same rows differ by more.
    """
    group = _groups(keys)
    count = np.bincount(group)
    if count.max() == 1:
        return []
    shortest = np.full(len(count), np.inf)
    longest = np.zeros(len(count))
    np.minimum.at(shortest, group, time_s)
    np.maximum.at(longest, group, time_s)
    apart = longest / shortest - 1
    disagreeing = np.flatnonzero(apart > tolerance)
    repeated = int(np.count_nonzero(count > 1))
    if not len(disagreeing):
        return [f"{repeated} points are measured more than once; all {len(table)} rows kept"]
    rows = np.flatnonzero(np.isin(group, disagreeing))
    worst = group[rows[0]]
    members = np.flatnonzero(group == worst)
    low, high = members[np.argmin(time_s[members])], members[np.argmax(time_s[members])]
    same = ", ".join(f"{name}={values[low]}" for name, values in keys.items() if values[low] != "")
    raise CalibrationError(
        f"{table.origin.place(int(table.rows[low]))}: {len(disagreeing)} of {repeated} repeated "
        f"points disagree; the first ({same}) takes {time_s[low]:.4g} s here and "
        f"{time_s[high]:.4g} s at {table.origin.place(int(table.rows[high]))}, "
        f"{apart[worst]:.0%} more where {tolerance:.0%} are allowed; "
        + _advice(table, low, high, used)
    )


def _groups(keys: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Returns a number for each row that is the same for rows with the same keys."""
    group = np.zeros(len(next(iter(keys.values()))), dtype=np.int64)
    for values in keys.values():
        _, codes = np.unique(values, return_inverse=True)
        _, group = np.unique(group * (codes.max() + 1) + codes, return_inverse=True)
    return group.astype(np.int64)


def _advice(table: Table, low: int, high: int, used: Sequence[str]) -> str:
    telling = [
        name
        for name, values in table.columns.items()
        if name not in used and str(values[low]) != str(values[high])
    ]
    if telling:
        name = telling[0]
        return (
            f"they differ in `{name}`: choose one with --where {name}={table.columns[name][low]}"
        )
    return "measure again, or keep one of them"
