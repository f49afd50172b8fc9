"""Files of fitted models next to platforms: JSON in SI units, written by `dse`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
import json
from typing import TYPE_CHECKING

from dse._io.writing import write_atomically
from dse.config import SCHEMA_VERSION, parse_json, read_source
from dse.errors import CalibrationError
from dse.machine import LinkSpec
from dse.machine.fits import (
    CollectiveCalibration,
    HeldOut,
    KernelCalibration,
    NetworkCalibration,
    NetworkModel,
    Provenance,
    SizeCurve,
    SizeRange,
    SmoothCurve,
    TermCurve,
    TreeCurve,
)
from dse.machine.platforms._calibration_document import CalibrationDocument

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dse.machine.fits import RatioCurve

#: Digits of floats in the files: far below any measurement's error.
_DIGITS = 7

#: Figures of a fitted network, by the names of the file.
_MODEL_FIELDS = tuple(field.name for field in fields(NetworkModel))


@dataclass(frozen=True, slots=True)
class CalibrationFile:
    """What one file holds.

    Attributes:
        kernels: Learned operators.
        collectives: Measured curves.
        networks: Fitted networks.
        link: Interconnect that the collectives were measured on, without calibrations; None where
            it is not stated.
    """

    kernels: tuple[KernelCalibration, ...] = ()
    collectives: tuple[CollectiveCalibration, ...] = ()
    networks: tuple[NetworkCalibration, ...] = ()
    link: LinkSpec | None = None


def read_calibrations(path: Path) -> CalibrationFile:
    """Reads a file of fitted models.

    Raises:
        ConfigError: The file is missing or wrong.
    """
    return calibrations_from_text(read_source(path).text, str(path))


def calibrations_from_text(text: str, file: str) -> CalibrationFile:
    """Makes fitted models from the text of their file.

    Raises:
        ConfigError: The text is wrong.
    """
    document = parse_json(text, CalibrationDocument, file=file)

    def provenance(points: int) -> Provenance:
        return Provenance(document.name, document.device, document.source, document.as_of, points)

    kernels = [
        KernelCalibration(
            op=block.op,
            precisions=tuple(block.precisions),
            sizes=tuple(SizeRange(**size.model_dump()) for size in block.sizes),
            curve=block.curve.to_curve(),
            spread=block.spread,
            provenance=provenance(block.points),
            held_out=HeldOut(**block.held_out.model_dump()),
            implementation=block.implementation,
        )
        for block in document.kernels
    ]
    collectives = [
        CollectiveCalibration(
            op=block.op,
            ranks=block.ranks,
            curve=SizeCurve(
                block.latency_s,
                block.bandwidth_bytes_per_s,
                tuple(block.size_bytes),
                tuple(block.time_s),
            ),
            spread=block.spread,
            provenance=provenance(block.points),
            held_out=HeldOut(**block.held_out.model_dump()),
            nccl=block.nccl,
        )
        for block in document.collectives
    ]
    networks = [
        NetworkCalibration(
            model=NetworkModel(**block.model_dump(include=set(_MODEL_FIELDS))),
            ops=tuple(block.ops),
            size_bytes=block.size_bytes,
            nodes=block.nodes,
            spread=block.spread,
            provenance=provenance(block.points),
            held_out=HeldOut(**block.held_out.model_dump()),
        )
        for block in document.networks
    ]
    link = None if document.link is None else LinkSpec("", **document.link.model_dump())
    return CalibrationFile(tuple(kernels), tuple(collectives), tuple(networks), link)


def write_calibrations(path: Path, calibrations: CalibrationFile) -> None:
    """Writes fitted models; the file appears whole or not at all.

    Figures are rounded to seven digits; knots and nodes that are the same then become one. What is
    written was read before, so a file that appears can be read.

    Args:
        path: The file.
        calibrations: At least one; all must share name, device, source and date.

    Raises:
        CalibrationError: A collective has too few sizes that differ.
        ConfigError: The models make no file that can be read, for example an infinite figure.
    """
    models: tuple[KernelCalibration | CollectiveCalibration | NetworkCalibration, ...] = (
        *calibrations.kernels,
        *calibrations.collectives,
        *calibrations.networks,
    )
    first = models[0].provenance
    document = {
        "schema_version": SCHEMA_VERSION,
        "name": first.name,
        "device": first.device,
        "source": first.source,
        "as_of": first.as_of,
        **({} if calibrations.link is None else {"link": _link_data(calibrations.link)}),
        "kernels": [_kernel_data(calibration) for calibration in calibrations.kernels],
        "collectives": [_collective_data(calibration) for calibration in calibrations.collectives],
    }
    if calibrations.networks:
        document["networks"] = [_network_data(network) for network in calibrations.networks]
    text = _json_text(document)
    parse_json(text, CalibrationDocument, file=str(path))
    write_atomically(path, text)


def _kernel_data(calibration: KernelCalibration) -> dict[str, object]:
    return {
        "op": calibration.op,
        "precisions": list(calibration.precisions),
        "sizes": [
            {"name": size.name, "low": _rounded(size.low), "high": _rounded(size.high)}
            for size in calibration.sizes
        ],
        "points": calibration.provenance.points,
        "spread": _rounded(calibration.spread),
        "held_out": _held_out_data(calibration.held_out),
        **({"implementation": calibration.implementation} if calibration.implementation else {}),
        "curve": _curve_data(calibration.curve),
    }


def _curve_data(curve: RatioCurve) -> dict[str, object]:
    if isinstance(curve, TreeCurve):
        return {
            "kind": "trees",
            "features": list(curve.feature_names),
            "offset": curve.offset_feature,
            "model": curve.packed,
        }
    if isinstance(curve, SmoothCurve):
        nodes, values = _different(curve.nodes, curve.values)
        return {
            "kind": "smooth",
            "features": list(curve.feature_names),
            "kernel": curve.kernel,
            "smoothing": _rounded(curve.smoothing),
            "scale": _all_rounded(curve.scale),
            "nodes": nodes,
            "values": values,
        }
    if isinstance(curve, TermCurve):
        return {
            "kind": "terms",
            "features": list(curve.feature_names),
            "weights": _all_rounded(curve.weights),
        }
    raise TypeError(f"no file format for curves of type {type(curve).__name__}")


def _collective_data(calibration: CollectiveCalibration) -> dict[str, object]:
    curve = calibration.curve
    # Means of times that never fall never fall either.
    knots, time_s = _different([(size,) for size in curve.size_bytes], curve.time_s)
    if len(knots) < 2:
        raise CalibrationError(
            f"{calibration.op} on {calibration.ranks} ranks: its {len(curve.size_bytes)} knots, "
            f"from {curve.size_bytes[0]:.10g} to {curve.size_bytes[-1]:.10g} bytes, are one in "
            f"{_DIGITS} digits and at least 2 are needed; measure sizes that lie further apart"
        )
    return {
        "op": calibration.op,
        "ranks": calibration.ranks,
        "points": calibration.provenance.points,
        "spread": _rounded(calibration.spread),
        "held_out": _held_out_data(calibration.held_out),
        **({"nccl": calibration.nccl} if calibration.nccl else {}),
        "latency_s": _rounded(curve.latency_s),
        "bandwidth_bytes_per_s": _rounded(curve.bandwidth_bytes_per_s),
        "size_bytes": [size for (size,) in knots],
        "time_s": time_s,
    }


def _network_data(calibration: NetworkCalibration) -> dict[str, object]:
    return {
        "ops": list(calibration.ops),
        "size_bytes": _all_rounded(calibration.size_bytes),
        "nodes": list(calibration.nodes),
        "points": calibration.provenance.points,
        "spread": _rounded(calibration.spread),
        "held_out": _held_out_data(calibration.held_out),
        **{name: _rounded(getattr(calibration.model, name)) for name in _MODEL_FIELDS},
    }


def _link_data(link: LinkSpec) -> dict[str, object]:
    pair = link.pair_bandwidth_bytes_per_s
    return {
        "kind": link.kind.value,
        "bandwidth_bytes_per_s": _rounded(link.bandwidth_bytes_per_s),
        "latency_s": _rounded(link.latency_s),
        **({} if pair is None else {"pair_bandwidth_bytes_per_s": _rounded(pair)}),
    }


def _different(
    places: Sequence[Sequence[float]], values: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    """Rounds places with a value each; those that become the same are one with the mean value.

    Returns:
        Different places in the order of their first appearance, and their values.
    """
    merged: dict[tuple[float, ...], list[float]] = {}
    for place, value in zip(places, values, strict=True):
        merged.setdefault(tuple(_all_rounded(place)), []).append(value)
    means = [sum(group) / len(group) for group in merged.values()]
    return [list(place) for place in merged], _all_rounded(means)


def _held_out_data(held_out: HeldOut) -> dict[str, object]:
    return {
        name: _rounded(value) if isinstance(value, float) else value
        for name, value in asdict(held_out).items()
    }


def _json_text(document: dict[str, object]) -> str:
    """One line for each fitted model: a change of one is a change of one line."""
    parts = []
    for key, value in document.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and value:
            lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in value)
            text = f"[\n{lines}\n]"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{" + ",\n".join(parts) + "}\n"


def _rounded(value: float) -> float:
    # Adding zero makes the negative one, another text for the same place, positive.
    return float(f"{value:.{_DIGITS}g}") + 0.0


def _all_rounded(values: Sequence[float]) -> list[float]:
    return [_rounded(value) for value in values]
