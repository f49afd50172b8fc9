"""From a session of microbenchmarks to a platform: device figures, fitted kernels, curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.calibrate._collectives import fit_collectives
from dse.calibrate._device import device_spec, host_link_spec, host_spec, link_spec
from dse.calibrate._embedding import fit_embedding
from dse.calibrate._origin import FitOrigin
from dse.calibrate._smooth import SmoothPoints, fit_smooth
from dse.errors import CalibrationError
from dse.hardware import Precision
from dse.kernels import STREAMING_OPERATORS, gemm_reference_s, streaming_reference_s
from dse.measurements import CollectiveSamples, EmbeddingSamples
from dse.microbench import Purpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.curves import CollectiveCalibration, KernelCalibration
    from dse.hardware import DeviceSpec, HostLinkSpec, HostSpec, LinkSpec
    from dse.microbench import CollectiveMeasurement, KernelMeasurement, SessionResult

#: Bytes of a value of the operators that are measured in fp32.
_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class MachineCalibration:
    """Everything that a session says of a machine.

    Attributes:
        origin: Provenance of the fits.
        ranks: Ranks of the machine.
        device: What one rank has, without calibrations.
        host_link: Path from host memory to a device.
        host: Host overheads.
        link: Interconnect of the ranks, or None when it was not measured.
        kernels: Fitted operators.
        collectives: Fitted collectives.
        left_out: Operators and collectives with too few points for a fit, and why.
    """

    origin: FitOrigin
    ranks: int
    device: DeviceSpec
    host_link: HostLinkSpec
    host: HostSpec
    link: LinkSpec | None
    kernels: tuple[KernelCalibration, ...]
    collectives: tuple[CollectiveCalibration, ...]
    left_out: tuple[str, ...]


def fit_machine(name: str, result: SessionResult, ranks: int) -> MachineCalibration:
    """Fits all that a session measured; the errors are those on its fresh points.

    What has too few points is left out and listed: the analytical model serves instead.

    Args:
        name: Name of the platform.
        result: Measurements.
        ranks: Ranks of the machine.

    Raises:
        CalibrationError: The session ended before the basic figures were measured.
    """
    device = device_spec(result, ranks)
    origin = FitOrigin(
        name=name, device=device.name, source=_source(result), as_of=result.date[:10]
    )
    kernels: list[KernelCalibration] = []
    collectives: list[CollectiveCalibration] = []
    left_out: list[str] = []
    groups: dict[tuple[str, str], list[KernelMeasurement]] = {}
    for point in result.kernels:
        groups.setdefault((point.op, point.precision), []).append(point)
    for (op, precision), points in sorted(groups.items()):
        try:
            kernels += _fit_operator(op, precision, points, device, origin)
        except CalibrationError as error:
            left_out.append(f"{op} {precision}: {error}")
    by_collective: dict[tuple[str, int], list[CollectiveMeasurement]] = {}
    for collective in result.collectives:
        by_collective.setdefault((collective.op, collective.ranks), []).append(collective)
    for (op, members), measured in sorted(by_collective.items()):
        fresh = np.array([point.purpose is Purpose.FRESH for point in measured])
        try:
            collectives += fit_collectives(_collective_samples(measured), origin, fresh)
        except CalibrationError as error:
            left_out.append(f"{op} on {members} ranks: {error}")
    return MachineCalibration(
        origin=origin,
        ranks=ranks,
        device=device,
        host_link=host_link_spec(result.kernels),
        host=host_spec(result),
        link=link_spec(result.collectives, result.machine.device),
        kernels=tuple(kernels),
        collectives=tuple(collectives),
        left_out=tuple(left_out),
    )


def _fit_operator(
    op: str,
    precision: str,
    points: Sequence[KernelMeasurement],
    device: DeviceSpec,
    origin: FitOrigin,
) -> tuple[KernelCalibration, ...]:
    names = [name for name, _ in points[0].sizes]
    values = np.array([[value for _, value in point.sizes] for point in points])
    sizes = {name: values[:, index] for index, name in enumerate(names)}
    time_s = np.array([point.time_s for point in points])
    fresh = np.array([point.purpose is Purpose.FRESH for point in points])
    if op.startswith("embedding_"):
        direction = op.removeprefix("embedding_")
        return fit_embedding(device, _embedding_samples(direction, sizes, time_s), origin, fresh)
    if op == "gemm":
        reference_s = gemm_reference_s(
            device, sizes["m"], sizes["n"], sizes["k"], Precision(precision)
        )
        fitted = SmoothPoints(sizes, time_s, reference_s, 0.0, fresh)
        return (fit_smooth(op, (precision,), fitted, origin),)
    if op not in STREAMING_OPERATORS:
        raise CalibrationError("the host link's figures stand for it")
    full = dict(sizes)
    if "value_bytes" in STREAMING_OPERATORS[op].sizes:
        full["value_bytes"] = np.full(len(time_s), float(_VALUE_BYTES))
    reference_s = streaming_reference_s(device, op, full, Precision(precision))
    fitted = SmoothPoints(sizes, time_s, reference_s, 0.0, fresh)
    return (fit_smooth(op, (), fitted, origin),)


def _embedding_samples(
    direction: str, sizes: dict[str, np.ndarray], time_s: np.ndarray
) -> EmbeddingSamples:
    return EmbeddingSamples(
        op=np.full(len(time_s), direction),
        rows=sizes["rows"].astype(np.int64),
        dim=sizes["dim"].astype(np.int64),
        batch=sizes["batch"].astype(np.int64),
        pooling=sizes["pooling"],
        value_bytes=sizes["value_bytes"].astype(np.int64),
        alpha=sizes["alpha"],
        time_s=time_s,
        source_rows=np.arange(len(time_s)) + 1,
    )


def _collective_samples(points: Sequence[CollectiveMeasurement]) -> CollectiveSamples:
    return CollectiveSamples(
        op=np.array([point.op for point in points]),
        ranks=np.array([point.ranks for point in points]),
        size_bytes=np.array([point.size_bytes for point in points]),
        time_s=np.array([point.time_s for point in points]),
        source_rows=np.arange(len(points)) + 1,
        dtype=np.full(len(points), ""),
    )


def _source(result: SessionResult) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result.machine.libraries)
    driver = f", driver {result.machine.driver}" if result.machine.driver else ""
    return (
        f"dse calibrate on {result.machine.operating_system}{driver}: {versions}; "
        f"{result.threads} threads a rank, {result.collectives_backend}"
    )
