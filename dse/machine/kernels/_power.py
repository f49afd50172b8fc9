"""Arithmetic that the power of a device sustains, beside what it reaches in short measurements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse.machine._precision import Precision

if TYPE_CHECKING:
    from dse.machine._hardware import DeviceSpec


def sustained_share(device: DeviceSpec, precision: Precision) -> float:
    """Returns the rate of products in the middle of training over that of short measurements.

    A device that would take more than its limit lowers its clock. Power grows with the clock and
    with the square of the voltage, and voltage falls with the clock as far as it can: between
    the first and the third power, taken as the second. So the rate falls with the square root
    of the power that is lacking.

    Operations on fewer bits take less energy, in proportion to the bytes of their operands.

    Args:
        device: The device; nothing bounds one without a power.
        precision: Arithmetic.
    """
    if device.power is None:
        return 1.0
    # What the device lacks, it computes in the next wider precision.
    used = precision if device.peak.has(precision) else precision.outside_products
    relative_energy = used.operand_bytes / Precision.BF16.operand_bytes
    full_rate_w = device.peak.of(precision) * relative_energy * device.power.operation_energy_j
    return min(1.0, math.sqrt(device.power.limit_w / full_rate_w))
