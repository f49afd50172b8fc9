"""Plans: which operators and collectives are measured, at which sizes, in which order."""

from __future__ import annotations

from dse.calibration.microbench.plan._design import (
    COLLECTIVES,
    PLAN_VERSION,
    MeasurementPlan,
    default_local_ranks,
    default_threads,
    make_plan,
)
from dse.calibration.microbench.plan._operators import (
    CPU_LIMITS,
    CUDA_LIMITS,
    OPERATORS,
    Axis,
    Limits,
)
from dse.calibration.microbench.plan._points import (
    CollectiveMeasurement,
    CollectivePoint,
    HostMeasurement,
    KernelMeasurement,
    KernelPoint,
    MachineInfo,
    Purpose,
    Sample,
    SkippedPoint,
    measured,
)

__all__ = [
    "COLLECTIVES",
    "CPU_LIMITS",
    "CUDA_LIMITS",
    "OPERATORS",
    "PLAN_VERSION",
    "Axis",
    "CollectiveMeasurement",
    "CollectivePoint",
    "HostMeasurement",
    "KernelMeasurement",
    "KernelPoint",
    "Limits",
    "MachineInfo",
    "MeasurementPlan",
    "Purpose",
    "Sample",
    "SkippedPoint",
    "default_local_ranks",
    "default_threads",
    "make_plan",
    "measured",
]
