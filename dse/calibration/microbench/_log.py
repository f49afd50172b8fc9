"""The log of a session: JSON lines that are only ever appended.

The first line is the header: schema version, plan with all its options, machine and date. Every
further line is one finished measurement, one skipped point, or a wider plan: collectives may be
added to a log that has none. A kill in the middle of a write leaves a torn last line, which is cut
off when the log is opened again.

Headers of the first logs had a digest of the whole plan instead of all options. They are read, and
continued by plans of the same digest, with or without collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
import json
from typing import TYPE_CHECKING, Any

from dse._reading import MAX_TABLE_BYTES, JsonProblemError, load_json, read_bytes
from dse.calibration.microbench._log_lines import (
    Record,
    machine_from_json,
    machine_to_json,
    record_from_json,
    record_to_json,
)
from dse.calibration.microbench._types import (
    CollectiveMeasurement,
    HostMeasurement,
    KernelMeasurement,
    MachineInfo,
    SkippedPoint,
)
from dse.errors import CalibrationError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from dse.calibration.microbench._design import MeasurementPlan

#: Number of the form of the lines.
SCHEMA_VERSION = 1

#: Options that must be those of the log, by their names in its plan, with what people call them.
_OPTIONS = {
    "device": "--device",
    "ranks": "--ranks",
    "threads": "--threads",
    "busy_devices": "--busy-devices",
    "seed": "--seed",
    "operators": "operators",
    "points_of_an_operator": "points of an operator",
}

#: Devices at work in logs that do not tell: the one that was measured.
_ALONE = 1

#: Facts of the machine that must be those of the log.
_MACHINE = ("device_name", "cores", "driver", "libraries")


@dataclass(frozen=True, slots=True)
class SessionResult:
    """Everything that a log holds.

    Attributes:
        machine: The machine that was measured.
        threads: Threads that one rank computed with on the host.
        collectives_backend: ``gloo`` or ``nccl``.
        date: When the session began, in ISO form and UTC.
        kernels: Operators, in the order of measuring.
        collectives: Collectives, in the order of measuring.
        host: Host overheads, or ``None`` when they were not reached.
        skipped: Points that could not be measured, with reasons.
        planned: Points of the plan: operators, host overheads, and collectives if any session
            asked for them.
        busy_devices: Devices that ran an operator at the same time while it was measured.
    """

    machine: MachineInfo
    threads: int
    collectives_backend: str
    date: str
    kernels: tuple[KernelMeasurement, ...]
    collectives: tuple[CollectiveMeasurement, ...]
    host: HostMeasurement | None
    skipped: tuple[SkippedPoint, ...]
    planned: int
    busy_devices: int = _ALONE

    @property
    def done(self) -> int:
        """Points that are measured or skipped."""
        measured = len(self.kernels) + len(self.collectives) + (self.host is not None)
        return measured + len(self.skipped)


class SessionLog:
    """A log that is open for appending.

    Args:
        path: The file; it is started when it is missing or empty.
        plan: What is measured.
        machine: Where.

    Raises:
        CalibrationError: The file is damaged, cannot be written, or is of other options, another
            machine or version.
    """

    def __init__(self, path: Path, plan: MeasurementPlan, machine: MachineInfo) -> None:
        self._path = path
        repair(path)
        if not (path.exists() and path.stat().st_size):
            self._append(_header(plan, machine))
            return
        lines = _lines(path)
        stored = _stored_plan(lines)
        continued = _continued(path, lines[0], stored, plan, machine)
        if continued != stored:
            self._append({"kind": "plan", "date": _now(), "plan": continued})

    def read(self) -> SessionResult:
        """Returns everything that is in the log."""
        return read_session(self._path)

    def add(self, record: Record) -> None:
        """Appends one finished measurement or skipped point.

        Raises:
            CalibrationError: The file cannot be written.
        """
        self._append(record_to_json(record))

    def _append(self, line: dict[str, Any]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise CalibrationError(
                f"cannot write {self._path}: {error.strerror or error}; what was measured until "
                "now is kept, run again to go on"
            ) from error


def read_session(path: Path) -> SessionResult:
    """Reads a log; a torn last line is left out.

    Raises:
        CalibrationError: The file cannot be read, is damaged or is of another version.
    """
    lines = _lines(path)
    if not lines:
        raise CalibrationError(f"{path}: the log is empty; measure first")
    header = lines[0]
    _check_version(path, header)
    try:
        records = [record_from_json(line) for line in lines[1:] if line.get("kind") != "plan"]
        plan = _stored_plan(lines)
        hosts = [record for record in records if isinstance(record, HostMeasurement)]
        return SessionResult(
            machine=machine_from_json(header["machine"]),
            threads=int(plan["threads"]),
            collectives_backend=str(plan["collectives_backend"]),
            date=str(header["date"]),
            kernels=tuple(record for record in records if isinstance(record, KernelMeasurement)),
            collectives=tuple(
                record for record in records if isinstance(record, CollectiveMeasurement)
            ),
            host=hosts[-1] if hosts else None,
            skipped=tuple(record for record in records if isinstance(record, SkippedPoint)),
            planned=int(plan["points"]),
            busy_devices=int(plan.get("busy_devices", _ALONE)),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CalibrationError(
            f"{path}: not a log of measurements ({type(error).__name__}: {error}); measure again "
            "into another file"
        ) from error


def repair(path: Path) -> None:
    """Cuts off a torn last line.

    Raises:
        CalibrationError: The file cannot be read or written.
    """
    try:
        content = read_bytes(path, MAX_TABLE_BYTES) if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)
    except ConfigError as error:
        raise CalibrationError(f"cannot open the log: {error}") from error
    except OSError as error:
        raise CalibrationError(f"cannot open {path}: {error.strerror or error}") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        content = read_bytes(path, MAX_TABLE_BYTES)
    except ConfigError as error:
        raise CalibrationError(f"cannot read the log: {error}") from error
    lines = []
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            parsed = load_json(line)
        except JsonProblemError:
            parsed = None
        if not isinstance(parsed, dict):
            raise CalibrationError(
                f"{path}: line {number} is damaged; restore the file from a copy, or measure "
                "again into another one"
            )
        lines.append(parsed)
    return lines


def _header(plan: MeasurementPlan, machine: MachineInfo) -> dict[str, Any]:
    return {
        "kind": "header",
        "schema_version": SCHEMA_VERSION,
        "date": _now(),
        "plan": _plan_to_json(plan),
        "machine": machine_to_json(machine),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plan_to_json(plan: MeasurementPlan) -> dict[str, Any]:
    return {
        "version": plan.version,
        "device": plan.device,
        "ranks": plan.ranks,
        "threads": plan.threads,
        "busy_devices": plan.busy_devices,
        "seed": plan.seed,
        "operators": list(plan.operators),
        "points_of_an_operator": plan.points,
        "collectives": bool(plan.collectives),
        "collectives_backend": plan.collectives_backend,
        "kernels_digest": plan.kernels_digest(),
        "collectives_digest": plan.collectives_digest(),
        "points": len(plan.kernels) + len(plan.collectives) + plan.host,
    }


def _stored_plan(lines: list[dict[str, Any]]) -> Any:
    """The plan of the header, or the last wider one."""
    wider = [line.get("plan") for line in lines[1:] if line.get("kind") == "plan"]
    return wider[-1] if wider else lines[0].get("plan")


def _check_version(path: Path, header: dict[str, Any]) -> None:
    if header.get("kind") != "header":
        raise CalibrationError(f"{path}: not a log of measurements: the first line is no header")
    version = header.get("schema_version")
    if version != SCHEMA_VERSION:
        raise CalibrationError(
            f"{path}: schema version {version}, this version of dse reads "
            f"{SCHEMA_VERSION}; measure again into another file"
        )


def _continued(
    path: Path, header: dict[str, Any], stored: Any, plan: MeasurementPlan, machine: MachineInfo
) -> dict[str, Any]:
    """Returns the plan of a log that is continued: the wider one of the log's and ours.

    Raises:
        CalibrationError: The log is of something else; names what differs, in the log and now,
            and how to go on.
    """
    _check_version(path, header)
    ours = _plan_to_json(plan)
    of_machine = header.get("machine")
    if not (isinstance(stored, dict) and isinstance(of_machine, dict)):
        raise CalibrationError(
            f"{path}: not a log of measurements: plan or machine are missing; measure into "
            "another file"
        )
    if stored.get("version") != plan.version:
        raise CalibrationError(
            f"{path}: measured by version {stored.get('version')} of the plan, now "
            f"{plan.version}; results of the two must not be mixed, so measure into another file"
        )
    # The name of the processor differs, too, when the device is another one.
    if stored.get("device") == plan.device:
        _check_machine(path, of_machine, machine_to_json(machine))
    _check_options(path, stored, ours)
    alike = {"kernels_digest": "operators"}
    if stored["collectives"] and ours["collectives"]:
        alike["collectives_digest"] = "collectives"
    for name, what in alike.items():
        if stored.get(name) != ours[name]:
            raise CalibrationError(
                f"{path}: a log of other sizes of {what}, although the options are the same: "
                "their limits or a library have changed; results of the two must not be mixed, "
                "so measure into another file"
            )
    return stored if stored["collectives"] else ours


def _check_machine(path: Path, stored: dict[str, Any], ours: dict[str, Any]) -> None:
    for name in _MACHINE:
        if stored.get(name) != ours[name]:
            raise CalibrationError(
                f"{path}: a log of another machine: {name} was {stored.get(name)}, now "
                f"{ours[name]}; results of the two must not be mixed, so measure into another file"
            )


def _check_options(path: Path, stored: dict[str, Any], ours: dict[str, Any]) -> None:
    stored = {"busy_devices": _ALONE} | stored
    names = {name: shown for name, shown in _OPTIONS.items() if name in stored}
    if stored.get("collectives") and ours["collectives"]:
        names["collectives_backend"] = "--collectives"
    differing = [name for name in names if stored[name] != ours[name]]
    if not differing:
        return
    changes = "; ".join(
        f"{names[name]} was {_shown(stored[name])}, now {_shown(ours[name])}" for name in differing
    )
    back = " ".join(f"{names[name]} {_shown(stored[name])}" for name in differing)
    raise CalibrationError(
        f"{path}: a log of other options: {changes}; results of the two must not be mixed: go on "
        f"with {back}, or measure into another file"
    )


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
