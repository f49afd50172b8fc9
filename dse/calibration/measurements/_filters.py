"""Keeping the rows that a user asks for, and saying how many went."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dse._suggest import hint
from dse.calibration.measurements._names import snake_case
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dse.calibration.measurements._columns import Columns
    from dse.calibration.measurements._names import Vocabulary
    from dse.calibration.measurements._table import Table

_MAX_SHOWN = 12


def apply_filters(
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
        vocabularies: Our names of columns to the words they hold, which may be spelled otherwise.

    Raises:
        ConfigError: A column does not exist, or nothing is left.
    """
    for key, wanted in filters.items():
        column = _column(table, columns, key)
        field = next((ours for ours, name in columns.of.items() if name == column), "")
        mask = _equal(table.columns[column], wanted, vocabularies.get(field))
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
    shown = ", ".join(f"`{value}`" for value in there[:_MAX_SHOWN])
    more = f" and {len(there) - _MAX_SHOWN} more" if len(there) > _MAX_SHOWN else ""
    return ConfigError(
        f"{table.origin.file}: --where {column}={wanted} leaves none of {len(table)} rows; "
        f"the column has {shown}{more}"
    )
