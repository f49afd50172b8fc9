"""Writing a calibrated machine as a platform with its file of fitted models."""

from __future__ import annotations

from dataclasses import fields
import os
from pathlib import Path
import tempfile
from typing import TYPE_CHECKING

import yaml

from dse._io.writing import write_atomically
from dse._process.interrupts import defer_interrupts
from dse.config import SCHEMA_VERSION, read_source
from dse.errors import StudyError
from dse.machine.host import HOST_FIGURES
from dse.machine.platforms import (
    CalibrationFile,
    CalibrationSource,
    platform_from_text,
    write_calibrations,
)

if TYPE_CHECKING:
    from dse.calibration._machine import MachineCalibration
    from dse.machine.platforms import Platform


def write_machine(calibration: MachineCalibration, path: Path) -> Platform:
    """Writes `NAME.yaml` and, next to it, `NAME.calibration.json`; returns the platform.

    Both are written under other names and checked by loading before anything is replaced: a
    platform that cannot be read is worse than none. Without any fitted model there is no second
    file, and one of an earlier session is deleted.

    Args:
        calibration: What was fitted.
        path: The YAML file to write.

    Raises:
        ConfigError: A measured figure does not make a platform, for example a bandwidth of zero.
        StudyError: The folder cannot be written.
    """
    fits_path = path.with_name(f"{path.stem}.calibration.json")
    content = CalibrationFile(calibration.kernels, calibration.collectives)
    fitted = [fits_path.name] if content.kernels or content.collectives else []
    text = _yaml_text(calibration, fitted)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, so that renaming is one step.
        with (
            defer_interrupts(),
            tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder,
        ):
            new = Path(folder) / path.name
            new_fits = Path(folder) / fits_path.name
            kept = []
            if fitted:
                write_calibrations(new_fits, content)
                source = read_source(new_fits)
                kept = [
                    CalibrationSource(fits_path.name, str(fits_path), source.sha256, source.text)
                ]
            write_atomically(new, text)
            platform = platform_from_text(read_source(new).text, str(path), kept)
            if fitted:
                os.replace(new_fits, fits_path)
            os.replace(new, path)
            if not fitted:
                fits_path.unlink(missing_ok=True)
    except OSError as error:
        raise StudyError(
            f"cannot write {path}: {error.strerror or error}; choose another folder"
        ) from error
    return platform


def _yaml_text(calibration: MachineCalibration, fitted: list[str]) -> str:
    device, host, link = calibration.device, calibration.host, calibration.link
    measured = {
        "origin": "measured",
        "source": calibration.origin.source,
        "as_of": calibration.origin.as_of,
    }
    assumed = {"origin": "assumed", "source": "not measured on a single machine"}
    rates = {
        field.name.removesuffix("_flops_per_s"): getattr(device.peak, field.name)
        for field in fields(device.peak)
    }
    link_block = {
        "kind": "shared_memory",
        "bandwidth": "1 GB/s",
        "latency": "100 us",
        "origin": "assumed",
        "source": "no collective was measured",
    }
    if link is not None:
        link_block = {
            "kind": link.kind.value,
            "bandwidth": _gigabytes_per_s(link.bandwidth_bytes_per_s),
            "latency": _microseconds(link.latency_s),
            **measured,
        }
    document = {
        "schema_version": SCHEMA_VERSION,
        "name": calibration.origin.name,
        "description": f"{calibration.ranks} ranks on {device.name}, measured",
        "device": {
            "name": device.name,
            "kind": device.kind,
            "compute_units": device.compute_units,
            "resident_warps_per_unit": device.resident_warps_per_unit,
            "kernel_floor": _microseconds(device.kernel_floor_s),
            "peak": {
                **{
                    name: f"{rate / 1e12:.4g} TFLOP/s"
                    for name, rate in rates.items()
                    if rate is not None
                },
                **measured,
            },
            "memory": {
                "capacity": _mebibytes(device.memory_bytes),
                "bandwidth": _gigabytes_per_s(device.memory_bandwidth_bytes_per_s),
                "reserved": _mebibytes(device.reserved_memory_bytes),
                **measured,
            },
            "l2": {
                "size": _mebibytes(device.l2_bytes),
                "bandwidth": _gigabytes_per_s(device.l2_bandwidth_bytes_per_s),
                **measured,
            },
        },
        "node": {
            "devices": calibration.ranks,
            "host_link": {
                "kind": "memory" if device.kind == "cpu" else "pcie",
                "bandwidth": _gigabytes_per_s(calibration.host_link.bandwidth_bytes_per_s),
                "latency": _microseconds(calibration.host_link.latency_s),
                **(
                    {"origin": "assumed", "source": calibration.host_link_assumed}
                    if calibration.host_link_assumed
                    else measured
                ),
            },
        },
        "default_link": link_block["kind"],
        "links": {link_block["kind"]: link_block},
        "default_network": "ethernet_10g",
        "networks": {
            "ethernet_10g": {
                "kind": "ethernet",
                "nics": 1,
                "bandwidth": "10 Gbit/s",
                "latency": "50 us",
                **assumed,
            }
        },
        "host": {
            **{name: _microseconds(getattr(host, f"{name}_s")) for name in HOST_FIGURES},
            **measured,
        },
        "calibrations": [{"file": name} for name in fitted],
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=95)


def _gigabytes_per_s(bandwidth_bytes_per_s: float) -> str:
    return f"{bandwidth_bytes_per_s / 1e9:.4g} GB/s"


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.4g} us"


def _mebibytes(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.6g} MiB"
