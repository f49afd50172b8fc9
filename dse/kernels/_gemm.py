"""Matrix multiplication by a roofline with tiles, waves and split-k.

The library's kernel choice is imitated: of several tile shapes and splits of the contracted
dimension, the fastest under the model is taken. That reproduces the two effects that a plain
roofline misses, quantisation into waves of tiles and the starved device of a small product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.kernels._memory import STREAMING_EFFICIENCY

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from dse.hardware import DeviceSpec, Precision

#: Tile shapes (rows, columns) with the share of the unit's peak that their inner loop reaches.
_TILES = ((256, 128, 0.80), (128, 256, 0.80), (128, 128, 0.75), (128, 64, 0.62), (64, 64, 0.50))

#: Factors by which the contracted dimension may be cut to fill the device.
_SPLITS = (1, 2, 4, 8, 16, 32)

#: Shortest contracted length that a split leaves to one tile.
_MIN_SPLIT_K = 256

#: Contracted length at which a tile's prologue and epilogue take as long as its inner loop.
_TILE_OVERHEAD_K = 96


def gemm_time_s(
    device: DeviceSpec,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    precision: Precision,
    batch: ArrayLike = 1,
) -> NDArray[np.float64]:
    """Returns the duration of `batch` products of an `(m, k)` with a `(k, n)` matrix.

    Args:
        device: The device.
        m: Rows of the output, any shape; all sizes broadcast.
        n: Columns of the output.
        k: Contracted length.
        precision: Arithmetic and storage of the operands.
        batch: Independent products in one call.

    Returns:
        Seconds, in the broadcast shape; zero where any size is zero.
    """
    rows, columns, depth, count = np.broadcast_arrays(
        *(np.asarray(size, dtype=np.float64) for size in (m, n, k, batch))
    )
    value_bytes = precision.value_bytes
    unit_rate = device.peak.of(precision) / device.compute_units
    bandwidth = STREAMING_EFFICIENCY * device.memory_bandwidth_bytes_per_s
    operand_bytes = count * value_bytes * (rows * depth + depth * columns)
    output_values = count * rows * columns

    best = np.full(rows.shape, np.inf)
    for tile_rows, tile_columns, efficiency in _TILES:
        tiles = count * np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns)
        for split in _SPLITS:
            depth_per_tile = depth / split
            waves = np.ceil(tiles * split / device.compute_units)
            tile_flops = 2.0 * tile_rows * tile_columns * (depth_per_tile + _TILE_OVERHEAD_K)
            compute_s = waves * tile_flops / (efficiency * unit_rate)
            # A split writes float partial sums and reads them back for the final reduction.
            partial_bytes = 0.0 if split == 1 else 8.0 * split * output_values
            memory_s = (operand_bytes + value_bytes * output_values + partial_bytes) / bandwidth
            seconds = np.maximum(compute_s, memory_s)
            if split > 1:
                seconds = np.where(depth_per_tile >= _MIN_SPLIT_K, seconds, np.inf)
            best = np.minimum(best, seconds)
    empty = (output_values == 0) | (depth == 0)
    return np.where(empty, 0.0, device.kernel_floor_s + best)
