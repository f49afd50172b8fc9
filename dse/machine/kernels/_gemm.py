"""Matrix multiplication: learned where it was measured, else a roofline with tiles and waves.

The analytical model imitates the library's kernel choice: of several tile shapes and splits of the
contracted dimension, the fastest under the model is taken. That reproduces the two effects that a
plain roofline misses, quantisation into waves of tiles and the starved device of a small product.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.fits import Estimate
from dse.machine.kernels._gemm_features import (
    GEMM_FEATURES,
    MIN_SPLIT_K,
    TILE_OVERHEAD_K,
    gemm_features,
    gemm_reference_s,
    gemm_splits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike, NDArray

    from dse.machine import DeviceSpec, Precision
    from dse.machine.fits import KernelCalibration

#: Tile shapes (rows, columns) with the share of the unit's peak that their inner loop reaches.
_TILES = ((256, 128, 0.80), (128, 256, 0.80), (128, 128, 0.75), (128, 64, 0.62), (64, 64, 0.50))

#: The same without tensor cores. Assumptions after published SGEMM figures: large products reach
#: at least 0.88 of the 15.7 TFLOP/s of a V100, and smaller tiles load more for each operation.
#: Where a device states the share that its large products reach, all tiles are that much slower.
_SIMT_TILES = (
    (128, 128, 0.92),
    (128, 64, 0.88),
    (64, 128, 0.88),
    (64, 64, 0.82),
    (32, 32, 0.60),
)

#: The same without tensor cores: prologue and epilogue take as long, but arithmetic is about an
#: eighth as fast (15.7 against 125 TFLOP/s on a V100), so they are worth fewer steps.
_SIMT_TILE_OVERHEAD_K = 12

#: Share of the peak bandwidth at which operands are moved.
_OPERAND_EFFICIENCY = 0.85

#: Standard deviation of the logarithm of measured over modelled time: the analytical model misses
#: the measured tables of three devices by 13-16 % on average. It is a model of GPUs: on a CPU it
#: is wrong by a factor of two to three.
_ANALYTICAL_SPREAD = {"gpu": 0.2, "cpu": 1.0}


def gemm_estimate(
    device: DeviceSpec,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    precision: Precision,
    batch: ArrayLike = 1,
    *,
    implementation: str = "",
    sustained: float = 1.0,
) -> Estimate:
    """Returns the duration of `batch` products of an `(m, k)` with a `(k, n)` matrix.

    Single products use the device's calibration where it has one for the precision; batched ones
    were not measured and are always analytical. A device that sustains less than its peak takes
    longer for arithmetic, not for moving bytes or for launching.

    Args:
        device: The device.
        m: Rows of the output, any shape; all sizes broadcast.
        n: Columns of the output.
        k: Contracted length.
        precision: Arithmetic and storage of the operands.
        batch: Independent products in one call.
        implementation: Library whose kernels were measured; empty for the platform's first.
        sustained: Rate that the device keeps up over that of short measurements.

    Returns:
        In the broadcast shape; zero seconds where any size is zero.
    """
    sizes = tuple(np.asarray(size, dtype=np.float64) for size in (m, n, k, batch))
    rows, columns, depth, count = np.broadcast_arrays(*sizes)
    time_s = _analytical_s(device, rows, columns, depth, precision, count, sustained)
    spread = np.full(time_s.shape, _ANALYTICAL_SPREAD[device.kind])
    calibration = device.calibration("gemm", precision, implementation)
    learned = (count == 1) & (rows * columns * depth > 0)
    if calibration is not None and learned.any():
        shape = {"m": rows[learned], "n": columns[learned], "k": depth[learned]}
        ratio = calibration.ratio(shape, gemm_curve_features(calibration, device, precision))
        reference_s = gemm_reference_s(
            device, shape["m"], shape["n"], shape["k"], precision, sustained
        )
        time_s[learned] = reference_s * ratio.factor
        spread[learned] = ratio.spread
    return Estimate(time_s, spread)


def gemm_curve_features(
    calibration: KernelCalibration, device: DeviceSpec, precision: Precision
) -> Callable[[Mapping[str, NDArray[np.float64]]], NDArray[np.float64]] | None:
    """Returns how a GEMM calibration turns sizes into features; None for their logarithms."""
    if calibration.curve.feature_names == GEMM_FEATURES:
        return partial(gemm_features, device, precision)
    return None


def _analytical_s(
    device: DeviceSpec,
    rows: NDArray[np.float64],
    columns: NDArray[np.float64],
    depth: NDArray[np.float64],
    precision: Precision,
    count: NDArray[np.float64],
    sustained: float,
) -> NDArray[np.float64]:
    value_bytes = precision.value_bytes
    unit_rate = sustained * device.peak.of(precision) / device.compute_units
    bandwidth = _OPERAND_EFFICIENCY * device.memory_bandwidth_bytes_per_s
    operand_bytes = count * precision.operand_bytes * (rows * depth + depth * columns)
    output_values = count * rows * columns

    # A precision without tensor cores runs at the rate of ordinary FP32 arithmetic.
    simt = device.peak.of(precision) == device.peak.fp32_flops_per_s
    overhead_depth = _SIMT_TILE_OVERHEAD_K if simt else TILE_OVERHEAD_K
    if simt and device.fp32_products_share is not None:
        unit_rate *= device.fp32_products_share / _SIMT_TILES[0][2]

    best = np.full(rows.shape, np.inf)
    for tile_rows, tile_columns, efficiency in _SIMT_TILES if simt else _TILES:
        tiles = count * np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns)
        for split in gemm_splits(precision):
            depth_per_tile = depth / split
            waves = np.ceil(tiles * split / device.compute_units)
            tile_flops = 2.0 * tile_rows * tile_columns * (depth_per_tile + overhead_depth)
            compute_s = waves * tile_flops / (efficiency * unit_rate)
            # A split writes float partial sums and reads them back for the final reduction.
            partial_bytes = 0.0 if split == 1 else 8.0 * split * output_values
            memory_s = (operand_bytes + value_bytes * output_values + partial_bytes) / bandwidth
            seconds = np.maximum(compute_s, memory_s)
            if split > 1:
                seconds = np.where(depth_per_tile >= MIN_SPLIT_K, seconds, np.inf)
            best = np.minimum(best, seconds)
    empty = (output_values == 0) | (depth == 0)
    return np.where(empty, 0.0, device.kernel_floor_s + best)
