"""Records of a log as JSON, read back with every type checked."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, TypeAlias, TypeVar

from dse.calibration.microbench.plan._points import (
    CollectiveMeasurement,
    CollectivePoint,
    HostMeasurement,
    KernelMeasurement,
    KernelPoint,
    MachineInfo,
    Sample,
    SkippedPoint,
)
from dse.config import checked_record

Record: TypeAlias = KernelMeasurement | CollectiveMeasurement | HostMeasurement | SkippedPoint
_Kernel = TypeVar("_Kernel", bound=KernelPoint)
_Timed = TypeVar("_Timed", bound=Sample)


def record_to_json(record: Record) -> dict[str, Any]:
    """Returns the line of a finished measurement or skipped point."""
    if isinstance(record, SkippedPoint):
        point = None if record.point is None else _point_to_json(record.point)
        return {"kind": "skipped", "point": point, "reason": record.reason}
    if isinstance(record, HostMeasurement):
        return {"kind": "host"} | asdict(record)
    return _point_to_json(record)


def record_from_json(line: dict[str, Any]) -> Record:
    """Returns what a line holds.

    Raises:
        ValueError: It is not a line of this version, with the field that is wrong.
    """
    values = dict(line)
    kind = values.pop("kind", None)
    if kind == "host":
        return checked_record(HostMeasurement, values)
    if kind == "skipped":
        point = values.get("point")
        return SkippedPoint(
            None if point is None else _point(point), str(values.get("reason", ""))
        )
    if kind == "kernel":
        return _with_time(_kernel(KernelMeasurement, values))
    if kind == "collective":
        return _with_time(checked_record(CollectiveMeasurement, values))
    raise ValueError(f"unknown kind of line `{str(kind)[:60]}`")


def machine_to_json(machine: MachineInfo) -> dict[str, Any]:
    """Returns the machine as it stands in a header."""
    return asdict(machine) | {"libraries": dict(machine.libraries)}


def machine_from_json(stored: object) -> MachineInfo:
    """Returns the machine of a header.

    Raises:
        ValueError: It is not one of this version, with the field that is wrong.
    """
    if not isinstance(stored, dict) or not isinstance(stored.get("libraries"), dict):
        raise ValueError("machine: a block with `libraries` is expected")  # noqa: TRY004
    names = MachineInfo.__dataclass_fields__
    known = {name: value for name, value in stored.items() if name in names}
    libraries = [(name, str(value)) for name, value in stored["libraries"].items()]
    return checked_record(MachineInfo, known | {"libraries": libraries})


def _point_to_json(point: KernelPoint | CollectivePoint) -> dict[str, Any]:
    if isinstance(point, KernelPoint):
        return {"kind": "kernel"} | asdict(point) | {"sizes": dict(point.sizes)}
    return {"kind": "collective"} | asdict(point)


def _point(stored: object) -> KernelPoint | CollectivePoint:
    if not isinstance(stored, dict):
        raise ValueError("point: a block is expected")  # noqa: TRY004
    values = dict(stored)
    if values.pop("kind", None) == "kernel":
        return _kernel(KernelPoint, values)
    return checked_record(CollectivePoint, values)


def _kernel(kind: type[_Kernel], values: dict[str, Any]) -> _Kernel:
    sizes = values.get("sizes")
    if not isinstance(sizes, dict):
        raise ValueError("sizes: a block of names and numbers is expected")  # noqa: TRY004
    given = tuple(sizes.items())
    # The check makes floating-point numbers of whole ones, which the operators would not take.
    return replace(checked_record(kind, {**values, "sizes": given}), sizes=given)


def _with_time(record: _Timed) -> _Timed:
    if not (record.time_s > 0 and record.half_width_s >= 0):
        raise ValueError(
            f"time_s {record.time_s}, half_width_s {record.half_width_s}: expected times of more "
            "than 0"
        )
    return record
