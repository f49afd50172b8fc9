"""Durations of streaming operators: all but GEMM and embedding.

The reference of an operator is its launches plus the longer of its stream and its arithmetic. A
calibration of the operator multiplies the reference; without one, a calibration of `elementwise`
multiplies the stream, evaluated at the operator's bytes; without that, the reference serves alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.machine import Precision
from dse.machine.fits import Estimate
from dse.machine.kernels._calibrated import ratio_by_sizes
from dse.machine.kernels._gemm import gemm_estimate
from dse.machine.kernels._gemm_features import gemm_reference_s
from dse.machine.kernels._memory import HEURISTIC_SPREAD, streaming_s
from dse.machine.kernels._streaming_operators import (
    CROSS_ELEMENTWISE_VALUES,
    STREAMING_OPERATORS,
    StreamingWork,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from dse.machine import DeviceSpec

#: Share of the FP32 rate that arithmetic between loads and stores reaches; an assumption.
_VECTOR_EFFICIENCY = 0.5

#: Standard deviation of the logarithm that is added when another operator's calibration serves;
#: an assumption.
_BORROWED_SPREAD = 0.15

#: Arithmetic of operators whose sizes do not give the bytes of a value.
_DEFAULT_PRECISION = Precision.FP16


def streaming_work(
    op: str, sizes: Mapping[str, ArrayLike], precision: Precision | None = None
) -> StreamingWork:
    """Returns the bytes that an operator moves and its arithmetic.

    Args:
        op: A key of :data:`STREAMING_OPERATORS`.
        sizes: Its sizes by name; they broadcast.
        precision: Decides the bytes of a value where `value_bytes` is not a size of the operator.
    """
    return STREAMING_OPERATORS[op].work(_broadcast(op, sizes, precision))


def streaming_reference_s(
    device: DeviceSpec,
    op: str,
    sizes: Mapping[str, ArrayLike],
    precision: Precision | None = None,
) -> NDArray[np.float64]:
    """Returns the duration that calibrations of an operator are ratios to, without any of them.

    Args:
        device: The device.
        op: A key of :data:`STREAMING_OPERATORS`.
        sizes: Its sizes by name; they broadcast.
        precision: Arithmetic of products; by default by the bytes of a value, FP16 where the
            sizes do not give.

    Returns:
        Seconds in the broadcast shape; zero where nothing is moved.
    """
    full = _broadcast(op, sizes, precision)
    if op == "cross_layer":
        chosen = precision or _DEFAULT_PRECISION
        batch, width, rank = full["batch"], full["width"], full["rank"]
        elementwise = {"traffic_bytes": _cross_elementwise_bytes(full)}
        seconds = (
            gemm_reference_s(device, batch, rank, width, chosen)
            + gemm_reference_s(device, batch, width, rank, chosen)
            + streaming_reference_s(device, "elementwise", elementwise)
        )
        return np.where(batch * width * rank > 0, seconds, 0.0)
    work = STREAMING_OPERATORS[op].work(full)
    busy_s = np.maximum(
        streaming_s(device, work.traffic_bytes), _arithmetic_s(device, op, work, full, precision)
    )
    launches_s = STREAMING_OPERATORS[op].launches * device.kernel_floor_s
    return np.where(work.traffic_bytes > 0, launches_s + busy_s, 0.0)


def streaming_estimate(
    device: DeviceSpec,
    op: str,
    sizes: Mapping[str, ArrayLike],
    precision: Precision | None = None,
) -> Estimate:
    """Returns the duration of an operator.

    Uses the device's calibration of the operator, else that of `elementwise`, else constants.
    Without calibration, more bytes are never faster and more bandwidth is never slower.

    Args:
        device: The device.
        op: A key of :data:`STREAMING_OPERATORS`.
        sizes: Its sizes by name; they broadcast.
        precision: Arithmetic of products; by default by the bytes of a value, FP16 where the
            sizes do not give. Also chooses among calibrations.

    Returns:
        In the broadcast shape; zero seconds where nothing is moved.
    """
    full = _broadcast(op, sizes, precision)
    by_size = "value_bytes" in STREAMING_OPERATORS[op].sizes or op == "elementwise"
    wanted = precision if by_size else precision or _DEFAULT_PRECISION
    calibration = device.calibration(op, wanted)
    # Measured attention with other sizes is evaluated by `attention_estimate`.
    if calibration is not None and all(size.name in full for size in calibration.sizes):
        reference_s = streaming_reference_s(device, op, sizes, precision)
        ratio = ratio_by_sizes(calibration, full)
        return Estimate(reference_s * ratio.factor, ratio.spread)
    if op == "cross_layer":
        return _composed_cross_layer(device, full, precision or _DEFAULT_PRECISION)
    return _uncalibrated(device, op, full, precision)


def _uncalibrated(
    device: DeviceSpec,
    op: str,
    full: Mapping[str, NDArray[np.float64]],
    precision: Precision | None,
) -> Estimate:
    operator = STREAMING_OPERATORS[op]
    work = operator.work(full)
    floor_s = device.kernel_floor_s
    memory_s = floor_s + streaming_s(device, work.traffic_bytes)
    arithmetic_s = floor_s + _arithmetic_s(device, op, work, full, precision)
    spread = np.full(memory_s.shape, HEURISTIC_SPREAD)
    calibration = device.calibration("elementwise")
    if calibration is not None:
        ratio = ratio_by_sizes(calibration, {"traffic_bytes": work.traffic_bytes})
        memory_s = memory_s * ratio.factor
        borrowed = np.hypot(ratio.spread, _BORROWED_SPREAD)
        spread = np.where(memory_s >= arithmetic_s, borrowed, spread)
    seconds = (operator.launches - 1) * floor_s + np.maximum(memory_s, arithmetic_s)
    return Estimate(np.where(work.traffic_bytes > 0, seconds, 0.0), spread)


def _composed_cross_layer(
    device: DeviceSpec, full: Mapping[str, NDArray[np.float64]], precision: Precision
) -> Estimate:
    batch, width, rank = full["batch"], full["width"], full["rank"]
    parts = [
        gemm_estimate(device, batch, rank, width, precision),
        gemm_estimate(device, batch, width, rank, precision),
        streaming_estimate(
            device, "elementwise", {"traffic_bytes": _cross_elementwise_bytes(full)}
        ),
    ]
    time_s = np.sum([part.time_s for part in parts], axis=0)
    # Errors of kernels in one operator go together: their spreads are averaged by time.
    weighted = np.sum([part.time_s * part.spread for part in parts], axis=0)
    spread = np.where(time_s > 0, weighted / np.maximum(time_s, 1e-30), HEURISTIC_SPREAD)
    return Estimate(np.where(batch * width * rank > 0, time_s, 0.0), spread)


def _cross_elementwise_bytes(full: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    values = CROSS_ELEMENTWISE_VALUES * full["batch"] * full["width"]
    return np.asarray(values * full["value_bytes"])


def _arithmetic_s(
    device: DeviceSpec,
    op: str,
    work: StreamingWork,
    full: Mapping[str, NDArray[np.float64]],
    precision: Precision | None,
) -> NDArray[np.float64]:
    share = STREAMING_OPERATORS[op].matrix_efficiency
    if share is None:
        return work.flops / (_VECTOR_EFFICIENCY * device.peak.fp32_flops_per_s)
    if precision is not None:
        return work.flops / (share * device.peak.of(precision))
    narrow, wide = device.peak.of(Precision.FP16), device.peak.of(Precision.FP32)
    return work.flops / (share * np.where(full["value_bytes"] <= 2, narrow, wide))


def _broadcast(
    op: str, sizes: Mapping[str, ArrayLike], precision: Precision | None
) -> dict[str, NDArray[np.float64]]:
    names = STREAMING_OPERATORS[op].sizes
    arrays = np.broadcast_arrays(*(np.asarray(sizes[name], np.float64) for name in names))
    full = dict(zip(names, arrays, strict=True))
    value_bytes = (precision or _DEFAULT_PRECISION).value_bytes
    full.setdefault("value_bytes", np.full(arrays[0].shape, float(value_bytes)))
    return full
