"""Errors of the device models on measurements that their fits did not see.

Kernels: a quarter of the (n, k) pairs is held out. Collectives: the odd-indexed sizes; and the
curves of 8 GPUs from measurements on 2 and 4 only. Beside each model stand two simpler ones that
see the same points.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import least_squares

from dse.calibration import (
    FitOrigin,
    fit_collectives,
    fit_gemm,
    fit_machine,
    held_out_sizes,
    split_gemm,
    write_machine,
)
from dse.calibration.measurements import ColumnOptions, read_collective, read_gemm
from dse.calibration.microbench import Purpose, read_session
from dse.machine import Precision
from dse.machine.collectives import collective_time_s
from dse.machine.fits import fit_size_curve, fit_tree_curve, held_out_errors
from dse.machine.kernels import GEMM_FEATURES, GEMM_OFFSET_FEATURE, gemm_features, gemm_time_s
from dse.machine.platforms import load_platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from dse.calibration.measurements import CollectiveSamples, GemmSamples
    from dse.machine.fits import CollectiveCalibration, HeldOut
    from dse.machine.platforms import Platform

    Compared = tuple[NDArray[np.float64], NDArray[np.float64]]
    Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]
    Form = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]

ORIGIN = FitOrigin("benchmark", "as named", "benchmark")

#: Platform → files of measurements of its device.
DEVICES = {
    "a100_sxm_80": ("gemm/a100_sxm.parquet", "nccl/a100_sxm_8.parquet"),
    "h100_sxm": ("gemm/h100_sxm.parquet", "nccl/h100_sxm_8.parquet"),
    "h200_sxm": ("gemm/h200_sxm.parquet", "nccl/h200_sxm_8.parquet"),
}


@dataclass(frozen=True)
class AccuracyRow:
    """Error of one model on one device.

    Attributes:
        what: What is modelled.
        device: Platform.
        model: `dse`, or the name of a simpler model.
        points: Held-out points.
        gmae: Geometric mean of the absolute relative errors.
        mape: Their mean.
        p90: Their 90th percentile.
    """

    what: str
    device: str
    model: str
    points: int
    gmae: float
    mape: float
    p90: float

    @staticmethod
    def of(what: str, device: str, model: str, errors: HeldOut) -> AccuracyRow:
        """Returns the row of a comparison."""
        return AccuracyRow(
            what, device, model, errors.points, errors.gmae, errors.mape, errors.p90
        )

    def as_json(self) -> dict[str, str | int | float]:
        """Returns the row as plain values."""
        return asdict(self)


def device_rows(data: Path) -> Iterator[AccuracyRow]:
    """Yields the rows of all devices whose measurements lie in a folder."""
    for name, (gemm, collectives) in DEVICES.items():
        platform = load_platform(name)
        if (data / gemm).is_file():
            yield from gemm_rows(platform, data / gemm)
        if (data / collectives).is_file():
            samples = read_collective(data / collectives)
            yield from collective_rows(platform, samples)
            yield even_sizes_row(platform, samples)
            yield from extrapolation_rows(platform, samples)


def gemm_rows(platform: Platform, path: Path) -> Iterator[AccuracyRow]:
    """Yields the errors of GEMM models in bfloat16."""
    what, precision = "gemm bf16", Precision.BF16
    bare = _without_calibrations(platform)
    samples = read_gemm(path, ColumnOptions(filters={"gemm_dtype": "bfloat16"}))
    (fitted,) = fit_gemm(bare.device, samples, ORIGIN)
    yield AccuracyRow.of(what, platform.name, "dse", fitted.held_out)
    split = split_gemm(bare.device, samples, precision)
    unseen = split.select(split.held_out)
    yield _other_split(bare, samples, precision)
    roofline_s = unseen.reference_s - bare.device.kernel_floor_s
    analytical_s = gemm_time_s(
        bare.device, unseen.sizes["m"], unseen.sizes["n"], unseen.sizes["k"], precision
    )
    for model, predicted_s in (("tiles and waves", analytical_s), ("roofline", roofline_s)):
        errors = held_out_errors(predicted_s, unseen.time_s, "")
        yield AccuracyRow.of(what, platform.name, model, errors)


def _other_split(bare: Platform, samples: GemmSamples, precision: Precision) -> AccuracyRow:
    """The same on another draw of the pairs, which no choice of the model has seen."""
    split = split_gemm(bare.device, samples, precision, seed=1)
    seen, unseen = split.select(~split.held_out), split.select(split.held_out)
    curve = fit_tree_curve(
        GEMM_FEATURES,
        gemm_features(bare.device, precision, seen.sizes),
        np.log(seen.time_s / seen.reference_s),
        offset_feature=GEMM_OFFSET_FEATURE,
    )
    log_ratio = curve.log_ratio(gemm_features(bare.device, precision, unseen.sizes))
    errors = held_out_errors(unseen.reference_s * np.exp(log_ratio), unseen.time_s, "")
    return AccuracyRow.of("gemm bf16, another split", bare.name, "dse", errors)


def even_sizes_row(platform: Platform, samples: CollectiveSamples) -> AccuracyRow:
    """The errors with the roles of the sizes exchanged, which no choice of the model has seen.

    Ends of the range are left out: nothing lies beyond them.
    """
    parts = []
    for op, ranks in sorted(set(zip(samples.op.tolist(), samples.ranks.tolist(), strict=True))):
        chosen = samples.select((samples.op == op) & (samples.ranks == ranks))
        odd = held_out_sizes(chosen.size_bytes)
        seen, even = chosen.select(odd), chosen.select(~odd)
        low, high = seen.size_bytes.min(), seen.size_bytes.max()
        unseen = even.select((even.size_bytes > low) & (even.size_bytes < high))
        curve = fit_size_curve(seen.size_bytes.astype(np.float64), seen.time_s)
        parts.append((curve.at(unseen.size_bytes), unseen.time_s))
    return _row("collectives, even sizes held out", platform.name, "dse", parts)


def collective_rows(platform: Platform, samples: CollectiveSamples) -> Iterator[AccuracyRow]:
    """Yields the errors of curves over message size, on the sizes between."""
    what = "collectives"
    predictions: dict[str, list[NDArray[np.float64]]] = {"dse": [], "sigmoid": [], "α–β": []}
    measured: list[NDArray[np.float64]] = []
    for op, ranks in sorted(set(zip(samples.op.tolist(), samples.ranks.tolist(), strict=True))):
        chosen = samples.select((samples.op == op) & (samples.ranks == ranks))
        unseen = held_out_sizes(chosen.size_bytes)
        seen = chosen.select(~unseen)
        sizes = chosen.size_bytes[unseen].astype(np.float64)
        curve = fit_size_curve(seen.size_bytes.astype(np.float64), seen.time_s)
        predictions["dse"].append(curve.at(sizes))
        for name, form in _SIMPLE.items():
            predictions[name].append(_fit_simple(form, seen)(sizes))
        measured.append(chosen.time_s[unseen])
    everything = np.concatenate(measured)
    for model, parts in predictions.items():
        errors = held_out_errors(np.concatenate(parts), everything, "")
        yield AccuracyRow.of(what, platform.name, model, errors)


def extrapolation_rows(platform: Platform, samples: CollectiveSamples) -> Iterator[AccuracyRow]:
    """Yields the errors on 8 GPUs of curves that were fitted on 2 and 4."""
    few = fit_collectives(samples.select(samples.ranks < 8), ORIGIN)
    target = samples.select(samples.ranks == 8)
    bare = _without_calibrations(platform)
    models = {"dse": _with_collectives(platform, few), "analytical": bare}
    for model, chosen in models.items():
        predicted_s = np.empty(len(target))
        for op in np.unique(target.op):
            rows = target.op == op
            predicted_s[rows] = collective_time_s(
                chosen.cluster(8), str(op), target.size_bytes[rows]
            )
        errors = held_out_errors(predicted_s, target.time_s, "")
        yield AccuracyRow.of("collectives, 8 GPUs from 2 and 4", platform.name, model, errors)


def machine_rows(points: Path) -> Iterator[AccuracyRow]:
    """Yields the errors of a machine's kernels and collectives on its session's fresh points.

    The session is fitted anew, and the platform that comes out is asked through its own front
    door, so that the whole way from a log to a prediction is measured.
    """
    result = read_session(points)
    with TemporaryDirectory() as folder:
        ranks = max((point.ranks for point in result.collectives), default=1)
        platform = write_machine(fit_machine("cpu", result, ranks), Path(folder) / "cpu.yaml")
    bare = _without_calibrations(platform)
    kernels: dict[str, list[Compared]] = {}
    # All that was measured: a fit that was left out must not leave the average.
    for op in sorted({point.op for point in result.kernels}):
        fresh = [
            point
            for point in result.kernels
            if point.op == op and point.purpose is Purpose.HELD_OUT
        ]
        measured_s = np.array([point.time_s for point in fresh])
        names = [name for name, _ in fresh[0].sizes]
        sizes = {name: np.array([dict(point.sizes)[name] for point in fresh]) for name in names}
        if op in ("concat", "layer_norm", "softmax", "interaction_dot"):
            sizes["value_bytes"] = np.full(len(fresh), 4.0)
        precision = {"precision": "fp32"} if op in ("gemm", "attention") else {}
        for model, chosen in (("dse", platform), ("analytical", bare)):
            compared = (chosen.kernel_time(op, **sizes, **precision), measured_s)
            kernels.setdefault(model, []).append(compared)
            yield _row(op, platform.name, model, [compared])
    for model, parts in kernels.items():
        yield _row("all CPU kernels", platform.name, model, parts)
    collectives: dict[str, list[Compared]] = {}
    for op, ranks in sorted({(point.op, point.ranks) for point in result.collectives}):
        fresh_points = [
            (point.size_bytes, point.time_s)
            for point in result.collectives
            if (point.op, point.ranks) == (op, ranks) and point.purpose is Purpose.HELD_OUT
        ]
        size_bytes, measured_s = np.array(fresh_points).T
        for model, chosen in (("dse", platform), ("analytical", bare)):
            predicted_s = chosen.collective_time(op, size_bytes, ranks)
            collectives.setdefault(model, []).append((predicted_s, measured_s))
    for model, parts in collectives.items():
        yield _row("all gloo collectives", platform.name, model, parts)


def _row(what: str, device: str, model: str, parts: list[Compared]) -> AccuracyRow:
    """Errors of all points of several groups of `(predicted, measured)` times."""
    predicted_s = np.concatenate([predicted for predicted, _ in parts])
    measured_s = np.concatenate([measured for _, measured in parts])
    return AccuracyRow.of(what, device, model, held_out_errors(predicted_s, measured_s, "fresh"))


def _alpha_beta(parameters: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Latency plus size over bandwidth, all in logarithms."""
    return np.logaddexp(parameters[0], np.log(size) - parameters[1])


