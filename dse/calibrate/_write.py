"""Writing a calibrated machine as a platform with its fitted models beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from dse._files import write_atomically
from dse.documents import SCHEMA_VERSION
from dse.platforms import (
    CalibrationFile,
    platform_from_text,
    write_calibrations,
)

if TYPE_CHECKING:
    from pathlib import Path

    from dse.calibrate._machine import MachineCalibration
    from dse.platforms import Platform


def write_machine(calibration: MachineCalibration, path: Path) -> Platform:
    """Writes `NAME.yaml` and, beside it, `NAME.calibration.json`; returns the platform.

    Args:
        calibration: What was fitted.
        path: The YAML file to write.

    Raises:
        ConfigError: A measured figure does not make a platform, for example a bandwidth of zero.
    """
    fitted = path.with_name(f"{path.stem}.calibration.json")
    write_calibrations(fitted, CalibrationFile(calibration.kernels, calibration.collectives))
    text = _yaml_text(calibration, fitted.name)
    # Checked before anything is replaced: a platform that cannot be read is worse than none.
    platform = platform_from_text(text, str(path))
    write_atomically(path, text)
    return platform


def _yaml_text(calibration: MachineCalibration, fitted: str) -> str:
    device, host, link = calibration.device, calibration.host, calibration.link
    measured = {
        "origin": "measured",
        "source": calibration.origin.source,
        "as_of": calibration.origin.as_of,
    }
    assumed = {"origin": "assumed", "source": "not measured on a single machine"}
    rates = {
        "fp32": device.peak.fp32_flops_per_s,
        "tf32": device.peak.tf32_flops_per_s,
        "fp16": device.peak.fp16_flops_per_s,
        "bf16": device.peak.bf16_flops_per_s,
    }
    link_block: dict[str, object] = {"kind": "shared_memory", "bandwidth": "1 GB/s"}
    link_block |= {
        "latency": "100 us",
        "origin": "assumed",
        "source": "no collective was measured",
    }
    if link is not None:
        link_block = {
            "kind": link.kind.value,
            "bandwidth": f"{link.bandwidth_bytes_per_s:.4g} B/s",
            "latency": f"{link.latency_s:.4g} s",
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
            "kernel_floor": f"{device.kernel_floor_s:.4g} s",
            "peak": {
                **{name: f"{rate:.4g} FLOP/s" for name, rate in rates.items() if rate is not None},
                **measured,
            },
            "memory": {
                "capacity": f"{device.memory_bytes:.0f} B",
                "bandwidth": f"{device.memory_bandwidth_bytes_per_s:.4g} B/s",
                "reserved": f"{device.reserved_memory_bytes:.0f} B",
                **measured,
            },
            "l2": {
                "size": f"{device.l2_bytes:.0f} B",
                "bandwidth": f"{device.l2_bandwidth_bytes_per_s:.4g} B/s",
                **measured,
            },
        },
        "node": {
            "devices": calibration.ranks,
            "host_link": {
                "kind": "memory" if device.kind == "cpu" else "pcie",
                "bandwidth": f"{calibration.host_link.bandwidth_bytes_per_s:.4g} B/s",
                "latency": f"{calibration.host_link.latency_s:.4g} s",
                **measured,
            },
        },
        "default_link": "local",
        "links": {"local": link_block},
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
            "between_operators": f"{host.between_operators_s:.4g} s",
            "before_launch": f"{host.before_launch_s:.4g} s",
            "after_launch": f"{host.after_launch_s:.4g} s",
            "launch": f"{host.launch_s:.4g} s",
            "between_launches": f"{host.between_launches_s:.4g} s",
            "graph_launch": f"{host.graph_launch_s:.4g} s",
            **measured,
        },
        "calibrations": [{"file": fitted}],
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=95)
