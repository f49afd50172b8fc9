"""Lookups and updates by the operators of a framework on a CPU.

Nothing is fused there: the gradient of every lookup is written, numbers and gradients are sorted
and added up by row, and each row is updated once. The bytes of all that are the reference that
measured times are compared with. They are smooth in the sizes, other than those of a GPU's
kernels with their passes and hit rates: what caches do differs from CPU to CPU and is left to the
measured ratio, and a smooth ratio cannot follow a reference that jumps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.machine.kernels.embedding._fused import EmbeddingShape

#: Share of the peak bandwidth at which rows and numbers are streamed.
_STREAM_EFFICIENCY = 0.8

#: Number and position of one lookup, which each round of a merge sort moves.
_SORTED_BYTES = 16

#: Passes over the gradients of all lookups: written, read in the order of rows, and added up.
_GRADIENT_PASSES = 3


def cpu_lookup_bytes(shape: EmbeddingShape) -> float:
    """Returns the bytes of a lookup: numbers, a row for each, and the pooled vectors."""
    row_bytes = shape.dim * shape.value_bytes
    output_bytes = shape.dim * shape.output_value_bytes
    moved_bytes = shape.lookups * (shape.index_bytes + row_bytes) + shape.bags * output_bytes
    return moved_bytes / _STREAM_EFFICIENCY


def cpu_update_bytes(shape: EmbeddingShape, unique_rows: float) -> float:
    """Returns the bytes of an update.

    Args:
        shape: What was looked up; with at least one lookup.
        unique_rows: Expected number of different rows among the lookups.
    """
    gradient_bytes = shape.dim * shape.output_value_bytes
    sorted_bytes = shape.lookups * _SORTED_BYTES * math.log2(2.0 + shape.lookups)
    row_bytes = shape.dim * shape.value_bytes + shape.state_bytes_per_row
    moved_bytes = (
        sorted_bytes
        + _GRADIENT_PASSES * shape.lookups * gradient_bytes
        + shape.bags * gradient_bytes
        + 2.0 * unique_rows * row_bytes
    )
    return moved_bytes / _STREAM_EFFICIENCY
