"""Features of learned GEMM: the roofline, waves of tiles, and the cache.

All features are logarithms or ratios of the shape to the device, so that a model learned on one
device means something on another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.machine import Precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dse.machine import DeviceSpec

#: Output tiles (rows, columns) that libraries choose from.
_TILES = (
    (256, 128),
    (128, 256),
    (128, 128),
    (128, 64),
    (64, 128),
    (64, 64),
    (64, 256),
    (256, 64),
    (32, 64),
    (16, 64),
    (32, 128),
)

#: Factors by which the contracted dimension may be cut to fill the device.
_SPLITS = (1, 2, 4, 8, 16, 32)

#: Shortest contracted length that a split leaves to one tile.
MIN_SPLIT_K = 256

#: Contracted length at which a tile's prologue and epilogue take as long as its inner loop.
TILE_OVERHEAD_K = 96

#: Name of the feature that already explains most: the tile model's time over the reference.
GEMM_OFFSET_FEATURE = "log_tiled_over_reference"

GEMM_FEATURES = (
    "log_m",
    "log_n",
    "log_k",
    "log_flops",
    "log_arithmetic_over_memory",
    "log_reference",
    "m_mod_16",
    "m_mod_64",
    "m_mod_128",
    "n_mod_128",
    "n_mod_256",
    *(
        f"{feature}_{rows}x{columns}"
        for rows, columns in _TILES
        for feature in ("wave_fill", "log_waves", "tile_fill", "log_tiled")
    ),
    "log_left_over_cache",
    "log_right_over_cache",
    "log_output_over_cache",
    GEMM_OFFSET_FEATURE,
)


def gemm_splits(precision: Precision) -> tuple[int, ...]:
    """Returns the factors by which kernels of a precision may cut the contracted dimension.

    Kernels for block scales, DeepGEMM and those of vLLM and SGLang alike, never do: a product with
    one tile of output and a contracted length of 65,536 takes as long as that one tile.
    """
    return (1,) if precision is Precision.FP8_BLOCK else _SPLITS


def gemm_reference_s(
    device: DeviceSpec,
    m: NDArray[np.float64],
    n: NDArray[np.float64],
    k: NDArray[np.float64],
    precision: Precision,
    sustained: float = 1.0,
) -> NDArray[np.float64]:
    """Returns the launch floor plus the roofline time of products, in seconds.

    Args:
        device: The device.
        m: Rows of the output.
        n: Columns of the output.
        k: Contracted length.
        precision: Arithmetic and storage of the operands.
        sustained: Rate that the device keeps up over that of short measurements.
    """
    arithmetic_s, memory_s = _roofline(device, m, n, k, precision)
    return device.kernel_floor_s + np.maximum(arithmetic_s / sustained, memory_s)


def gemm_features(
    device: DeviceSpec, precision: Precision, sizes: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Returns the features of products.

    Args:
        device: The device.
        precision: Arithmetic and storage of the operands.
        sizes: `m`, `n` and `k`; shape `(points,)` each.

    Returns:
        Shape `(points, len(GEMM_FEATURES))`.
    """
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    units = device.compute_units
    arithmetic_s, memory_s = _roofline(device, m, n, k, precision)
    reference_s = gemm_reference_s(device, m, n, k, precision)
    unit_rate = device.peak.of(precision) / units
    columns = [
        np.log(m),
        np.log(n),
        np.log(k),
        np.log(2.0 * m * n * k),
        np.log(arithmetic_s / memory_s),
        np.log(reference_s),
        m % 16,
        m % 64,
        m % 128,
        n % 128,
        n % 256,
    ]
    partial_s = 8.0 * m * n / device.memory_bandwidth_bytes_per_s
    best_s = np.full(m.shape, np.inf)
    for tile_rows, tile_columns in _TILES:
        down, across = np.ceil(m / tile_rows), np.ceil(n / tile_columns)
        tiles = down * across
        waves = tiles / units
        tiled_s = np.full(m.shape, np.inf)
        for split in gemm_splits(precision):
            depth = k / split
            rounds = np.ceil(tiles * split / units)
            busy_s = rounds * 2 * tile_rows * tile_columns * (depth + TILE_OVERHEAD_K) / unit_rate
            # A split writes float partial sums and reads them back.
            traffic_s = memory_s if split == 1 else memory_s + split * partial_s
            seconds = np.maximum(busy_s, traffic_s)
            if split > 1:
                seconds = np.where(depth >= MIN_SPLIT_K, seconds, np.inf)
            tiled_s = np.minimum(tiled_s, seconds)
        columns += [
            waves / np.ceil(waves),
            np.log(np.ceil(waves)),
            m * n / (down * tile_rows * across * tile_columns),
            np.log((device.kernel_floor_s + tiled_s) / reference_s),
        ]
        best_s = np.minimum(best_s, tiled_s)
    operand_bytes = precision.operand_bytes
    columns += [
        np.log(operand_bytes * m * k / device.l2_bytes),
        np.log(operand_bytes * k * n / device.l2_bytes),
        np.log(precision.value_bytes * m * n / device.l2_bytes),
        np.log((device.kernel_floor_s + best_s) / reference_s),
    ]
    return np.column_stack(columns)


def _roofline(
    device: DeviceSpec,
    m: NDArray[np.float64],
    n: NDArray[np.float64],
    k: NDArray[np.float64],
    precision: Precision,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    arithmetic_s = 2.0 * m * n * k / device.peak.of(precision)
    traffic_bytes = precision.operand_bytes * (m * k + k * n) + precision.value_bytes * m * n
    return arithmetic_s, traffic_bytes / device.memory_bandwidth_bytes_per_s
