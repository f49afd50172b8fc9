"""Files of fitted models that lie beside platforms, as JSON (SI units; written by `dse`)."""

from __future__ import annotations

from dataclasses import dataclass
import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from dse._files import write_atomically
from dse.curves import (
    CollectiveCalibration,
    HeldOut,
    KernelCalibration,
    Provenance,
    SizeCurve,
    SizeRange,
    SmoothCurve,
    TreeCurve,
)
from dse.documents import SCHEMA_VERSION, Document, StrictModel, parse_json, read_source
from dse.hardware import Precision
from dse.platforms._schema import AsOf, Name

if TYPE_CHECKING:
    from pathlib import Path

    from dse.curves import RatioCurve

#: Digits of floats in the files: far below any measurement's error.
_DIGITS = 7

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class HeldOutBlock(StrictModel):
    """Errors on points that the fit did not see."""

    points: Annotated[int, Field(ge=1)]
    gmae: Share
    mape: Share
    p90: Share
    rule: Name


class SizeBlock(StrictModel):
    """Measured range of one size."""

    name: Name
    low: Share
    high: Positive


class TreesBlock(StrictModel):
    """Boosted trees: XGBoost's UBJSON, compressed by xz, in base64."""

    kind: Literal["trees"]
    features: list[Name]
    offset: str
    model: str

    def to_curve(self) -> TreeCurve:
        """Returns the curve."""
        return TreeCurve(tuple(self.features), self.model, self.offset)


class SmoothBlock(StrictModel):
    """Radial basis functions through measured points."""

    kind: Literal["smooth"]
    features: list[Name]
    kernel: Literal["linear", "thin_plate_spline"]
    smoothing: Share
    scale: list[Positive]
    nodes: list[list[Finite]]
    values: list[Finite]

    @model_validator(mode="after")
    def _check(self) -> SmoothBlock:
        width = len(self.features)
        if len(self.scale) != width or any(len(node) != width for node in self.nodes):
            raise PydanticCustomError("curve", "expected as many scales and columns as features")
        if len(self.nodes) != len(self.values):
            raise PydanticCustomError("curve", "expected as many values as nodes")
        return self

    def to_curve(self) -> SmoothCurve:
        """Returns the curve."""
        return SmoothCurve(
            tuple(self.features),
            self.kernel,
            self.smoothing,
            tuple(self.scale),
            tuple(tuple(node) for node in self.nodes),
            tuple(self.values),
        )


class KernelBlock(StrictModel):
    """A learned operator."""

    op: Name
    precisions: list[Precision]
    sizes: list[SizeBlock]
    points: Annotated[int, Field(ge=1)]
    spread: Share
    held_out: HeldOutBlock
    curve: Annotated[TreesBlock | SmoothBlock, Field(discriminator="kind")]


class CollectiveBlock(StrictModel):
    """A measured curve of one collective."""

    op: Name
    ranks: Annotated[int, Field(ge=2)]
    points: Annotated[int, Field(ge=1)]
    spread: Share
    held_out: HeldOutBlock
    latency_s: Positive
    bandwidth_bytes_per_s: Positive
    size_bytes: Annotated[list[Positive], Field(min_length=2)]
    time_s: list[Positive]

    @model_validator(mode="after")
    def _check(self) -> CollectiveBlock:
        if len(self.time_s) != len(self.size_bytes):
            raise PydanticCustomError("curve", "expected as many times as sizes")
        if sorted(set(self.size_bytes)) != self.size_bytes or sorted(self.time_s) != self.time_s:
            raise PydanticCustomError("curve", "expected rising sizes and times that never fall")
        return self


class CalibrationDocument(Document):
    """Fitted models of one device."""

    name: Name
    device: Name
    source: Name
    as_of: AsOf
    kernels: Annotated[list[KernelBlock], Field(default_factory=list)]
    collectives: Annotated[list[CollectiveBlock], Field(default_factory=list)]