def _sigmoid(parameters: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Latency plus size over a bandwidth that rises as a sigmoid of log size (TPDS'24)."""
    latency, bandwidth, middle, width = parameters
    slowdown = np.logaddexp(0.0, -(np.log(size) - middle) / np.exp(width))
    return np.logaddexp(latency, np.log(size) - bandwidth + slowdown)


def _fit_simple(form: Form, seen: CollectiveSamples) -> Curve:
    size = seen.size_bytes.astype(np.float64)
    log_time = np.log(seen.time_s)
    start = [log_time.min(), np.log(size[-1]) - log_time[-1], np.log(2.0**20), 0.5]
    fit = least_squares(
        lambda parameters: form(parameters, size) - log_time,
        start if form is _sigmoid else start[:2],
    )
    return lambda sizes: np.exp(form(fit.x, sizes))


_SIMPLE: dict[str, Form] = {"sigmoid": _sigmoid, "α–β": _alpha_beta}


def _without_calibrations(platform: Platform) -> Platform:
    links = tuple(replace(link, calibrations=()) for link in platform.links)
    return replace(platform, device=replace(platform.device, calibrations=()), links=links)


def _with_collectives(
    platform: Platform, calibrations: tuple[CollectiveCalibration, ...]
) -> Platform:
    links = tuple(replace(link, calibrations=calibrations) for link in platform.links)
    return replace(platform, links=links)
