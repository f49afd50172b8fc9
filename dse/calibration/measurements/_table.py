"""A file as columns of raw values, each row with its place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dse.calibration.measurements._origin import Origin
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from dse.errors import Diagnostic


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Raw columns.

    Attributes:
        origin: The file.
        columns: The file's name of a column to its values, shape `(rows,)`; texts, numbers or
            objects.
        rows: Line or row of the file, from 1.
        header_line: Line of the names of the columns; None where they have none.
        notes: What was left out.
        is_log: True for the output of nccl-tests.
    """

    origin: Origin
    columns: Mapping[str, NDArray[Any]]
    rows: NDArray[np.int64]
    header_line: int | None = None
    notes: tuple[str, ...] = ()
    is_log: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, mask: NDArray[np.bool_]) -> Table:
        """Returns the rows of a mask."""
        columns = {name: values[mask] for name, values in self.columns.items()}
        return replace(self, columns=columns, rows=self.rows[mask])

    def problem(self, index: int, field: str, message: str) -> Diagnostic:
        """Returns a problem whose first row has this index."""
        return self.origin.diagnostic(int(self.rows[index]), field, message)

    def header_error(self, field: str, message: str) -> ConfigError:
        """Returns an error about a column as a whole."""
        found = Origin(self.origin.file, self.origin.row_kind).diagnostic(None, field, message)
        return ConfigError(diagnostics=(replace(found, line=self.header_line),))
