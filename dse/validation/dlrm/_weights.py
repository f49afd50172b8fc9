"""Initial weights of embedding tables, the same under every plan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dse.model import DataType

if TYPE_CHECKING:
    from dse.model import EmbeddingTable

#: Number of initial weights computed at once: what a core's cache holds; on a GPU, what fills it.
_INIT_CHUNK = {"cpu": 2**15, "cuda": 2**20}

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
    chunk = max(1, min(height, _INIT_CHUNK[device.type] // max(1, width)))
    start = (seed + 1) * 2**44 + number * 2**28
    scale = 1.0 / math.sqrt(table.rows)
    # A place `p` is hashed as (2 p + 1) · step + start, of which rows and columns give parts.
    row_step = _wrapped(2 * table.dim * _STEP)
    rows = torch.arange(chunk, device=device).mul_(row_step)[:, None]
    columns = torch.arange(offset[1], offset[1] + width, device=device)
    columns.mul_(2).add_(1).mul_(_STEP).add_(start)
    # Buffers are reused: fresh memory costs more than the arithmetic.
    hashes, spare = (torch.empty((chunk, width), dtype=torch.int64, device=device) for _ in "ab")
    unit = torch.empty((chunk, width), dtype=torch.float64, device=device)
    for first in range(0, height, chunk):
        count = min(chunk, height - first)
        values, numbers = hashes[:count], unit[:count]
        torch.add(rows[:count], columns + _wrapped((offset[0] + first) * row_step), out=values)
        _hash(torch, values, spare[:count])
        # The upper 53 bits as a number from 0 to 1, then from -scale to scale.
        numbers.copy_(values.bitwise_right_shift_(11).bitwise_and_(2**53 - 1))
        weights[first : first + count] = numbers.mul_(2.0**-52 * scale).sub_(scale)


def _hash(torch: Any, values: Any, spare: Any) -> None:
    """Mixes the bits of 64-bit numbers in place, with a buffer of the same shape."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        torch.bitwise_right_shift(values, shift, out=spare)
        values.bitwise_xor_(spare.bitwise_and_(2 ** (64 - shift) - 1))
        if factor != 1:
            values.mul_(factor)


def _wrapped(value: int) -> int:
    """Returns an integer modulo 2⁶⁴, as a signed 64-bit number."""
    return (value + 2**63) % 2**64 - 2**63
