"""Fused attention: learned where a library's kernel was measured, else published rates.

A fused kernel keeps the scores on the chip. Its time is that of a few physical terms: products and
exponentials of the scores that the mask leaves, in tiles that quantise into waves over the compute
units, the bytes of queries, keys and outputs, and what each launch, tile and sequence costs. A
calibration weighs the terms; the weights mean something on another device.

The tables that shipped calibrations were fitted on are of inference engines: they are forward, and
keys and values are written to a cache as well, which training does not do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.machine import Precision
from dse.machine.fits import Estimate
from dse.machine.kernels._streaming import streaming_estimate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from dse.machine import DeviceSpec
    from dse.machine.fits import KernelCalibration

    Sizes = Mapping[str, NDArray[np.float64]]

#: Sizes of an attention; `kv_heads` are as many as `heads` where they are not given.
ATTENTION_SIZES = ("batch", "heads", "kv_heads", "queries", "keys", "dim")

#: Optional sizes: columns of a head's values (by default those of its queries and keys), and the
#: most keys up to its own position that a query sees.
ATTENTION_OPTIONS = ("value_dim", "window")

#: Logarithms of the terms of a measured kernel over the reference.
ATTENTION_TERMS = (
    "log_products",
    "log_exponentials",
    "log_longest_tile",
    "log_query_bytes",
    "log_key_bytes",
    "log_launch",
    "log_tiles",
    "log_sequences",
)

#: Queries of one tile of the measured kernels.
_TILE = 64

#: Exponentials of one compute unit in a second: 16 in a clock of about 1.75 GHz, on every
#: generation from Ampere to Blackwell, while products have become faster.
_UNIT_EXPONENTIALS_PER_S = 16 * 1.75e9

#: Positions that are one block of a causal mask; blocks on the diagonal are computed in full (Dao,
#: arXiv 2307.08691, § 3).
_BLOCK = 128

#: Rate of the backward pass over that of the forward pass of measured kernels, which were measured
#: forward only: 561 of 648 TFLOP/s with heads of 128 and 16,384 positions on an H100 (Shah et al.,
#: FlashAttention-3, arXiv 2407.08608, figures 5 and 6).
_BACKWARD_RATE = 0.87

#: Standard deviation of the logarithm of actual over expected time, all assumed: of published
#: rates on the device that they were published for (A100), for each e-fold of arithmetic per unit
#: away from it, and what the backward pass adds to a measured forward pass.
_PUBLISHED_SPREAD = 0.08
_SPREAD_PER_EFOLD = 0.20
_BACKWARD_SPREAD = 0.10


class FlashRate(NamedTuple):
    """What an implementation of fused attention reaches by published figures.

    Attributes:
        forward: Share of the matrix rate with wide heads, forward.
        backward: The same backward.
        half_width: Head width that halves it: exponentials are worth as many products.
        newer: Share of the matrix rate that instructions of the generation before reach on
            devices of compute capability 9.0 and above, for which it was not written.
    """

    forward: float
    backward: float
    half_width: float
    newer: float = 1.0


#: FlashAttention-2 after the figures of its paper (arXiv 2307.08691), where heads of 64 reach 0.85
#: of heads of 128. The Triton kernel's forward share is fitted on published training steps
#: (docs/transformers.md), its backward pass has three quarters of that rate as in those figures,
#: and the width of heads makes no difference. On newer devices: FlashAttention-2 reaches about 335
#: TFLOP/s on an H100 against 225 on an A100 (the same paper), whose peaks are 989 and 312; the
#: share of Triton's kernel is fitted on published steps on H100.
FLASH_RATES = {
    "flash_attention_2": FlashRate(0.75, 0.62, 27.0, 0.47),
    "triton": FlashRate(0.385, 0.29, 0.0, 0.56),
}

#: Matrix rate of one unit of the device that they were written for.
PUBLISHED_UNIT_RATE = 312e12 / 108


def attention_estimate(
    device: DeviceSpec,
    sizes: Mapping[str, ArrayLike],
    precision: Precision | None = None,
    *,
    implementation: str = "",
    causal: bool = False,
    backward: bool = False,
) -> Estimate:
    """Returns the duration of fused attention over a batch of sequences.

    A calibration of the named library serves where the device has one, else its published rates;
    on devices newer than those, no library is faster by them than the one that was measured there.
    Without a name the device's first calibration serves, else the roofline of a stream with
    products.

    Args:
        device: The device.
        sizes: `batch`, `heads`, `queries`, `keys`, `dim` (columns of a head) and optionally
            `kv_heads`, `value_dim` and, with a causal mask, `window`; they broadcast.
        precision: Arithmetic; half precision by default.
        implementation: Library; a key of :data:`FLASH_RATES`, or as calibrations name it.
        causal: A query sees the keys up to its own position; fewer queries than keys are spread
            evenly over the sequence, as context parallelism does.
        backward: The gradients, with the scores computed again, instead of the outputs.

    Returns:
        In the broadcast shape; zero seconds where any size is zero.
    """
    full = _broadcast(sizes)
    chosen = precision or Precision.FP16
    calibration = device.calibration("attention", chosen, implementation)
    if calibration is not None and calibration.curve.feature_names == ATTENTION_TERMS:
        estimate = _measured(device, full, chosen, calibration, causal=causal, backward=backward)
    elif calibration is None and implementation in FLASH_RATES:
        estimate = _published(
            device, full, chosen, FLASH_RATES[implementation], causal=causal, backward=backward
        )
    else:
        estimate = streaming_estimate(device, "attention", full, precision)
        work = _visible_keys(full, _BLOCK, causal=causal) / np.maximum(full["keys"], 1.0)
        work = work * _columns(full, backward=backward) / np.maximum(2.0 * full["dim"], 1.0)
        estimate = Estimate(estimate.time_s * work, estimate.spread)
    some = np.prod([full[name] for name in ATTENTION_SIZES], axis=0) > 0
    return Estimate(np.where(some, estimate.time_s, 0.0), estimate.spread)


def attention_features(
    device: DeviceSpec, sizes: Mapping[str, ArrayLike], precision: Precision, *, causal: bool
) -> NDArray[np.float64]:
    """Returns the logarithms of the terms of forward attention over the reference.

    Args:
        device: The device.
        sizes: As for :func:`attention_estimate`; shape `(points,)`.
        precision: Arithmetic.
        causal: Whether a query sees only the keys up to its own position.

    Returns:
        Shape `(points, len(ATTENTION_TERMS))`.
    """
    full = _broadcast(sizes)
    units, rate = device.compute_units, device.peak.of(precision)
    heads = full["batch"] * full["heads"]
    tiles_of_head = np.ceil(full["queries"] / _TILE)
    tiles = heads * tiles_of_head
    seen = _visible_keys(full, _TILE, causal=causal)
    # The units share all tiles, but none is done before its longest one.
    keys = np.minimum(full["keys"], full["window"] + _TILE) if causal else full["keys"]
    longest = _TILE * np.ceil(keys / _TILE) * _TILE
    scores = np.maximum(tiles * _TILE * seen / units, longest)
    columns = _columns(full, backward=False)
    score_s = 2.0 * units / rate
    value_s = precision.value_bytes / device.memory_bandwidth_bytes_per_s
    key_values = full["batch"] * full["kv_heads"] * full["keys"] * columns
    floor_s = device.kernel_floor_s
    terms = (
        score_s * scores * columns,
        scores / _UNIT_EXPONENTIALS_PER_S,
        score_s * longest * columns,
        value_s * heads * full["queries"] * columns,
        value_s * key_values,
        np.full(heads.shape, floor_s),
        floor_s * np.maximum(tiles / units, 1.0),
        floor_s * full["batch"],
    )
    reference_s = attention_reference_s(device, full, precision, causal=causal)
    return np.log(np.column_stack(terms) / reference_s[:, None])


def attention_reference_s(
    device: DeviceSpec, sizes: Mapping[str, ArrayLike], precision: Precision, *, causal: bool
) -> NDArray[np.float64]:
    """Returns the launch floor plus the roofline time of forward attention, in seconds.

    Args:
        device: The device.
        sizes: As for :func:`attention_estimate`.
        precision: Arithmetic.
        causal: Whether a query sees only the keys up to its own position.
    """
    full = _broadcast(sizes)
    moved = full["batch"] * _columns(full, backward=False) * precision.value_bytes
    moved = moved * (full["heads"] * full["queries"] + full["kv_heads"] * full["keys"])
    busy_s = np.maximum(
        _flops(full, causal=causal, backward=False) / device.peak.of(precision),
        moved / device.memory_bandwidth_bytes_per_s,
    )
    return device.kernel_floor_s + busy_s


def _measured(
    device: DeviceSpec,
    full: Sizes,
    precision: Precision,
    calibration: KernelCalibration,
    *,
    causal: bool,
    backward: bool,
) -> Estimate:
    shape = full["batch"].shape
    flat = {name: np.maximum(size, 1.0).ravel() for name, size in full.items()}
    # The terms are physics and need no measured range; beyond it only the spread grows.
    features = attention_features(device, flat, precision, causal=causal)
    ratio = calibration.ratio(flat, lambda _: features)
    time_s = attention_reference_s(device, flat, precision, causal=causal) * ratio.factor
    spread = ratio.spread
    if backward:
        products = _columns(flat, backward=True) / _columns(flat, backward=False)
        time_s = time_s * (products / _BACKWARD_RATE)
        spread = np.hypot(spread, _BACKWARD_SPREAD)
    return Estimate(time_s.reshape(shape), spread.reshape(shape))


def _published(
    device: DeviceSpec,
    full: Sizes,
    precision: Precision,
    rates: FlashRate,
    *,
    causal: bool,
    backward: bool,
) -> Estimate:
    flops = _flops(full, causal=causal, backward=backward)
    share = rates.backward if backward else rates.forward
    unit_rate = device.peak.of(precision) / device.compute_units
    # Beyond the device that they were written for, a unit gains only by newer instructions.
    reached = max(min(unit_rate, PUBLISHED_UNIT_RATE), rates.newer * unit_rate)
    dim = 0.5 * _columns(full, backward=False)
    rate = device.compute_units * reached * share / (1.0 + rates.half_width / np.maximum(dim, 1.0))
    time_s = device.kernel_floor_s + flops / rate
    newer = unit_rate > PUBLISHED_UNIT_RATE
    native = device.calibration("attention", precision) if newer else None
    if native is not None and native.curve.feature_names == ATTENTION_TERMS:
        # What was measured there was written for it.
        best = _measured(device, full, precision, native, causal=causal, backward=backward)
        time_s = np.maximum(time_s, best.time_s)
    efolds = math.log(unit_rate / PUBLISHED_UNIT_RATE)
    spread = math.hypot(_PUBLISHED_SPREAD, _SPREAD_PER_EFOLD * efolds)
    return Estimate(time_s, np.full(time_s.shape, spread))


def _flops(full: Sizes, *, causal: bool, backward: bool) -> NDArray[np.float64]:
    """Products over the scores that the mask leaves, in blocks."""
    seen = _visible_keys(full, _BLOCK, causal=causal)
    scores = full["batch"] * full["heads"] * full["queries"] * seen
    return 2.0 * scores * _columns(full, backward=backward)


def _columns(full: Sizes, *, backward: bool) -> NDArray[np.float64]:
    """Returns the columns of all products together.

    Forward two, of keys and of values; backward five (Dao, § 2.2): the scores are computed again,
    queries and keys have a gradient each, and so do probabilities and values.
    """
    if backward:
        return 3.0 * full["dim"] + 2.0 * full["value_dim"]
    return full["dim"] + full["value_dim"]


def _visible_keys(full: Sizes, block: int, *, causal: bool) -> NDArray[np.float64]:
    """Returns the keys that a query works on, on average."""
    keys = full["keys"]
    if not causal:
        return keys
    # A window starts and ends within a block; the first queries see less than the window.
    window = np.minimum(full["window"], keys)
    windowed = window * (1.0 - 0.5 * window / np.maximum(keys, 1.0)) + block
    return np.minimum(0.5 * (keys + np.minimum(block, keys)), windowed)


def _broadcast(sizes: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.float64]]:
    defaults = {"kv_heads": "heads", "value_dim": "dim", "window": "keys"}
    given = {**{name: sizes[other] for name, other in defaults.items()}, **sizes}
    names = (*ATTENTION_SIZES, *ATTENTION_OPTIONS)
    arrays = np.broadcast_arrays(*(np.asarray(given[name], float) for name in names))
    return dict(zip(names, arrays, strict=True))
