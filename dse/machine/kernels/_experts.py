"""Experts of a mixture: their grouped products, and the exchange of the tokens that visit them.

One kernel multiplies the rows of each expert by that expert's matrix, in whole tiles. Measurements
are of a block of experts as inference engines run it: rows are sorted, multiplied twice with the
activation between, and summed back into tokens. Its time is a sum of a few physical terms, and the
weight of the products says how much longer they take than one product with as many rows. Training
uses that weight only, because it moves rows in separate kernels.

An exchange sends each token once to every rank that has one of its experts (DeepEP, HybridEP).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.fits import Estimate
from dse.machine.kernels._gemm import gemm_estimate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from dse.machine import DeviceSpec, Precision
    from dse.machine.fits import KernelCalibration

    Sizes = Mapping[str, NDArray[np.float64]]

#: Sizes of a block of gated experts: tokens with a row on the device, their rows, experts of the
#: device, and columns outside and inside an expert.
EXPERT_SIZES = ("tokens", "rows", "experts", "hidden", "inner")

#: Logarithms of the terms of a measured block over the reference.
EXPERT_TERMS = ("log_products", "log_moved_rows", "log_launch")

#: Sizes of an exchange: tokens of a rank, their columns, and the ranks that a token is sent to.
EXCHANGE_SIZES = ("tokens", "hidden", "copies")

#: Logarithms of the terms of a measured exchange over the reference.
EXCHANGE_TERMS = ("log_copies", "log_launch")

#: Rows of a tile, to which those of each expert are filled up.
TILE_ROWS = 128

#: Time of grouped products over one product with as many rows, and its spread, where nothing was
#: measured: between what the tables of an H100 and a B200 say.
_UNMEASURED_RATIO = 1.1
_UNMEASURED_SPREAD = 0.15


def grouped_gemm_estimate(
    device: DeviceSpec,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    experts: ArrayLike,
    precision: Precision,
    *,
    sustained: float = 1.0,
) -> Estimate:
    """Returns the duration of products of each expert's rows with its own matrix.

    What was measured in half precision holds in others as a ratio to one product in them.

    Args:
        device: The device.
        m: Rows of all experts together; all sizes broadcast.
        n: Columns of an expert's matrix.
        k: Its rows, the contracted length.
        experts: Experts with as many rows each.
        precision: Arithmetic.
        sustained: Rate that the device keeps up over that of short measurements.

    Returns:
        In the broadcast shape; zero seconds where any size is zero.
    """
    rows, columns, depth, count = np.broadcast_arrays(
        *(np.asarray(size, dtype=np.float64) for size in (m, n, k, experts))
    )
    ratio, spread = _UNMEASURED_RATIO, _UNMEASURED_SPREAD
    calibration = device.calibration("experts")
    if calibration is not None and calibration.curve.feature_names == EXPERT_TERMS:
        ratio, spread = _weight(calibration, EXPERT_TERMS[0]), calibration.spread
    alone = _one_product(device, rows, columns, depth, count, precision, sustained)
    return Estimate(ratio * alone.time_s, np.hypot(alone.spread, spread))


def expert_features(
    device: DeviceSpec, sizes: Mapping[str, ArrayLike], precision: Precision
) -> NDArray[np.float64]:
    """Returns the logarithms of the terms of a block of experts over the reference.

    Args:
        device: The device.
        sizes: One value each for :data:`EXPERT_SIZES`; shape `(points,)`.
        precision: Arithmetic.

    Returns:
        Shape `(points, len(EXPERT_TERMS))`.
    """
    full = _broadcast(sizes, EXPERT_SIZES)
    value_s = precision.value_bytes / device.memory_bandwidth_bytes_per_s
    # Rows are gathered from tokens and summed back into them; the activation reads two and writes
    # one.
    columns = 2.0 * (full["tokens"] + full["rows"]) * full["hidden"]
    columns = columns + 3.0 * full["rows"] * full["inner"]
    terms = (
        _products_s(device, full, precision),
        value_s * columns,
        np.full(columns.shape, device.kernel_floor_s),
    )
    return _over(terms, expert_reference_s(device, full, precision))


def expert_reference_s(
    device: DeviceSpec, sizes: Mapping[str, ArrayLike], precision: Precision
) -> NDArray[np.float64]:
    """Returns the launch floor plus the time of both products as if of one expert, in seconds.

    Args:
        device: The device.
        sizes: As for :func:`expert_features`.
        precision: Arithmetic.
    """
    full = _broadcast(sizes, EXPERT_SIZES)
    return device.kernel_floor_s + _products_s(device, full, precision)


def experts_estimate(
    device: DeviceSpec, sizes: Mapping[str, ArrayLike], precision: Precision
) -> Estimate:
    """Returns the duration of a block of gated experts as an inference engine runs it.

    Args:
        device: The device.
        sizes: One value each for :data:`EXPERT_SIZES`; they broadcast.
        precision: Arithmetic.

    Returns:
        In the broadcast shape; zero seconds where any size is zero.
    """
    full = _broadcast(sizes, EXPERT_SIZES)
    shape = full["rows"].shape
    flat = {name: np.maximum(size, 1.0).ravel() for name, size in full.items()}
    features = expert_features(device, flat, precision)
    reference_s = expert_reference_s(device, flat, precision)
    calibration = device.calibration("experts", precision)
    if calibration is not None and calibration.curve.feature_names == EXPERT_TERMS:
        ratio = calibration.ratio(flat, lambda _: features)
        time_s, spread = reference_s * ratio.factor, ratio.spread
    else:
        time_s = reference_s * np.exp(features).sum(axis=1)
        spread = np.full(time_s.shape, 2 * _UNMEASURED_SPREAD)
    some = np.prod([full[name] for name in EXPERT_SIZES], axis=0) > 0
    return Estimate(np.where(some, time_s.reshape(shape), 0.0), spread.reshape(shape))


def exchange_features(device: DeviceSpec, sizes: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
    """Returns the logarithms of the terms of an exchange of tokens over the reference.

    Args:
        device: The device.
        sizes: One value each for :data:`EXCHANGE_SIZES`; shape `(points,)`. Two bytes a value.

    Returns:
        Shape `(points, len(EXCHANGE_TERMS))`.
    """
    full = _broadcast(sizes, EXCHANGE_SIZES)
    copies_s = _copies_s(device, full)
    floor_s = np.full(copies_s.shape, device.kernel_floor_s)
    return _over((copies_s, floor_s), exchange_reference_s(device, full))


def exchange_reference_s(
    device: DeviceSpec, sizes: Mapping[str, ArrayLike]
) -> NDArray[np.float64]:
    """Returns the launch floor plus the time in which memory moves all copies, in seconds.

    Args:
        device: The device.
        sizes: As for :func:`exchange_features`.
    """
    return device.kernel_floor_s + _copies_s(device, _broadcast(sizes, EXCHANGE_SIZES))


def exchange_estimate(device: DeviceSpec, sizes: Mapping[str, ArrayLike]) -> Estimate | None:
    """Returns the duration of an exchange inside one domain; None where none was measured.

    Args:
        device: The device.
        sizes: One value each for :data:`EXCHANGE_SIZES`; they broadcast. Two bytes a value.
    """
    calibration = device.calibration("expert_exchange")
    if calibration is None or calibration.curve.feature_names != EXCHANGE_TERMS:
        return None
    full = _broadcast(sizes, EXCHANGE_SIZES)
    flat = {name: np.maximum(size, 1.0).ravel() for name, size in full.items()}
    features = exchange_features(device, flat)
    ratio = calibration.ratio(flat, lambda _: features)
    time_s = exchange_reference_s(device, flat) * ratio.factor
    shape = full["tokens"].shape
    return Estimate(time_s.reshape(shape), ratio.spread.reshape(shape))


def places_visited(
    experts: int, choices: int, places: int, *, groups: int = 1, active_groups: int = 1
) -> float:
    """Returns how many places a token visits whose experts are chosen evenly.

    Args:
        experts: Experts, as many in each place.
        choices: Different experts that the token visits.
        places: Ranks or nodes.
        groups: Groups of neighbouring experts.
        active_groups: Groups that the token's experts are in, which are chosen evenly, too
            (node-limited routing of DeepSeek-V3: arXiv 2412.19437, § 2.1.2).
    """
    of_group, of_place = experts // groups, experts // places
    pool = active_groups * of_group
    chosen = min(choices, pool)

    def visited(candidates: int) -> float:
        """Returns the probability of a place with some of the experts to choose from."""
        return 1.0 - math.comb(pool - candidates, chosen) / math.comb(pool, chosen)

    if places >= groups:
        return places * active_groups / groups * visited(of_place)
    held = groups // places
    ways = math.comb(groups, active_groups)
    return places * sum(
        math.comb(held, some)
        * math.comb(groups - held, active_groups - some)
        / ways
        * visited(some * of_group)
        for some in range(1, min(held, active_groups) + 1)
    )


def _copies_s(device: DeviceSpec, full: Sizes) -> NDArray[np.float64]:
    """Each token is read once, and written once for each rank that needs it."""
    moved = 2.0 * full["tokens"] * full["hidden"] * (1.0 + full["copies"])
    return np.asarray(moved / device.memory_bandwidth_bytes_per_s)


def _over(
    terms: tuple[NDArray[np.float64], ...], reference_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the logarithms of terms over the reference; minus infinity where one is zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.column_stack(terms) / reference_s[:, None]))


def _products_s(device: DeviceSpec, full: Sizes, precision: Precision) -> NDArray[np.float64]:
    """Both products as if of one expert: gate and columns together, then back."""
    rows, count = full["rows"], full["experts"]
    first = _one_product(device, rows, 2 * full["inner"], full["hidden"], count, precision)
    second = _one_product(device, rows, full["hidden"], full["inner"], count, precision)
    return np.asarray(first.time_s + second.time_s)


def _one_product(
    device: DeviceSpec,
    rows: NDArray[np.float64],
    columns: NDArray[np.float64],
    depth: NDArray[np.float64],
    experts: NDArray[np.float64],
    precision: Precision,
    sustained: float = 1.0,
) -> Estimate:
    """One product with the rows of all experts, which cannot be faster than their matrices."""
    count = np.maximum(experts, 1.0)
    filled = count * np.ceil(rows / count / TILE_ROWS) * TILE_ROWS
    found = gemm_estimate(device, filled, columns, depth, precision, sustained=sustained)
    traffic = precision.operand_bytes * depth * (rows + count * columns)
    traffic = traffic + precision.value_bytes * rows * columns
    some = rows * columns * depth * experts > 0
    least_s = traffic / device.memory_bandwidth_bytes_per_s
    return Estimate(np.where(some, np.maximum(found.time_s, least_s), 0.0), found.spread)


def _weight(calibration: KernelCalibration, term: str) -> float:
    """Returns what one term of a measured sum is multiplied by."""
    features = np.full((1, len(calibration.curve.feature_names)), -np.inf)
    features[0, calibration.curve.feature_names.index(term)] = 0.0
    return float(np.exp(calibration.curve.log_ratio(features)[0]))


def _broadcast(
    sizes: Mapping[str, ArrayLike], names: tuple[str, ...]
) -> dict[str, NDArray[np.float64]]:
    arrays = np.broadcast_arrays(*(np.asarray(sizes[name], float) for name in names))
    return dict(zip(names, arrays, strict=True))
