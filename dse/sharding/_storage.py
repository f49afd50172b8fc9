"""Bytes that a piece of a table takes on the device and in host memory."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.model import EmbeddingTable, Optimizer

#: Bytes of a value of optimizer state.
_STATE_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class PieceStorage:
    """Where the bytes of a piece are.

    Attributes:
        device_weights_bytes: Weights in device memory, those of a cache included.
        device_state_bytes: Optimizer state in device memory.
        host_bytes: Weights and optimizer state in host memory.
    """

    device_weights_bytes: float
    device_state_bytes: float
    host_bytes: float

    @property
    def device_bytes(self) -> float:
        """Weights and state in device memory."""
        return self.device_weights_bytes + self.device_state_bytes


def stored_bytes(table: EmbeddingTable, optimizer: Optimizer, rows: int, columns: int) -> float:
    """Returns the bytes of weights and optimizer state of a piece of a table."""
    state_values = optimizer.state_values_per_row(columns)
    return rows * (columns * table.data_type.value_bytes + 4.0 * state_values)


def piece_storage(
    table: EmbeddingTable,
    optimizer: Optimizer,
    rows: int,
    columns: int,
    cached_share: float | None = None,
) -> PieceStorage:
    """Returns where the weights and the optimizer state of a piece are kept.

    Rows in host memory keep their state beside them, and a cached row is a copy with its state.
    State of one value a row stays on the device, as FBGEMM keeps it.

    Args:
        table: The table.
        optimizer: Its update rule.
        rows: Rows of the piece.
        columns: Columns of the piece.
        cached_share: Share of rows in host memory that the device caches; None for a piece that
            is on the device.
    """
    weights_bytes = float(rows * columns * table.data_type.value_bytes)
    state_bytes = rows * (_STATE_BYTES * optimizer.state_values_per_row(columns))
    if cached_share is None:
        return PieceStorage(weights_bytes, state_bytes, 0.0)
    cached = min(rows, math.ceil(cached_share * rows)) / rows if rows else 0.0
    if optimizer.keeps_state_by_row:
        return PieceStorage(cached * weights_bytes, state_bytes, weights_bytes)
    return PieceStorage(cached * weights_bytes, cached * state_bytes, weights_bytes + state_bytes)
