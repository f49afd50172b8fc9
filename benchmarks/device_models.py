"""Errors of the device models on measurements that their fits did not see.

Products: a quarter of the (n, k) pairs is held out. A machine of one's own: the fresh points of
its session. Beside each model stand simpler ones that see the same points. Collectives of GPUs
are in `collective_models.py`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from dse.calibration import fit_machine, split_gemm, write_machine
from dse.calibration.measurements import ColumnOptions, read_gemm
from dse.calibration.microbench import Purpose, read_session
from dse.machine import Precision
from dse.machine.fits import fit_tree_curve, held_out_errors
from dse.machine.kernels import GEMM_FEATURES, GEMM_OFFSET_FEATURE, gemm_estimate, gemm_features
from dse.machine.platforms import load_platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from dse.calibration import GemmSplit
    from dse.machine.fits import HeldOut
    from dse.machine.platforms import Platform

    Compared = tuple[NDArray[np.float64], NDArray[np.float64]]
    Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]
    Form = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]

#: Platform → file of measured products of its device.
DEVICES = {
    "a100_sxm_80": "gemm/a100_sxm.parquet",
    "h100_sxm": "gemm/h100_sxm.parquet",
    "h200_sxm": "gemm/h200_sxm.parquet",
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

    @staticmethod
    def over(what: str, device: str, model: str, parts: list[Compared]) -> AccuracyRow:
        """Returns the row of all points of several groups of `(predicted, measured)` times."""
        predicted_s, measured_s = (np.concatenate(times) for times in zip(*parts, strict=True))
        errors = held_out_errors(predicted_s, measured_s, "fresh")
        return AccuracyRow.of(what, device, model, errors)

    def as_json(self) -> dict[str, str | int | float]:
        """Returns the row as plain values."""
        return asdict(self)


def device_rows(data: Path) -> Iterator[AccuracyRow]:
    """Yields the rows of all devices whose measurements lie in a folder."""
    for name, gemm in DEVICES.items():
        if (data / gemm).is_file():
            yield from gemm_rows(load_platform(name), data / gemm)


def gemm_rows(platform: Platform, path: Path) -> Iterator[AccuracyRow]:
    """Yields the errors of GEMM models in bfloat16."""
    what, precision = "gemm bf16", Precision.BF16
    bare = _without_calibrations(platform)
    samples = read_gemm(path, ColumnOptions(filters={"gemm_dtype": "bfloat16"}))
    split = split_gemm(bare.device, samples, precision)
    unseen = split.select(split.held_out)
    yield AccuracyRow.of(what, platform.name, "dse", _unseen_errors(bare, split, precision))
    # Another draw of the pairs, which no choice of the model has seen.
    another = split_gemm(bare.device, samples, precision, seed=1)
    errors = _unseen_errors(bare, another, precision)
    yield AccuracyRow.of(f"{what}, another split", platform.name, "dse", errors)
    roofline_s = unseen.reference_s - bare.device.kernel_floor_s
    analytical_s = gemm_estimate(
        bare.device, unseen.sizes["m"], unseen.sizes["n"], unseen.sizes["k"], precision
    ).time_s
    for model, predicted_s in (("tiles and waves", analytical_s), ("roofline", roofline_s)):
        errors = held_out_errors(predicted_s, unseen.time_s, "")
        yield AccuracyRow.of(what, platform.name, model, errors)


def _unseen_errors(bare: Platform, split: GemmSplit, precision: Precision) -> HeldOut:
    """Errors on the held-out pairs of a model fitted on the others, as `fit_gemm` does."""
    seen, unseen = split.select(~split.held_out), split.select(split.held_out)
    curve = fit_tree_curve(
        GEMM_FEATURES,
        gemm_features(bare.device, precision, seen.sizes),
        np.log(seen.time_s / seen.reference_s),
        offset_feature=GEMM_OFFSET_FEATURE,
    )
    log_ratio = curve.log_ratio(gemm_features(bare.device, precision, unseen.sizes))
    return held_out_errors(unseen.reference_s * np.exp(log_ratio), unseen.time_s, "")


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
            yield AccuracyRow.over(op, platform.name, model, [compared])
    for model, parts in kernels.items():
        yield AccuracyRow.over("all CPU kernels", platform.name, model, parts)
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
        yield AccuracyRow.over("all gloo collectives", platform.name, model, parts)


def _without_calibrations(platform: Platform) -> Platform:
    links = tuple(replace(link, calibrations=()) for link in platform.links)
    return replace(platform, device=replace(platform.device, calibrations=()), links=links)
