"""Log of a session: a header, then one line for each measurement.

The header holds the schema version, the plan with its options, the machine and the date. Every
further line is one finished measurement, one skipped point, or a wider plan: collectives may be
added to a log without them.

Headers of the first logs had a digest of the whole plan instead of its options. They are read, and
continued by plans of the same digest, with or without collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dse.calibration.microbench.log._journal import append_line, journal_lines, open_journal
from dse.calibration.microbench.log._records import (
    Record,
    machine_from_json,
    machine_to_json,
    record_from_json,
    record_to_json,
)
from dse.calibration.microbench.plan import (
    CollectiveMeasurement,
    HostMeasurement,
    KernelMeasurement,
    MachineInfo,
    SkippedPoint,
)
from dse.errors import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dse.calibration.microbench.plan import MeasurementPlan

#: Version of the form of the lines.
SCHEMA_VERSION = 1

#: Options that must equal those of the log: names in its plan, and names for messages.
_OPTIONS = {
    "device": "--device",
    "ranks": "--ranks",
    "threads": "--threads",
    "busy_devices": "--busy-devices",
    "seed": "--seed",
    "operators": "operators",
    "points_of_an_operator": "points of an operator",
}

#: Busy devices of logs that do not state them: only the measured one.
_ALONE = 1

#: Facts of the machine that must equal those of the log.
_MACHINE = ("device_name", "cores", "driver", "libraries")

_NOT_MIXED = "results of the two must not be mixed"
_ELSEWHERE = "measure into another file"


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
            includes them.
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
        path: The file; it is created when missing or empty.
        plan: What is measured.
        machine: The measured machine.

    Raises:
        CalibrationError: The file is damaged, cannot be written, or is of other options, another
            machine or version.
    """

    def __init__(self, path: Path, plan: MeasurementPlan, machine: MachineInfo) -> None:
        self._path = path
        lines, ours, own_machine = (
            open_journal(path),
            _plan_to_json(plan),
            machine_to_json(machine),
        )
        if not lines:
            header = {"kind": "header", "schema_version": SCHEMA_VERSION, "date": _now()}
            append_line(path, header | {"plan": ours, "machine": own_machine})
            return
        _check_header(path, lines[0])
        stored = _stored_plan(lines)
        for problem in _differences(stored, ours, lines[0].get("machine"), own_machine):
            raise CalibrationError(f"{path}: {problem}")
        if not stored["collectives"] and stored != ours:
            append_line(path, {"kind": "plan", "date": _now(), "plan": ours})

    def read(self) -> SessionResult:
        """Returns everything that is in the log."""
        return read_session(self._path)

    def add(self, record: Record) -> None:
        """Appends one finished measurement or skipped point.

        Raises:
            CalibrationError: The file cannot be written.
        """
        append_line(self._path, record_to_json(record))


def read_session(path: Path) -> SessionResult:
    """Reads a log; a torn last line is left out.

    Raises:
        CalibrationError: The file cannot be read, is damaged or is of another version.
    """
    lines = journal_lines(path)
    if not lines:
        raise CalibrationError(f"{path}: the log is empty; measure first")
    header = lines[0]
    _check_header(path, header)
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
    """Returns the plan of the header, or the last wider one."""
    wider = [line.get("plan") for line in lines[1:] if line.get("kind") == "plan"]
    return wider[-1] if wider else lines[0].get("plan")


def _check_header(path: Path, header: dict[str, Any]) -> None:
    if header.get("kind") != "header":
        raise CalibrationError(f"{path}: not a log of measurements: the first line is no header")
    version = header.get("schema_version")
    if version != SCHEMA_VERSION:
        raise CalibrationError(
            f"{path}: schema version {version}, this version of dse reads "
            f"{SCHEMA_VERSION}; measure again into another file"
        )


def _differences(
    stored: Any, ours: dict[str, Any], stored_machine: Any, own_machine: dict[str, Any]
) -> Iterator[str]:
    """Yields what forbids to continue a log: the values in the log and now, and the next step."""
    if not (isinstance(stored, dict) and isinstance(stored_machine, dict)):
        yield f"not a log of measurements: plan or machine are missing; {_ELSEWHERE}"
        return
    if stored.get("version") != ours["version"]:
        yield (
            f"measured by version {stored.get('version')} of the plan, now {ours['version']}; "
            f"{_NOT_MIXED}, so {_ELSEWHERE}"
        )
    # Another device has another name of the processor, too.
    if stored.get("device") == ours["device"]:
        for name in _MACHINE:
            if stored_machine.get(name) != own_machine[name]:
                yield (
                    f"a log of another machine: {name} was {stored_machine.get(name)}, now "
                    f"{own_machine[name]}; {_NOT_MIXED}, so {_ELSEWHERE}"
                )
    stated = {"busy_devices": _ALONE} | stored
    names = {name: shown for name, shown in _OPTIONS.items() if name in stated}
    digests = {"kernels_digest": "operators"}
    if stored.get("collectives") and ours["collectives"]:
        names["collectives_backend"] = "--collectives"
        digests["collectives_digest"] = "collectives"
    different = [name for name in names if stated.get(name) != ours[name]]
    if different:
        changes = "; ".join(
            f"{names[name]} was {_shown(stated.get(name))}, now {_shown(ours[name])}"
            for name in different
        )
        back = " ".join(f"{names[name]} {_shown(stated.get(name))}" for name in different)
        yield (
            f"a log of other options: {changes}; {_NOT_MIXED}: continue with {back}, or "
            f"{_ELSEWHERE}"
        )
    for name, what in digests.items():
        if stored.get(name) != ours[name]:
            yield (
                f"a log of other sizes of {what}, although the options are the same: their limits "
                f"or a library have changed; {_NOT_MIXED}, so {_ELSEWHERE}"
            )


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
