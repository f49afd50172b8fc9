"""Where samples come from, and how a message names a place there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dse.errors import Diagnostic


class RowKind(StrEnum):
    """What the number of a source row counts, from 1."""

    LINE = "line"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Origin:
    """The file behind some samples.

    Attributes:
        file: Path as the user gave it; empty for samples made in memory.
        row_kind: Lines of a text, or rows of a Parquet file.
        time_unit: Unit that the file's times were taken to be in; None if that is not known.
    """

    file: str = ""
    row_kind: RowKind = RowKind.ROW
    time_unit: str | None = None

    def place(self, row: int) -> str:
        """Returns a place in words: `data.csv:12` or `data.parquet, row 12`."""
        if self.row_kind is RowKind.LINE:
            return f"{self.file}:{row}"
        return f"{self.file}, row {row}" if self.file else f"row {row}"

    def diagnostic(self, row: int | None, field: str, message: str) -> Diagnostic:
        """Returns a problem at a row, or of the whole file where `row` is None."""
        if row is None or self.row_kind is RowKind.LINE:
            return Diagnostic(self.file, row, None, field, message)
        return Diagnostic(self.file, None, None, field, f"row {row}: {message}")
