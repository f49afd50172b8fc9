"""What a person may say about a file whose columns do not say it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dse._suggest import hint
from dse.calibration.measurements._names import SIZE_UNITS, TIME_UNITS
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """How to read a file of measurements.

    Attributes:
        columns: Our name of a column to the file's name, for columns that are not recognised:
            `m`, `n`, `k`, `precision`, `op`, `ranks`, `size`, `dtype`, `rows`, `dim`, `batch`,
            `pooling`, `value_bytes`, `alpha`, `time`.
        time_unit: `s`, `ms`, `us` or `ns`; stronger than what a column's name says.
        size_unit: `bytes` or `elements` of a message size; stronger than the column's name.
        precision: Precision of all rows (for collectives and embeddings: type of the values), for
            a file without such a column.
        op: Operation of all rows, for a file that does not name it.
        ranks: Number of ranks of all rows, for a file that does not name it.
        filters: Column (the file's name or ours) to the value that rows must have to be kept.
        in_place: Take the in-place times of an nccl-tests log instead of the out-of-place ones.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    size_unit: str | None = None
    precision: str | None = None
    op: str | None = None
    ranks: int | None = None
    filters: Mapping[str, str | int | float] = field(default_factory=dict)
    in_place: bool = False

    def __post_init__(self) -> None:
        _expect("--time-unit", self.time_unit, tuple(TIME_UNITS))
        _expect("--size-unit", self.size_unit, SIZE_UNITS)


def _expect(option: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        names = ", ".join(f"`{name}`" for name in known)
        raise ConfigError(
            f"{option}: expected one of {names}; found `{value}`; {hint(value, known)}"
        )
