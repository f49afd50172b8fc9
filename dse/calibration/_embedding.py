"""Fitting embedding lookup and update: a learned factor on the bytes that a shard moves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.calibration._smooth import SmoothPoints, fit_smooth
from dse.calibration.measurements import check_units
from dse.indices import Uniform, Zipf
from dse.machine.kernels import (
    EMBEDDING_SIZES,
    LOOKUP_LAUNCHES,
    UPDATE_LAUNCHES,
    EmbeddingShape,
    embedding_sizes,
    embedding_time_s,
    embedding_work,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.calibration._origin import FitOrigin
    from dse.calibration.measurements import EmbeddingSamples
    from dse.indices import IndexDistribution
    from dse.machine import DeviceSpec
    from dse.machine.fits import KernelCalibration


def fit_embedding(
    device: DeviceSpec,
    samples: EmbeddingSamples,
    origin: FitOrigin,
    held_out: NDArray[np.bool_] | None = None,
) -> tuple[KernelCalibration, ...]:
    """Fits lookups and updates, each direction that was measured.

    Args:
        device: The device that was measured; its calibrations are ignored.
        samples: Measurements of single tables.
        origin: Where they come from.
        held_out: Points for checking only; shape `(points,)`. If omitted, a quarter is held out.

    Raises:
        CalibrationError: Too few points, or times that cannot be seconds.
    """
    checked = np.zeros(len(samples), dtype=bool) if held_out is None else held_out
    bare = replace(device, calibrations=())
    return tuple(
        _fit_direction(bare, samples.select(chosen), str(direction), origin, checked[chosen])
        for direction in np.unique(samples.op)
        for chosen in (samples.op == direction,)
    )


def _fit_direction(
    device: DeviceSpec,
    samples: EmbeddingSamples,
    direction: str,
    origin: FitOrigin,
    held_out: NDArray[np.bool_],
) -> KernelCalibration:
    backward = direction == "backward"
    sizes = {name: np.empty(len(samples)) for name in EMBEDDING_SIZES}
    busy_s = np.empty(len(samples))
    for index in range(len(samples)):
        shape = EmbeddingShape(
            rows=int(samples.rows[index]),
            dim=int(samples.dim[index]),
            value_bytes=int(samples.value_bytes[index]),
            bags=float(samples.batch[index]),
            lookups=float(samples.batch[index] * samples.pooling[index]),
            output_value_bytes=4,
            state_bytes_per_row=0.0,
        )
        indices = _indices(float(samples.alpha[index]))
        unique_rows = min(
            indices.expected_unique_rows(shape.rows, shape.lookups), shape.lookups, shape.rows
        )
        for name, value in embedding_sizes(shape, unique_rows).items():
            sizes[name][index] = value
        work = embedding_work(device, shape, indices)
        memory = work.backward_memory_bytes if backward else work.forward_memory_bytes
        cache = work.backward_cache_bytes if backward else work.forward_cache_bytes
        busy_s[index] = embedding_time_s(device, memory, cache, launches=0)
    launches = UPDATE_LAUNCHES if backward else LOOKUP_LAUNCHES
    fixed_s = launches * device.kernel_floor_s
    check_units(samples, fixed_s + busy_s, fast_share=None)
    points = SmoothPoints(sizes, samples.time_s, busy_s, fixed_s, held_out)
    return fit_smooth(f"embedding_{direction}", (), points, origin)


def _indices(alpha: float) -> IndexDistribution:
    return Zipf(alpha) if alpha > 0 else Uniform()