@dataclass(frozen=True, slots=True)
class CalibrationFile:
    """What one file holds.

    Attributes:
        kernels: Learned operators.
        collectives: Measured curves.
    """

    kernels: tuple[KernelCalibration, ...] = ()
    collectives: tuple[CollectiveCalibration, ...] = ()


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
            sizes=tuple(SizeRange(size.name, size.low, size.high) for size in block.sizes),
            curve=block.curve.to_curve(),
            spread=block.spread,
            provenance=provenance(block.points),
            held_out=_held_out(block.held_out),
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
            held_out=_held_out(block.held_out),
        )
        for block in document.collectives
    ]
    return CalibrationFile(tuple(kernels), tuple(collectives))


def write_calibrations(path: Path, calibrations: CalibrationFile) -> None:
    """Writes fitted models; the file appears whole or not at all.

    All calibrations must share name, device, source and date.
    """
    first = (
        calibrations.kernels[0] if calibrations.kernels else calibrations.collectives[0]
    ).provenance
    document = CalibrationDocument(
        schema_version=SCHEMA_VERSION,
        name=first.name,
        device=first.device,
        source=first.source,
        as_of=first.as_of,
        kernels=[_kernel_block(calibration) for calibration in calibrations.kernels],
        collectives=[_collective_block(calibration) for calibration in calibrations.collectives],
    )
    write_atomically(path, _json_text(document))


def _kernel_block(calibration: KernelCalibration) -> KernelBlock:
    return KernelBlock(
        op=calibration.op,
        precisions=[Precision(precision) for precision in calibration.precisions],
        sizes=[
            SizeBlock(name=size.name, low=size.low, high=size.high) for size in calibration.sizes
        ],
        points=calibration.provenance.points,
        spread=calibration.spread,
        held_out=_held_out_block(calibration.held_out),
        curve=_curve_block(calibration.curve),
    )


def _curve_block(curve: RatioCurve) -> TreesBlock | SmoothBlock:
    if isinstance(curve, TreeCurve):
        return TreesBlock(
            kind="trees",
            features=list(curve.feature_names),
            offset=curve.offset_feature,
            model=curve.packed,
        )
    if isinstance(curve, SmoothCurve):
        return SmoothBlock(
            kind="smooth",
            features=list(curve.feature_names),
            kernel=curve.kernel,
            smoothing=curve.smoothing,
            scale=list(curve.scale),
            nodes=[list(node) for node in curve.nodes],
            values=list(curve.values),
        )
    raise TypeError(f"no file format for curves of type {type(curve).__name__}")


def _collective_block(calibration: CollectiveCalibration) -> CollectiveBlock:
    curve = calibration.curve
    return CollectiveBlock(
        op=calibration.op,
        ranks=calibration.ranks,
        points=calibration.provenance.points,
        spread=calibration.spread,
        held_out=_held_out_block(calibration.held_out),
        latency_s=curve.latency_s,
        bandwidth_bytes_per_s=curve.bandwidth_bytes_per_s,
        size_bytes=list(curve.size_bytes),
        time_s=list(curve.time_s),
    )


def _held_out(block: HeldOutBlock) -> HeldOut:
    return HeldOut(block.points, block.gmae, block.mape, block.p90, block.rule)


def _held_out_block(held_out: HeldOut) -> HeldOutBlock:
    return HeldOutBlock(
        points=held_out.points,
        gmae=held_out.gmae,
        mape=held_out.mape,
        p90=held_out.p90,
        rule=held_out.rule,
    )


def _json_text(document: CalibrationDocument) -> str:
    """One line for each fitted model: a change of one is a change of one line."""
    data = _rounded(document.model_dump(mode="json"))
    assert isinstance(data, dict)
    parts = []
    for key, value in data.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and value:
            lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in value)
            text = f"[\n{lines}\n]"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{" + ",\n".join(parts) + "}\n"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value
