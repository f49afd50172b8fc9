"""Notes on what was assumed, common to all kinds of workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.machine import DeviceSpec, Precision


def precision_notes(device: DeviceSpec, precision: Precision) -> tuple[str, ...]:
    """Returns a note if a device has no arithmetic of a precision; else none.

    Args:
        device: The device.
        precision: Arithmetic that was asked for.
    """
    if device.kind != "gpu" or device.peak.has(precision):
        return ()
    instead = "bf16" if precision.is_low and device.peak.bf16_flops_per_s else "fp32"
    return (
        f"{precision.value} is not in hardware on {device.name}: products run at its {instead} "
        "rate; choose another precision or device",
    )
