"""Scaling a model down to a machine, by one rule for all candidates."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.sharding import format_size, stored_bytes

if TYPE_CHECKING:
    from dse.model import DlrmModel

#: A table keeps this many rows, if it has them.
_FEWEST_ROWS = 64

#: Bytes of a value that a lookup sums up.
_VALUE_BYTES = 4

_HALVINGS = 60


def scale_model(
    model: DlrmModel, *, memory_bytes: float, lookup_bytes: float, world_size: int
) -> DlrmModel:
    """Returns a model of the same shape whose tables and iterations this machine can bear.

    The rule, in words: the rows of all tables shrink by one factor, the largest up to 1 for which
    all weights and optimizer state take no more than `memory_bytes`, but a table keeps 64 rows;
    the global batch shrinks to the largest multiple of `world_size` for which the rows that an
    iteration looks up take no more than `lookup_bytes`. Number of tables, widths, pooling factors,
    index distributions and the dense part stay as they are, so tables keep their order by size and
    by lookups, which is what plans differ in.

    Args:
        model: The model.
        memory_bytes: For weights and state of all tables on all ranks together.
        lookup_bytes: For the rows, in 4-byte values, that one iteration looks up on all ranks.
        world_size: Number of ranks; the batch divides over them.

    Raises:
        ConfigError: Even the smallest tables or the smallest batch are too large.
    """
    scaled = _fewer_rows(model, memory_bytes)
    return replace(scaled, global_batch_size=_smaller_batch(model, lookup_bytes, world_size))


def scaling_words(model: DlrmModel, scaled: DlrmModel) -> str:
    """Says what :func:`scale_model` did."""
    before, after = (sum(table.rows for table in one.tables) for one in (model, scaled))
    return (
        f"rows {before:,} → {after:,} over {len(model.tables)} tables (one factor for all, at "
        f"least {_FEWEST_ROWS} rows a table), global batch {model.global_batch_size:,} → "
        f"{scaled.global_batch_size:,}; widths, pooling factors, index distributions and the "
        "dense part unchanged"
    )


def _with_rows(model: DlrmModel, factor: float) -> DlrmModel:
    tables = tuple(
        replace(table, rows=max(min(table.rows, _FEWEST_ROWS), math.floor(factor * table.rows)))
        for table in model.tables
    )
    return replace(model, tables=tables)


def _fewer_rows(model: DlrmModel, memory_bytes: float) -> DlrmModel:
    def needed_bytes(factor: float) -> float:
        return sum(
            stored_bytes(table, model.sparse_optimizer, table.rows, table.dim)
            for table in _with_rows(model, factor).tables
        )

    if needed_bytes(1.0) <= memory_bytes:
        return model
    if needed_bytes(0.0) > memory_bytes:
        raise ConfigError(
            f"{len(model.tables)} tables of {_FEWEST_ROWS} rows take "
            f"{format_size(needed_bytes(0.0))}, more than the {format_size(memory_bytes)} given; "
            "choose fewer tables or give more memory"
        )
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if needed_bytes(middle) <= memory_bytes else (low, middle)
    return _with_rows(model, low)


def _smaller_batch(model: DlrmModel, lookup_bytes: float, world_size: int) -> int:
    sample_bytes = sum(
        table.lookups_per_sample * table.dim * _VALUE_BYTES for table in model.tables
    )
    most = model.global_batch_size
    if sample_bytes > 0:
        most = min(most, int(lookup_bytes / sample_bytes))
    batch = most // world_size * world_size
    if not batch:
        raise ConfigError(
            f"{world_size} samples look up {format_size(world_size * sample_bytes)}, more than "
            f"the {format_size(lookup_bytes)} given; choose fewer tables or give more"
        )
    return batch
