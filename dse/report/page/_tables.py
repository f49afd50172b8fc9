"""Sizes of the model's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.errors import DseError
from dse.search import stored_model
from dse.search.space import WorkloadKind

if TYPE_CHECKING:
    from dse.search import StudyResult


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of one embedding table.

    Attributes:
        name: Table.
        rows: Rows.
        dim: Width.
        size_bytes: Weights of all rows in bytes.
        read_bytes: Bytes of weights that one sample looks up, before caches.
    """

    name: str
    rows: int
    dim: int
    size_bytes: float
    read_bytes: float


def table_sizes(study: StudyResult) -> tuple[TableSize, ...]:
    """Returns the tables of the model that a study keeps; nothing where it keeps none."""
    if study.kind is not WorkloadKind.DLRM:
        return ()
    try:
        model = stored_model(study)
    except DseError:
        # The plan is shown without sizes: they only help to sort it.
        return ()
    return tuple(
        TableSize(
            table.name,
            table.rows,
            table.dim,
            float(table.weight_bytes),
            float(f"{table.lookups_per_sample * table.dim * table.data_type.value_bytes:.6g}"),
        )
        for table in model.tables
    )
