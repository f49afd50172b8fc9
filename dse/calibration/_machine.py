"""Platform from a session of microbenchmarks: device figures, fitted kernels, curves."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.calibration._collectives import fit_collectives
from dse.calibration._device import (
    check_measured,
    device_spec,
    host_link_spec,
    host_spec,
    link_spec,
)
from dse.calibration._embedding import fit_embedding
from dse.calibration._origin import FitOrigin
from dse.calibration._smooth import SmoothPoints, fit_smooth
from dse.calibration.measurements import CollectiveSamples, EmbeddingSamples
from dse.calibration.microbench import Purpose
from dse.errors import CalibrationError
from dse.machine import Precision
from dse.machine.collectives import CollectiveOp, inside_time_s
from dse.machine.fits import held_out_errors
from dse.machine.kernels import (
    FBGEMM,
    STREAMING_OPERATORS,
    gemm_reference_s,
    host_copy_time_s,
    streaming_reference_s,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.calibration.microbench import CollectiveMeasurement, KernelMeasurement, SessionResult
    from dse.machine import DeviceSpec, HostLinkSpec, HostSpec, LinkSpec
    from dse.machine.fits import CollectiveCalibration, HeldOut, KernelCalibration

#: On GPUs the lookup of one table by torch is measured, not the fused kernels of many tables that
#: training uses; what that differs by is an assumption.
_UNFUSED = "lookups of single tables by torch, not the fused kernels of training"
_UNFUSED_SPREAD = 0.25


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
        left_out: What was not measured well enough: operators and collectives with too few points
            for a fit and why, and the path from host memory where it is assumed.
        host_link_assumed: Why that path is assumed; empty where it was measured.
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
    host_link_assumed: str = ""


def fit_machine(name: str, result: SessionResult, ranks: int) -> MachineCalibration:
    """Fits all that a session measured; the errors are those on its held-out points.

    What has too few points, or is met better by the formulas, is left out and listed.

    Args:
        name: Name of the platform.
        result: Measurements.
        ranks: Ranks of the machine.

    Raises:
        CalibrationError: The session ended before the basic figures were measured, or without a
            stream that is short enough to tell the fixed time of a kernel.
    """
    check_measured(result)
    device = device_spec(result, ranks)
    host_link, assumed = host_link_spec(result, device)
    link = link_spec(result.collectives, result.machine.device)
    origin = FitOrigin(
        name=name, device=device.name, source=_source(result), as_of=result.date[:10]
    )
    fits = _Fits(device, host_link, origin)
    groups: dict[tuple[str, str], list[KernelMeasurement]] = {}
    for point in result.kernels:
        groups.setdefault((point.op, point.precision), []).append(point)
    for (op, precision), points in sorted(groups.items()):
        alone = sum(other == op for other, _ in groups) == 1
        fits.add_kernel(op, precision, points, every_precision=alone and op != "gemm")
    by_collective: dict[tuple[str, int], list[CollectiveMeasurement]] = {}
    for collective in result.collectives:
        by_collective.setdefault((collective.op, collective.ranks), []).append(collective)
    for (op, members), measured in sorted(by_collective.items()):
        fits.add_collective(op, members, measured, link)
    return MachineCalibration(
        origin=origin,
        ranks=ranks,
        device=device,
        host_link=host_link,
        host=host_spec(result),
        link=link,
        kernels=tuple(fits.kernels),
        collectives=tuple(fits.collectives),
        left_out=(*([f"host link: {assumed}; assumed"] if assumed else []), *fits.left_out),
        host_link_assumed=assumed,
    )


#: First part of the names of lookups and updates that are measured, and whose kernels they are.
_LOOKUP_LIBRARIES = {"embedding": "", "fbgemm": FBGEMM.implementation}


class _Fits:
    """Collects fits that are better than the formulas, and the reasons of those left out."""

    def __init__(self, device: DeviceSpec, host_link: HostLinkSpec, origin: FitOrigin) -> None:
        self._device = device
        self._host_link = host_link
        self._origin = origin
        self.kernels: list[KernelCalibration] = []
        self.collectives: list[CollectiveCalibration] = []
        self.left_out: list[str] = []

    def add_kernel(
        self,
        op: str,
        precision: str,
        points: Sequence[KernelMeasurement],
        *,
        every_precision: bool,
    ) -> None:
        """Fits one operator in one precision."""
        sizes, time_s, held_out = _arrays(points)
        try:
            library, _, direction = op.partition("_")
            if library in _LOOKUP_LIBRARIES:
                # A call of several tables is several times that of one.
                each_s = time_s / sizes["tables"] if "tables" in sizes else time_s
                samples = _embedding_samples(direction, sizes, each_s)
                (fitted,) = fit_embedding(self._device, samples, self._origin, held_out)
                fitted = replace(fitted, implementation=_LOOKUP_LIBRARIES[library])
                if self._device.kind == "gpu":
                    fitted = replace(
                        fitted,
                        spread=math.hypot(fitted.spread, _UNFUSED_SPREAD),
                        transferred=_UNFUSED,
                    )
            else:
                reference_s = self._reference_s(op, sizes, Precision(precision))
                known = SmoothPoints(sizes, time_s, reference_s, 0.0, held_out)
                fitted = fit_smooth(
                    op, () if every_precision else (precision,), known, self._origin
                )
                self._refuse_worse(fitted.held_out, reference_s[held_out], time_s[held_out])
        except CalibrationError as error:
            self.left_out.append(f"{op} {precision}: {error}")
        else:
            self.kernels.append(fitted)

    def add_collective(
        self,
        op: str,
        ranks: int,
        points: Sequence[CollectiveMeasurement],
        link: LinkSpec | None,
    ) -> None:
        """Fits one collective on one number of ranks."""
        samples = _collective_samples(points)
        held_out = np.array([point.purpose is Purpose.HELD_OUT for point in points])
        try:
            (fitted,) = fit_collectives(samples, self._origin, held_out)
            if link is not None:
                sizes = samples.size_bytes[held_out].astype(np.float64)
                formula_s = inside_time_s(link, CollectiveOp(op), sizes, ranks)
                self._refuse_worse(fitted.held_out, formula_s, samples.time_s[held_out])
        except CalibrationError as error:
            prefix = f"{op} on {ranks} ranks: "
            self.left_out.append(prefix + str(error).removeprefix(prefix))
        else:
            self.collectives.append(fitted)

    def _reference_s(
        self, op: str, sizes: dict[str, NDArray[np.float64]], precision: Precision
    ) -> NDArray[np.float64]:
        if op == "gemm":
            return gemm_reference_s(self._device, sizes["m"], sizes["n"], sizes["k"], precision)
        if op not in STREAMING_OPERATORS:
            return host_copy_time_s(self._host_link, sizes["size_bytes"])
        full = dict(sizes)
        if "value_bytes" in STREAMING_OPERATORS[op].sizes:
            full["value_bytes"] = np.full(len(sizes["rows" if "rows" in sizes else "batch"]), 4.0)
        return streaming_reference_s(self._device, op, full, precision)

    @staticmethod
    def _refuse_worse(
        held_out: HeldOut, formula_s: NDArray[np.float64], measured_s: NDArray[np.float64]
    ) -> None:
        formula = held_out_errors(formula_s, measured_s, held_out.rule)
        if held_out.gmae > formula.gmae:
            raise CalibrationError(
                f"the fit misses held-out points by {held_out.gmae:.0%}, the formula by "
                f"{formula.gmae:.0%} (geometric mean); the formula is kept, measure more"
            )


def _arrays(
    points: Sequence[KernelMeasurement],
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64], NDArray[np.bool_]]:
    """Sizes by name, times, and the mask of held-out points."""
    names = [name for name, _ in points[0].sizes]
    values = np.array([[value for _, value in point.sizes] for point in points])
    sizes = {name: values[:, index] for index, name in enumerate(names)}
    time_s = np.array([point.time_s for point in points])
    return sizes, time_s, np.array([point.purpose is Purpose.HELD_OUT for point in points])


def _embedding_samples(
    direction: str, sizes: dict[str, NDArray[np.float64]], time_s: NDArray[np.float64]
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
        nodes=np.ones(len(points), dtype=np.int64),
        size_bytes=np.array([point.size_bytes for point in points]),
        time_s=np.array([point.time_s for point in points]),
        source_rows=np.arange(len(points)) + 1,
        dtype=np.full(len(points), ""),
        nccl=np.full(len(points), ""),
    )


def _source(result: SessionResult) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result.machine.libraries)
    driver = f", driver {result.machine.driver}" if result.machine.driver else ""
    busy = f", {result.busy_devices} ranks at work" if result.busy_devices > 1 else ""
    return (
        f"dse calibrate on {result.machine.operating_system}{driver}: {versions}; "
        f"{result.threads} threads a rank{busy}, {result.collectives_backend}"
    )
