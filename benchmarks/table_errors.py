"""Errors of predictions for the rows of a table of measurements, by platform.

A row that cannot be predicted carries its problem and is counted under `problems`, never left out
in silence; `points` are the rows that errors are taken over.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
import json
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

#: Figures that a line shows.
_SHOWN = ("mape", "median_abs_error", "inside_90")


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """One row of a table and its prediction.

    Attributes:
        row: Number of the row, from 1.
        platform: Platform that was asked; empty where none has the row's device.
        group: What else errors are listed by, such as a version; may be empty.
        measured_s: Measured time; NaN where the row has none.
        predicted_s: Predicted time; NaN with a problem.
        low_s: Lower end of the 90 % interval; NaN with a problem.
        high_s: Its upper end; NaN with a problem.
        problem: Why it was not predicted; empty if it was.
        kind: Whether the model was fitted on it, where rows differ in that; else empty.
    """

    row: int
    platform: str
    group: str
    measured_s: float
    predicted_s: float = math.nan
    low_s: float = math.nan
    high_s: float = math.nan
    problem: str = ""
    kind: str = ""


def errors_document(rows: Sequence[PredictedRow]) -> dict[str, object]:
    """Returns the errors of all rows, and by platform and group.

    Args:
        rows: Of one table.

    Returns:
        `overall` and `by` (platform) with the number of predicted `points`, `mape`,
        `median_abs_error` and the share `inside_90` of points inside the interval; `by_group` the
        same, and `by_kind`, which keeps fitted rows and held-out ones apart; `rows`, and
        `problems` from text to number of rows.
    """
    problems = [row.problem for row in rows if row.problem]
    told = [row for row in rows if row.kind]
    return {
        "overall": _errors(rows),
        "by": _grouped(rows, [row.platform for row in rows]),
        "by_group": _grouped(rows, [f"{row.platform} {row.group}".strip() for row in rows]),
        "by_kind": _grouped(told, [row.kind for row in told]),
        "rows": len(rows),
        "problems": {text: problems.count(text) for text in dict.fromkeys(problems)},
    }


def print_errors(rows: Sequence[PredictedRow], *, as_json: bool) -> None:
    """Prints the errors of a table as text, or as JSON with every problem by its row."""
    document = errors_document(rows)
    if as_json:
        failed = [{"row": row.row, "problem": row.problem} for row in rows if row.problem]
        print(json.dumps({**document, "rows_with_problems": failed}, indent=1))
        return
    kinds, groups = _items(document["by_kind"]), _items(document["by_group"])
    listed = list(chain([("all", _errors(rows))], kinds, groups))
    width = max(34, *(len(name) for name, _ in listed))
    print(f"{'platform':<{width}} {'points':>7} {'mean':>7} {'median':>7} {'inside 90 %':>11}")
    for name, errors in listed:
        shown = ("–" if errors[key] is None else f"{100 * errors[key]:.1f}%" for key in _SHOWN)
        mean, median, inside = shown
        count = f"{errors['points']:7,}"
        print(f"{name or 'no platform':<{width}} {count} {mean:>7} {median:>7} {inside:>11}")
    for text, count in _items(document["problems"]):
        print(f"{count:,} × {text}")


def _items(document: object) -> Iterable[tuple[str, dict[str, float]]]:
    assert isinstance(document, dict)
    return document.items()


def _grouped(rows: Sequence[PredictedRow], names: Sequence[str]) -> dict[str, dict[str, object]]:
    grouped: dict[str, list[PredictedRow]] = {}
    for name, row in zip(names, rows, strict=True):
        grouped.setdefault(name, []).append(row)
    return {name: _errors(members) for name, members in sorted(grouped.items())}


def error_figures(errors: NDArray[np.float64], problems: int) -> dict[str, int | float | None]:
    """Returns what every table says of some of its rows.

    Args:
        errors: Absolute relative errors of those that were predicted; shape `(points,)`.
        problems: Number of those that were not.
    """
    known = len(errors) > 0
    return {
        "points": len(errors),
        "problems": problems,
        "mape": float(errors.mean()) if known else None,
        "median_abs_error": float(np.median(errors)) if known else None,
    }


def _errors(rows: Sequence[PredictedRow]) -> dict[str, object]:
    known = [row for row in rows if not row.problem]
    predicted, measured, low, high = (
        np.array([getattr(row, name) for row in known])
        for name in ("predicted_s", "measured_s", "low_s", "high_s")
    )
    inside = (low <= measured) & (measured <= high)
    return {
        **error_figures(np.abs(predicted / measured - 1), len(rows) - len(known)),
        "inside_90": float(np.mean(inside)) if known else None,
    }
