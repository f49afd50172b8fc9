"""Errors of measured collectives on what their fits did not see.

Left-out sizes of every measured system and version of NCCL, 8 GPUs from 2 and 4, numbers of ranks
between measured ones, messages larger than any measured, and whole systems: a system is left out
and predicted from the one whose link has the same kind and the nearest rate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
import math
from typing import TYPE_CHECKING

from device_models import AccuracyRow
import numpy as np
from scipy.optimize import least_squares

from dse.calibration import FitOrigin, fit_collectives, held_out_sizes
from dse.calibration.measurements import ColumnOptions, read_collective
from dse.errors import ConfigError
from dse.machine.collectives import collective_estimate, collective_time_s
from dse.machine.fits import version_parts
from dse.machine.platforms import builtin_calibrations, load_platform, transferred_curves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from dse.calibration.measurements import CollectiveSamples
    from dse.machine import LinkSpec
    from dse.machine.fits import CollectiveCalibration
    from dse.machine.platforms import Platform

    Compared = tuple[NDArray[np.float64], NDArray[np.float64]]
    Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]
    Form = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]

ORIGIN = FitOrigin("benchmark", "as named", "benchmark")

#: System in the table → file of fitted curves, and a platform with its link.
SYSTEMS = {
    "a100_sxm": ("a100_sxm_80_nccl", "a100_sxm_80"),
    "h100_sxm": ("h100_sxm_nccl", "h100_sxm"),
    "h200_sxm": ("h200_sxm_nccl", "h200_sxm"),
    "b200_sxm": ("b200_sxm_nccl", "b200_sxm"),
    "gb200": ("gb200_nccl", "gb200_nvl72"),
}

#: Any difference of repeated measurements is kept: what counts is their median.
_ANY = math.inf

#: Largest message that a fit sees when larger ones are predicted.
_CUT_BYTES = 2**26

#: Half the width of the 90 % interval in standard deviations.
_HALF_WIDTH = 1.645


@dataclass(frozen=True)
class TransferRow:
    """A system predicted from the curves of another one.

    Attributes:
        system: The system that is left out.
        nccl: Version that it is compared with, the newest.
        source: File of the curves that are lent.
        points: Measurements of the system.
        mape: Mean of the absolute relative errors.
        median: Their median.
        inside_90: Share of measurements inside the 90 % interval.
    """

    system: str
    nccl: str
    source: str
    points: int
    mape: float
    median: float
    inside_90: float

    def as_json(self) -> dict[str, str | int | float]:
        """Returns the row as plain values, with what names other rows of the program."""
        name = {"what": "collectives, system left out", "device": self.system}
        return {**name, "model": self.source, **asdict(self)}


def collective_model_rows(data: Path) -> Iterator[AccuracyRow]:
    """Yields the rows of all systems and versions of a folder of measurements.

    Args:
        data: The folder; without `nccl/by_bytes.parquet` in it there are no rows.
    """
    if not (data / "nccl/by_bytes.parquet").is_file():
        return
    for system, (_, name) in SYSTEMS.items():
        samples = read_system(data, system)
        newest = newest_version(samples)
        platform = load_platform(name)
        link = replace(platform.links[0], calibrations=())
        for nccl in sorted(set(samples.nccl.tolist()), key=version_parts, reverse=True):
            chosen = samples.select(samples.nccl == nccl)
            device = f"{system}, NCCL {nccl}"
            yield from size_rows(device, chosen, link, simple=nccl == newest)
        yield from extrapolation_rows(platform, system, samples, newest)
        yield from larger_rows(system, samples.select(samples.nccl == newest), link)
    yield from between_rank_rows(data)


def read_system(data: Path, system: str) -> CollectiveSamples:
    """Returns all measurements of a system, reductions of integers left out.

    Switches add floating-point values only; see :func:`dse.calibration.fit_collectives`.
    """
    options = ColumnOptions(filters={"system": system})
    samples = read_collective(data / "nccl/by_bytes.parquet", options, tolerance=_ANY)
    reduces = np.isin(samples.op, ("all_reduce", "reduce_scatter"))
    return samples.select(~(reduces & np.char.startswith(samples.dtype, "int")))


def newest_version(samples: CollectiveSamples) -> str:
    """Returns the newest version among measurements."""
    return max(samples.nccl.tolist(), key=version_parts)


def size_rows(
    device: str, samples: CollectiveSamples, link: LinkSpec, *, simple: bool
) -> Iterator[AccuracyRow]:
    """Yields the errors on left-out sizes: the odd-indexed ones, then the even-indexed ones.

    Of the even ones the ends of the range are left out, as nothing lies beyond them. Beside each
    stands how well other measurements of the same bytes, mostly of another data type, predict.

    Args:
        device: Name for the rows.
        samples: Measurements of one version.
        link: The interconnect, without calibrations.
        simple: Whether simpler models are fitted to the same points, too.
    """
    odd = np.zeros(len(samples), dtype=np.bool_)
    inner = np.zeros(len(samples), dtype=np.bool_)
    for rows in _groups(samples):
        size = samples.size_bytes[rows]
        odd[rows] = held_out_sizes(size)
        seen = size[odd[rows]]
        inner[rows] = ~odd[rows] & (size > seen.min()) & (size < seen.max())
    yield AccuracyRow.over("collectives", device, "dse", _held_out(samples, link, odd, odd))
    yield AccuracyRow.over("collectives", device, "measured again", _measured_again(samples, odd))
    if simple:
        for model, form in _SIMPLE.items():
            parts = []
            for rows in _groups(samples):
                seen = samples.select(rows & ~odd)
                unseen = samples.select(rows & odd)
                predicted_s = _fit_simple(form, seen)(unseen.size_bytes.astype(np.float64))
                parts.append((predicted_s, unseen.time_s))
            yield AccuracyRow.over("collectives", device, model, parts)
    what = "collectives, even sizes held out"
    yield AccuracyRow.over(what, device, "dse", _held_out(samples, link, ~odd, inner))
    yield AccuracyRow.over(what, device, "measured again", _measured_again(samples, inner))


def _held_out(
    samples: CollectiveSamples,
    link: LinkSpec,
    hidden: NDArray[np.bool_],
    checked: NDArray[np.bool_],
) -> list[Compared]:
    """Predicted and measured times of points, by curves that do not see the hidden ones."""
    parts = []
    fitted = fit_collectives(samples, ORIGIN, held_out=hidden, link=link)
    for rows, curve in zip(_groups(samples), fitted, strict=True):
        unseen = samples.select(rows & checked)
        parts.append((curve.curve.at(unseen.size_bytes), unseen.time_s))
    return parts


def _measured_again(samples: CollectiveSamples, checked: NDArray[np.bool_]) -> list[Compared]:
    """Median of the other measurements of the same bytes, and the time of each that has any."""
    parts = []
    for rows in _groups(samples):
        chosen = samples.select(rows & checked)
        for size in np.unique(chosen.size_bytes):
            time_s = chosen.time_s[chosen.size_bytes == size]
            if len(time_s) > 1:
                others = [np.median(np.delete(time_s, at)) for at in range(len(time_s))]
                parts.append((np.array(others), time_s))
    return parts


def _groups(samples: CollectiveSamples) -> Iterator[NDArray[np.bool_]]:
    """Marks the measurements of each curve, in the order of the fits; one version only."""
    for op, ranks in sorted(set(zip(samples.op.tolist(), samples.ranks.tolist(), strict=True))):
        yield (samples.op == op) & (samples.ranks == ranks)


def extrapolation_rows(
    platform: Platform, system: str, samples: CollectiveSamples, nccl: str
) -> Iterator[AccuracyRow]:
    """Yields the errors on 8 GPUs of curves that were fitted on 2 and 4."""
    chosen = samples.select(samples.nccl == nccl)
    target = chosen.select(chosen.ranks == 8)
    if not len(target):
        return
    link = replace(platform.links[0], calibrations=())
    few = fit_collectives(chosen.select(chosen.ranks < 8), ORIGIN, link=link)
    models = {"dse": replace(link, calibrations=few), "analytical": link}
    for model, used in models.items():
        what = "collectives, 8 GPUs from 2 and 4"
        yield AccuracyRow.over(what, system, model, [_compared(platform, used, target)])


def larger_rows(system: str, samples: CollectiveSamples, link: LinkSpec) -> Iterator[AccuracyRow]:
    """Yields the errors on messages above all that the fit saw."""
    what = "collectives, 128 to 512 MiB from up to 64 MiB"
    seen = samples.select(samples.size_bytes <= _CUT_BYTES)
    larger = samples.select(samples.size_bytes > _CUT_BYTES)
    parts: dict[str, list[Compared]] = {"dse": [], "constant bandwidth": []}
    for one in fit_collectives(seen, ORIGIN, link=link):
        unseen = larger.select((larger.op == one.op) & (larger.ranks == one.ranks))
        size = unseen.size_bytes.astype(np.float64)
        flat_s = float(one.curve.at(_CUT_BYTES)) * size / _CUT_BYTES
        parts["dse"].append((one.curve.at(size), unseen.time_s))
        parts["constant bandwidth"].append((flat_s, unseen.time_s))
    for model, compared in parts.items():
        yield AccuracyRow.over(what, system, model, compared)


def between_rank_rows(data: Path) -> Iterator[AccuracyRow]:
    """Yields the errors on 3, 5, 6 and 7 GPUs of curves on 2, 4 and 8, every power of two."""
    table = data / "nccl/vtrain_all_reduce.parquet"
    if not table.is_file():
        return
    for gpu, name in (("a100", "a100_sxm_80"), ("v100", "v100_dgx1")):
        platform = load_platform(name)
        samples = read_collective(table, ColumnOptions(filters={"gpu": gpu}))
        samples = samples.select(np.log2(samples.size_bytes) % 1 == 0)
        known = np.isin(samples.ranks, (2, 4, 8))
        link = replace(platform.links[0], calibrations=())
        curves = fit_collectives(samples.select(known), ORIGIN, link=link)
        fitted = replace(link, calibrations=curves)
        for model, used in (("dse", fitted), ("analytical", link)):
            what = "all_reduce, 3, 5, 6 and 7 GPUs from 2, 4 and 8"
            yield AccuracyRow.over(
                what, name, model, [_compared(platform, used, samples.select(~known))]
            )


def transfer_rows(data: Path, *, same_generation: bool = True) -> Iterator[TransferRow]:
    """Yields each system predicted from the nearest other one.

    Args:
        data: Folder of measurements; without `nccl/by_bytes.parquet` in it there are no rows.
        same_generation: Whether a system whose link has the same rate may lend its curves.
    """
    if not (data / "nccl/by_bytes.parquet").is_file():
        return
    shipped = dict(builtin_calibrations())
    for system, (own, name) in SYSTEMS.items():
        platform = load_platform(name)
        link = replace(platform.links[0], calibrations=())
        others = {
            file: shipped[file]
            for file, _ in SYSTEMS.values()
            if file != own and (same_generation or _distance(shipped[file].link, link)[1] > 0)
        }
        source = min(others, key=lambda file: _distance(others[file].link, link))
        lent = transferred_curves(others[source].collectives, others[source].link, link)
        used = replace(link, calibrations=lent)
        samples = read_system(data, system)
        nccl = newest_version(samples)
        samples = samples.select(samples.nccl == nccl)
        log_error, spread = [], []
        for rows in _groups(samples):
            chosen = samples.select(rows)
            cluster = replace(platform.cluster(int(chosen.ranks[0])), link=used)
            estimate = collective_estimate(cluster, str(chosen.op[0]), chosen.size_bytes)
            log_error.append(np.log(estimate.time_s / chosen.time_s))
            spread.append(estimate.spread)
        errors = np.concatenate(log_error)
        inside = np.abs(errors) <= _HALF_WIDTH * np.concatenate(spread)
        relative = np.abs(np.expm1(errors))
        yield TransferRow(
            system,
            nccl,
            source,
            len(errors),
            float(relative.mean()),
            float(np.median(relative)),
            float(inside.mean()),
        )


def _distance(other: LinkSpec | None, link: LinkSpec) -> tuple[bool, float]:
    """How far a link is from another: kind first, then the ratio of rates."""
    if other is None:
        raise ConfigError("a shipped file of collectives does not state its link; fit it again")
    ratio = other.bandwidth_bytes_per_s / link.bandwidth_bytes_per_s
    return other.kind is not link.kind, abs(math.log(ratio))


def _compared(platform: Platform, link: LinkSpec, target: CollectiveSamples) -> Compared:
    predicted_s = np.empty(len(target))
    for rows in _groups(target):
        chosen = target.select(rows)
        cluster = replace(platform.cluster(int(chosen.ranks[0])), link=link)
        predicted_s[rows] = collective_time_s(cluster, str(chosen.op[0]), chosen.size_bytes)
    return predicted_s, target.time_s


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


def shipped_collective_row(
    file: str, nccl: str, curves: list[CollectiveCalibration]
) -> AccuracyRow:
    """Returns the errors that the curves of one version carry; of p90 the mean of the curves.

    Args:
        file: Name of the file of fitted curves.
        nccl: Version; empty where it is not known.
        curves: At least one.
    """
    points = np.array([curve.held_out.points for curve in curves])

    def mean(values: list[float]) -> float:
        return float(np.average(values, weights=points))

    return AccuracyRow(
        f"collectives, NCCL {nccl}" if nccl else "collectives",
        file,
        "shipped",
        int(points.sum()),
        math.exp(mean([math.log(curve.held_out.gmae) for curve in curves])),
        mean([curve.held_out.mape for curve in curves]),
        mean([curve.held_out.p90 for curve in curves]),
    )
