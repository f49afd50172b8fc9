"""Initial weights of embedding tables, the same under every plan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dse.model import DataType

if TYPE_CHECKING:
    from dse.model import EmbeddingTable

#: Number of initial weights computed at once.
_INIT_CHUNK = 2**20

#: Odd constants of an integer hash (Steele et al., SplitMix), as signed 64-bit numbers.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def stored_type(torch: Any, table: EmbeddingTable, *, double: bool) -> Any:
    """Returns the torch type of a table's rows."""
    if double:
        return torch.float64
    kinds = {DataType.FP32: torch.float32, DataType.FP16: torch.float16}
    return kinds.get(table.data_type, torch.bfloat16)


def fill_initial_weights(
    torch: Any,
    table: EmbeddingTable,
    number: int,
    seed: int,
    weights: Any,
    offset: tuple[int, int] = (0, 0),
) -> None:
    """Fills a shard with its initial weights, uniform within ±1/√rows.

    A weight is a hash of seed, table, row and column, so it does not depend on the sharding.

    Args:
        torch: The torch module.
        table: The table.
        number: Its index in the model.
        seed: Seed of all weights.
        weights: The shard, to fill; shape `(rows, columns)`.
        offset: First row and first column of the shard in the table.
    """
    height, width = weights.shape
    device = weights.device
    columns = torch.arange(offset[1], offset[1] + width, device=device)
    scale = 1.0 / math.sqrt(table.rows)
    chunk = max(1, _INIT_CHUNK // max(1, width))
    start = (seed + 1) * 2**44 + number * 2**28
    for first in range(0, height, chunk):
        last = min(height, first + chunk)
        rows = torch.arange(offset[0] + first, offset[0] + last, device=device)
        values = (rows * table.dim)[:, None] + columns
        values = _hashed(values.mul_(2).add_(1).mul_(_STEP).add_(start))
        # The upper 53 bits as a number from 0 to 1.
        unit = (values >> 11).bitwise_and_(2**53 - 1).to(torch.float64).mul_(2.0**-53)
        weights[first:last] = unit.mul_(2 * scale).sub_(scale)


def _hashed(values: Any) -> Any:
    """Mixes the bits of 64-bit numbers in place."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        values ^= (values >> shift) & (2 ** (64 - shift) - 1)
        values *= factor
    values ^= (values >> 31) & (2**33 - 1)
    return values
