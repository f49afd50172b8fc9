"""Data of the page: rounded numbers, columns instead of rows, compressed."""

from __future__ import annotations

import base64
from dataclasses import asdict, fields, is_dataclass
import gzip
import json
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.report.page._view import ReportView

_BACKTICKS = re.compile(r"`([^`\n]+)`")


def rounded(value: float, digits: int = 6) -> float:
    """Rounds to significant digits."""
    return float(f"{value:.{digits}g}")


def finite(value: float) -> float | None:
    """Rounds to six significant digits; returns None for NaN and infinities, unknown to JSON."""
    return rounded(value) if math.isfinite(value) else None


def quoted(text: str) -> str:
    """Returns text with the quotation marks of prose around what a terminal has in backticks."""
    return _BACKTICKS.sub("“\\1”", text)


def view_document(view: ReportView) -> dict[str, Any]:
    """Returns the view as JSON values, its trials as columns (see `column`).

    `trials` becomes `{"count": n, "columns": {field: column}}`; all else stays as it is.
    """
    document = {
        field.name: _plain(getattr(view, field.name))
        for field in fields(view)
        if field.name != "trials"
    }
    trials = view.trials
    names = [field.name for field in fields(trials[0])] if trials else []
    columns = {name: column([getattr(trial, name) for trial in trials]) for name in names}
    document["trials"] = {"count": len(trials), "columns": columns}
    return document


def column(values: Sequence[Any]) -> list[Any] | dict[str, Any]:
    """Returns one field of all rows in the shortest of three forms.

    Tuples of one length, some of them empty, become `{"parts": [column, ...], "empty": [row,
    ...]}`; values that repeat become `{"words": [...], "codes": [...]}`; others stay a list. The
    script of the page turns all three into a list again.
    """
    lengths = {len(value) if isinstance(value, tuple) else -1 for value in values} - {0}
    if len(lengths) == 1 and -1 not in lengths:
        (length,) = lengths
        parts = [
            column([value[index] if value else None for value in values])
            for index in range(length)
        ]
        empty = [row for row, value in enumerate(values) if not value]
        return {"parts": parts, "empty": empty}
    if all(value is None or isinstance(value, str | bool | int | float) for value in values):
        # True equals 1 in Python, so the type belongs to the word.
        words = {(type(value), value): None for value in values}
        if len(words) * 2 <= len(values):
            codes = {word: code for code, word in enumerate(words)}
            return {
                "words": [word for _, word in words],
                "codes": [codes[type(value), value] for value in values],
            }
    return [_plain(value) for value in values]


def packed(text: str) -> str:
    """Returns the base64 of gzipped text, which has no meaning in HTML.

    The same text gives the same characters: no time stamp is kept.
    """
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode("ascii")


def packed_document(document: dict[str, Any]) -> str:
    """Returns a document as packed JSON."""
    return packed(json.dumps(document, separators=(",", ":"), allow_nan=False))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
