"""Tables of measurements, as CSV or Parquet files."""

from __future__ import annotations

import csv
from itertools import takewhile
import math
from typing import TYPE_CHECKING

from dse.errors import DseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pandas as pd


def read_table(path: Path, columns: Iterable[str] = (), *, as_text: bool = False) -> pd.DataFrame:
    """Returns a table as it is; comments at the top of a CSV file begin with `#`.

    Args:
        path: The file; what does not end in `.parquet` is read as CSV.
        columns: Columns that it must have.
        as_text: Values of a CSV file stay texts, empty ones too.

    Raises:
        DseError: The file cannot be read, has no rows, or lacks a column.
    """
    import pandas as pd

    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            with path.open(encoding="utf-8") as lines:
                comments = sum(1 for _ in takewhile(lambda line: line.startswith("#"), lines))
            texts = {"dtype": str, "keep_default_na": False} if as_text else {}
            table = pd.read_csv(path, skiprows=comments, **texts)
    except (OSError, ValueError) as error:
        raise DseError(f"cannot read {path}: {error}") from error
    missing = [name for name in columns if name not in table]
    if missing:
        raise DseError(f"{path}: column `{missing[0]}` is missing; found {', '.join(table)}")
    if table.empty:
        raise DseError(f"{path} has no rows")
    return table


def read_rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file by column, as texts.

    Raises:
        DseError: The file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, ValueError) as error:
        raise DseError(f"cannot read {path}: {error}") from error


def stated_number(
    row: Mapping[str, object] | pd.Series, column: str, *, whole: bool = False, unit: str = ""
) -> float:
    """Returns a positive number of a row.

    Args:
        row: The row by column.
        column: The column.
        whole: Whether the number has to be whole; tables may write `256.0`.
        unit: Unit that follows the number; empty if none does.

    Raises:
        DseError: It is missing, or is no such number.
    """
    text = str(row[column]).strip()
    number, _, after = text.partition(" ")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf or (whole and not value.is_integer()) or after.strip() != unit:
        found = "missing" if text in ("", "nan") else text
        expected = f"a positive {'whole ' if whole else ''}number{unit and f' of {unit}'}"
        raise DseError(f"`{column}` is {found}; expected {expected}")
    return value
